"""The strict simulator: a kernel's threads, what they do to memory, and what is wrong with that.

:mod:`convlab.engines.simulator` is the engine that runs kernels with it.
"""
