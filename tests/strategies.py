"""Hypothesis strategies: awkward little convolutions and awkward numbers to put in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem

Tensors = tuple[np.ndarray, np.ndarray, np.ndarray | None]

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 11, 13, 16, 17)  # one, primes, powers of two and their neighbours
MOST = {"batch": 3, "C_i": 17, "C_o": 17, "H_f": 5, "W_f": 5, "H_o": 17, "W_o": 17}


@st.composite
def problems(draw: st.DrawFn, max_macs: int = 1500) -> ConvProblem:
    """Valid problems of at most ``max_macs`` multiply-adds (``M * N * K``).

    Filters 1x1 to 5x5, batch 1 to 3; height and width differ in everything; padding with nothing,
    one number, a pair, two pairs, larger than the filter, ``'same'``; strides larger than the
    filter; inputs that the last window does not reach the end of. Shrinks to all ones.
    """
    sizes, left = {}, max_macs
    for name in draw(st.permutations(list(MOST))):  # any of them may be the one that has room
        allowed = [size for size in SIZES if size <= min(MOST[name], left)]
        sizes[name] = draw(st.sampled_from(allowed))
        left //= sizes[name]
    batch, C_i, C_o, H_f, W_f, H_o, W_o = (sizes[name] for name in MOST)
    dilation = draw(pair(1, 3))
    if draw(st.sampled_from((False, False, False, True))):
        return ConvProblem(batch, C_i, H_o, W_o, C_o, (H_f, W_f), 1, "same", dilation)

    stride = draw(pair(1, 7))
    vertical, H_i = draw(_padding_and_size(H_o, H_f, stride[0], dilation[0]))
    horizontal, W_i = draw(_padding_and_size(W_o, W_f, stride[1], dilation[1]))
    return ConvProblem(
        batch, C_i, H_i, W_i, C_o, (H_f, W_f), stride, (vertical, horizontal), dilation
    )


def pair(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(least, most), st.integers(least, most))


@st.composite
def _padding_and_size(
    draw: st.DrawFn, outputs: int, taps: int, stride: int, dilation: int
) -> tuple[tuple[int, int], int]:
    """One axis's padding and input size that give that many outputs."""
    padded = (outputs - 1) * stride + (taps - 1) * dilation + 1
    padded += draw(st.integers(0, stride - 1))  # pixels that no window reaches
    before = draw(st.integers(0, min(padded - 1, taps + 2)))
    after = draw(st.just(before) | st.integers(0, taps + 2))
    after = min(after, padded - 1 - before)
    return (before, after), padded - before - after


def tensors(problem: ConvProblem, kind: str, seed: int, *, bias: bool) -> Tensors:
    """Input, weight and bias (or None), of one of the ``KINDS`` and of the problem's type."""
    rng = np.random.default_rng(seed)
    in_floats = replace(problem, dtype="float32")
    made = random_tensors(in_floats, rng, bias, integers=kind == "integers")
    for tensor in made:
        if tensor is not None:
            KINDS[kind](tensor, rng)
    if problem.dtype == "float32":
        return made
    with np.errstate(over="ignore"):  # huge numbers are infinite in float16
        input, weight, of_channels = (
            None if tensor is None else tensor.astype(problem.number_type.numpy) for tensor in made
        )
    return input, weight, of_channels


def _sprinkle(tensor: np.ndarray, rng: np.random.Generator, values: tuple[float, ...]) -> None:
    """Up to two of every value, anywhere; corners often, which padding is next to."""
    flat = tensor.reshape(-1)
    for value in values:
        flat[rng.integers(0, flat.size, rng.integers(0, 3))] = value
    if rng.random() < 0.5:
        flat[rng.choice((0, -1))] = rng.choice(values)


def _scale(tensor: np.ndarray, rng: np.random.Generator, least: int, most: int) -> None:
    tensor[...] = np.ldexp(tensor, rng.integers(least, most, tensor.shape, np.int32))


KINDS: dict[str, Callable[[np.ndarray, np.random.Generator], None]] = {
    "normal": lambda tensor, rng: None,
    "integers": lambda tensor, rng: None,
    "zeros": lambda tensor, rng: tensor.fill(0),
    "negative zeros": lambda tensor, rng: np.putmask(tensor, rng.random(tensor.shape) < 0.7, -0.0),
    # From the smallest denormal to one: products underflow, or are denormal.
    "denormals": lambda tensor, rng: _scale(tensor, rng, -150, 0),
    # Products about as large as float32 can hold: some overflow, some only when summed.
    "huge": lambda tensor, rng: _scale(tensor, rng, 58, 65),
    "nan": lambda tensor, rng: _sprinkle(tensor, rng, (np.nan, 0)),
    "infinities": lambda tensor, rng: _sprinkle(tensor, rng, (np.inf, -np.inf, 0)),
}


def values(
    problem: ConvProblem, kinds: tuple[str, ...] = tuple(KINDS)
) -> st.SearchStrategy[Tensors]:
    """Tensors for a problem, of any of the kinds. A failing example is shown as the call to
    :func:`tensors` that makes it."""
    return st.builds(
        tensors, st.just(problem), st.sampled_from(kinds), st.integers(0, 2**16), bias=st.booleans()
    )


@st.composite
def cases(
    draw: st.DrawFn, max_macs: int = 1500, kinds: tuple[str, ...] = tuple(KINDS)
) -> tuple[ConvProblem, Tensors]:
    """A problem and tensors for it."""
    problem = draw(problems(max_macs))
    return problem, draw(values(problem, kinds))
