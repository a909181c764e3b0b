"""Hints for errors that beginners' kernels raise, by a piece of the error's message."""

from __future__ import annotations

SINGLE_ELEMENTS = (
    "A thread works on single elements, such as a[i]: a kernel has no operations on whole arrays. "
    "Is an index missing? A matrix needs two, an array of four dimensions four."
)
DIVIDED = "// divides to an integer, / to a float."
NOT_AN_INDEX = (
    "Does a number of an array stand where an index belongs? The orders are load4(array, index) "
    "and store4(array, index, four)."
)
HINTS = {
    "'Array'": SINGLE_ELEMENTS,
    "'LocalView'": SINGLE_ELEMENTS,
    "'LocalArray'": SINGLE_ELEMENTS,
    "'MisalignedArray'": SINGLE_ELEMENTS,
    "c is a tuple of 8": "+ and += put one tuple behind the other. A product adds to the numbers "
    "that it gets as its third argument.",
    "'float' has no len()": "A tuple of several numbers belongs here, such as load4 returns.",
    "positional arguments but": "Does an index of two numbers stand in parentheses, as in "
    "(row, column)?",
    "missing 1 required positional argument": "Compare the arguments with the call in the text.",
    "would allocate an array": SINGLE_ELEMENTS,
    "Dim3": "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers: .x, "
    ".y and .z.",
    "name 'threadIdx'": "A thread's own number is cuda.threadIdx.x.",
    "name 'blockIdx'": "The block's number is cuda.blockIdx.x.",
    "name 'blockDim'": "The number of threads in a block is cuda.blockDim.x.",
    "NameError": "Is the name written as in the rest of the cell?",
    "float() argument": "An element of an array takes one number, such as a[i] + 10.",
    "Untyped global name": "A kernel can use only numbers and arrays from outside: give what it "
    "needs a name before the kernel, as for C_i.",
    "returned None": "A function that makes a kernel must return the kernel in its last line.",
    "it must be a kernel": "Is @cuda.jit in the line above the function?",
    "'method'": "Is a pair of parentheses missing, as in cuda.grid(1)?",
    "is not an integer": DIVIDED,
    "<intrinsic wait_copies>": "wait_copies takes a constant, such as IN_FLIGHT: compute the "
    "number outside of the kernel.",
    "indices for": "Give an index for each dimension. For load4 and store4 in an array of two "
    "dimensions that is a pair, such as (row, column).",
    "cannot access local variable": "The function gives this name a value itself, and reads it "
    "before that. Is a name missing in front of it, such as that of a module?",
    "run more than": "Does the kernel have one loop too many?",
}
MODULES = {
    "np": "import numpy as np",
    **{name: f"import {name}" for name in ("math", "numpy", "statistics", "time")},
}


def hint_for(what: str) -> str:
    """Return the hint for an error; empty if there is none."""
    return next((hint for piece, hint in HINTS.items() if piece in what), "")
