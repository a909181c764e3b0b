"""Numba's language: a kernel's source translated, typed and refused as Numba does."""
