"""``unfold_einsum`` against the definition; test_pytorch.py has PyTorch's."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import convlab
from convlab.problems.unfold import unfold, unfold_einsum, unfold_one_hot

pytestmark = pytest.mark.same_in_cudasim


@dataclass(frozen=True)
class Case:
    """Shapes and settings of one convolution, of any number of dimensions."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    bias: bool = True

    def tensors(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        rng = np.random.default_rng(3)
        shapes = self.input, self.weight, self.weight[:1]
        input, weight, bias = (rng.standard_normal(shape, np.float32) for shape in shapes)
        return input, weight, bias if self.bias else None


@st.composite
def cases(draw: st.DrawFn, most_axes: int = 3, least_axes: int = 1) -> Case:
    """A small convolution along so many axes, its settings one number or one for each axis."""
    axes = draw(st.integers(least_axes, most_axes))

    def setting(least: int, most: int) -> Any:
        number = st.integers(least, most)
        return draw(number | st.tuples(*[number] * axes))

    stride, padding, dilation = setting(1, 5), setting(0, 3), setting(1, 3)
    kernel = draw(st.tuples(*[st.integers(1, 3)] * axes))
    spans = zip(kernel, each(padding, axes), each(dilation, axes), strict=True)
    size = [max(1, (k - 1) * d + 1 - 2 * p) + draw(st.integers(0, 5)) for k, p, d in spans]
    N, C_i, C_o = draw(st.tuples(*[st.integers(1, 4)] * 3))
    return Case(
        (N, C_i, *size), (C_o, C_i, *kernel), stride, padding, dilation, draw(st.booleans())
    )


def each(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else value


def correlation(padded: np.ndarray, weight: np.ndarray, strides: Any, dilations: Any) -> np.ndarray:
    """Return the correlation of ``[N, C_i, *S]`` with ``[C_o, C_i, *kernel]`` in float64: SciPy's
    dense correlations of dilated filters, of which strides leave some."""
    from scipy.signal import correlate  # takes seconds, which only some processes need

    spans = ((k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilations, strict=True))
    dilated = np.zeros((*weight.shape[:2], *spans))
    dilated[(..., *(slice(None, None, d) for d in dilations))] = weight
    dense = [[correlate(image, one, "valid", "direct")[0] for one in dilated] for image in padded]
    return np.array(dense)[(..., *(slice(None, None, s) for s in strides))]


def by_definition(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Each output as the float64 sum of its terms, and of their sizes."""
    input, weight, bias = case.tensors()
    axes = input.ndim - 2
    strides, paddings, dilations = (
        each(value, axes) for value in (case.stride, case.padding, case.dilation)
    )
    padded = np.pad(input.astype(float), ((0, 0), (0, 0), *((p, p) for p in paddings)))
    added = np.zeros(len(weight)) if bias is None else bias
    sums, sizes = (
        correlation(taken(padded), taken(weight), strides, dilations)
        + taken(added).reshape(-1, *[1] * axes)
        for taken in (np.asarray, np.abs)
    )
    return sums, sizes


def assert_right(got: np.ndarray, case: Case) -> None:
    expected, sizes = by_definition(case)
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    roundings = np.prod(case.weight[1:]) + 1
    assert (abs(got - expected) <= 1.01 * roundings * 2.0**-24 * sizes).all()


def side_by_side(
    input: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int, **settings: Any
) -> np.ndarray:
    """Grouped convolution: one for each group."""
    sides = np.split(input, groups, 1), np.split(weight, groups), np.split(bias, groups)
    return np.concatenate(
        [unfold_einsum(*side, **settings) for side in zip(*sides, strict=True)], 1
    )


def settings(case: Case) -> dict[str, Any]:
    return {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}


@pytest.mark.slow
@given(cases(most_axes=4))
def test_numpy_arrays_by_the_definition(case):
    input, weight, bias = case.tensors()
    assert_right(unfold_einsum(input, weight, bias, **settings(case)), case)
    columns = unfold(input, weight.shape[2:], **settings(case))
    assert np.array_equal(unfold_one_hot(input, weight.shape[2:], **settings(case)), columns)


def test_a_nan_spoils_a_window_only_by_one_hot_filters():
    input = np.ones((1, 1, 4), np.float32)
    input[0, 0, 1] = np.nan
    assert np.isnan(unfold(input, 2)).sum() == 2
    assert np.isnan(unfold_one_hot(input, 2)).sum() == 4


def test_float64_stays_float64_and_infinite_weights_on_padding_are_nan():
    input, weight, bias = (t.astype(float) for t in Case((2, 3, 8, 8), (4, 3, 3, 3)).tensors())
    assert convlab.unfold_einsum(input, weight, bias, padding=1).dtype == np.float64
    weight = np.full((1, 1, 3), np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        got = unfold_einsum(np.ones((1, 1, 3), np.float32), weight, padding=1)
    assert np.isnan(got[0, 0, [0, -1]]).all()
    assert got[0, 0, 1] == np.inf


LIKE = np.ones((2, 3, 7, 9), np.float32)
GIVEN = {"input": LIKE, "weight": np.ones((4, 3, 3, 3), np.float32), "bias": LIKE[0, 0, 0, :4]}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


VALUES = [
    ({"weight": ones(4, 2, 3, 3)}, "its second size must be input's 3"),
    ({"weight": ones(4, 3, 3)}, "with as many axes"),
    ({"input": ones(2, 3), "weight": ones(4, 3)}, "with as many axes"),
    ({"bias": ones(5)}, r"bias has shape \(5,\): it must be \(4,\)"),
    ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\)"),
    ({"stride": 10**9999}, "stride is a 33216-bit int: it must be at"),
    ({"weight": ones(4, 3, 0, 3)}, r"kernel_size is \[0, 3\]: .* at least 1"),
    ({"dilation": 9}, r"kernel_size \(3, 3\) .* spans 19 pixels of height"),
]
TYPES = [
    ({"input": [[[1.0]]]}, "input is a list: it must be an array of NumPy, CuPy or Py"),
    ({"weight": None}, "weight is a NoneType"),
    ({"bias": np.ma.ones(4, np.float32)}, "bias is a masked array: convlab has no masks"),
    ({"weight": np.ones((4, 3, 3, 3))}, "weight has dtype float64: .* float32"),
    ({"input": LIKE.astype(int)}, "input has dtype int64: it must be float16, bfl"),
    ({"input": LIKE.astype(">f4")}, "input has dtype >f4"),
]
REFUSED = [(ValueError, *row) for row in VALUES] + [(TypeError, *row) for row in TYPES]


@pytest.mark.parametrize(("kind", "change", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_what_does_not_fit_or_means_nothing_is_refused(kind, change, message):
    with pytest.raises(kind, match=message) as refusal:
        unfold_einsum(**GIVEN | change)
    assert len(str(refusal.value)) < 300
    if not change.keys() & {"weight", "bias"}:
        for windows in (unfold, unfold_one_hot):
            with pytest.raises(kind, match=message):
                windows(**{"input": LIKE, "kernel_size": 3} | change)


@pytest.mark.parametrize("padding", [10**6, (0, 2**31 - 1)])
def test_more_than_memory_is_refused_at_once(padding):
    for windows in (unfold, unfold_one_hot):
        with pytest.raises(MemoryError, match=r"the unfolded input needs .* (GiB|bytes)"):
            windows(np.ones((1, 1, 4, 4)), 1, padding=padding)
    with pytest.raises(MemoryError, match="one-hot filters needs"):
        unfold_one_hot(np.ones((1, 1, 3000, 3000)), 3000)


def test_sums_of_half_precision_are_rounded_once():
    """PyTorch's sums are rounded once too: in float16, 2,048 + 1 is 2,048."""
    input, weight = (np.ones((1, 2049, 1), np.float16) for _ in range(2))
    got = unfold_einsum(input, weight, np.ones(1, np.float16))
    assert got.dtype == np.float16
    assert got.item() == 2050


@pytest.mark.parametrize(
    ("padding", "pairs"),
    [
        ("valid", ((0, 0),) * 2),
        ("same", ((1, 2), (2, 2))),
        ((1,), ((1, 1),) * 2),
        ([0, 2], ((0, 0), (2, 2))),
    ],
    ids=str,
)
def test_padding_as_conv2d_takes_it(padding, pairs):
    rng = np.random.default_rng(5)
    input, weight = rng.standard_normal((2, 3, 8, 7)), rng.standard_normal((4, 3, 4, 3))
    got = unfold_einsum(input, weight, None, 1, padding, (1, 2))
    by_hand = np.pad(input, ((0, 0), (0, 0), *pairs))
    assert np.array_equal(got, unfold_einsum(by_hand, weight, None, 1, 0, (1, 2)))
    assert np.array_equal(got, unfold_einsum(input, weight, None, [1], pairs, (1, 2)))


def test_another_library_s_arrays_need_array_api_compat(monkeypatch):
    class Array:
        ndim, shape = 3, (1, 1, 1)

    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(TypeError, match="input is a Array: it must be an array of NumPy, CuPy or"):
        unfold_einsum(Array(), Array())
    Array.__module__ = "torch"
    with pytest.raises(ModuleNotFoundError, match=r"need array-api-compat: run .* -m pip"):
        unfold_einsum(Array(), Array())
