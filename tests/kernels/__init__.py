"""Kernels for the strict simulator: wrong ones with the finding each must get, and right ones."""
