"""Kernels in files of their own, as learners' cells are, and the lessons' check of them."""

from __future__ import annotations

import runpy

import numpy as np

from convlab import lessons

THREADS = 64


def kernel_of(folder, body, arguments="a, out"):
    """A kernel of these lines, in a file of its own."""
    file = folder / f"cell{abs(hash(body))}.py"
    head = f"import numpy as np\nfrom numba import cuda, float32\nTHREADS = {THREADS}\n"
    file.write_text(f"{head}@cuda.jit\ndef kernel({arguments}):\n{body}")
    return runpy.run_path(str(file))["kernel"]


def ones(size=THREADS):
    return np.ones(size, np.float32)


def told_of(kernel, wanted=np.copy, on=None, **options):
    on = on or [lessons.On(1, THREADS, (ones(),))]
    return lessons.check_kernel(kernel, wanted, on, **options)
