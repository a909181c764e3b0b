"""Kernels beside the ladder: the ablation of m11, and the kernel for groups."""
