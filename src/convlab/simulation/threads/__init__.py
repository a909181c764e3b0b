"""Threads of a block as greenlets: scheduling, barriers, warps, asynchronous work, cuda's names."""
