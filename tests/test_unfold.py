"""``unfold_einsum`` on a table of cases, against the definition; test_pytorch.py has PyTorch's."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import convlab
from convlab.unfold import unfold, unfold_einsum, unfold_one_hot

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

    def __str__(self) -> str:
        shapes = "*".join("x".join(map(str, shape)) for shape in (self.input, self.weight))
        settings = f"s{self.stride}p{self.padding}d{self.dilation}".replace(" ", "")
        return f"{shapes}-{settings}{'-bias' if self.bias else ''}"

    def tensors(self, seed: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        rng = np.random.default_rng(seed)
        bias = rng.standard_normal(self.weight[0], np.float32) if self.bias else None
        return (
            rng.standard_normal(self.input, np.float32),
            rng.standard_normal(self.weight, np.float32),
            bias,
        )


CASES = [
    Case((1, 1, 1), (1, 1, 1)),
    Case((2, 3, 11), (4, 3, 3)),
    Case((2, 3, 11), (4, 3, 3), stride=2, bias=False),
    Case((2, 3, 11), (4, 3, 4), padding=2),
    Case((2, 3, 17), (5, 3, 3), dilation=4),
    Case((3, 1, 12), (2, 1, 5), stride=3, padding=1, dilation=2),
    Case((1, 8, 3), (8, 8, 1), stride=4, bias=False),
    Case((1, 2, 4), (3, 2, 3), padding=5),
    Case((1, 1, 1, 1), (1, 1, 1, 1), bias=False),
    Case((2, 3, 7, 9), (4, 3, 3, 3)),
    Case((2, 3, 7, 9), (4, 3, 3, 3), bias=False),
    Case((2, 3, 8, 8), (4, 3, 3, 3), padding=1),
    Case((2, 3, 8, 8), (4, 3, 3, 3), stride=2, padding=1),
    Case((1, 4, 9, 7), (6, 4, 2, 3), stride=(2, 1)),
    Case((1, 4, 9, 7), (6, 4, 2, 3), padding=(0, 2), bias=False),
    Case((1, 4, 11, 12), (3, 4, 3, 2), dilation=(2, 3)),
    Case((2, 2, 11, 12), (3, 2, 3, 3), stride=(2, 3), padding=(1, 2), dilation=(3, 2)),
    Case((1, 3, 5, 4), (2, 3, 5, 4)),
    Case((1, 3, 6, 6), (2, 3, 1, 1), stride=3),
    Case((1, 3, 11, 13), (2, 3, 2, 2), stride=(3, 5)),
    Case((1, 2, 3, 2), (3, 2, 3, 2), padding=(3, 4)),
    Case((3, 5, 1, 13), (2, 5, 1, 3)),
    Case((2, 16, 6, 6), (16, 16, 3, 3), padding=1, bias=False),
    Case((1, 1, 16, 16), (1, 1, 7, 7), padding=3),
    Case((1, 2, 4, 5, 6), (3, 2, 2, 2, 2)),
    Case((2, 2, 4, 5, 6), (3, 2, 3, 2, 1), bias=False),
    Case((1, 2, 5, 5, 5), (3, 2, 3, 3, 3), padding=1),
    Case((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), stride=(1, 2, 3)),
    Case((1, 2, 5, 6, 7), (3, 2, 2, 3, 2), padding=(2, 0, 1), bias=False),
    Case((1, 2, 7, 7, 7), (2, 2, 3, 2, 2), dilation=(2, 3, 4)),
    Case((2, 1, 6, 7, 8), (2, 1, 2, 2, 3), stride=2, padding=1, dilation=2),
    Case((1, 3, 2, 2, 2), (4, 3, 1, 1, 1), stride=2),
    Case((1, 1, 3, 4, 1), (1, 1, 3, 1, 1), padding=(1, 0, 2)),
    Case((1, 4, 3, 3, 3), (2, 4, 3, 3, 3), bias=False),
]
FOUR_DIMENSIONS = Case((1, 2, 3, 4, 3, 4), (2, 2, 2, 2, 1, 3), stride=(1, 2, 1, 1), padding=1)

cases = pytest.mark.parametrize("case", CASES, ids=str)


def each(value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def by_definition(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Each output as the float64 sum of its terms, and of their sizes."""
    input, weight, bias = case.tensors()
    axes = input.ndim - 2
    strides, paddings, dilations = (
        each(value, axes) for value in (case.stride, case.padding, case.dilation)
    )
    padded = np.pad(input.astype(float), ((0, 0), (0, 0), *((p, p) for p in paddings)))
    kernel = weight.shape[2:]
    out = [
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
    expected = np.zeros((input.shape[0], weight.shape[0], *out))
    sizes = expected.copy()
    for place in np.ndindex(*out):
        starts = [at * s for at, s in zip(place, strides, strict=True)]
        window = padded[
            ...,
            *(
                slice(a, a + (k - 1) * d + 1, d)
                for a, k, d in zip(starts, kernel, dilations, strict=True)
            ),
        ]
        terms = window[:, None] * weight[None].astype(float)
        terms = terms.reshape(*terms.shape[:2], -1)
        expected[(..., *place)] = terms.sum(-1)
        sizes[(..., *place)] = abs(terms).sum(-1)
    if bias is not None:
        expected += bias.reshape(1, -1, *[1] * axes)
        sizes += abs(bias).reshape(1, -1, *[1] * axes)
    return expected, sizes


def assert_right(got: np.ndarray, case: Case) -> None:
    expected, sizes = by_definition(case)
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    roundings = np.prod(case.weight[1:]) + 1
    assert (abs(got - expected) <= 1.01 * roundings * 2.0**-24 * sizes).all()


def settings(case: Case) -> dict[str, Any]:
    return {"stride": case.stride, "padding": case.padding, "dilation": case.dilation}


@pytest.mark.parametrize("case", [*CASES, FOUR_DIMENSIONS], ids=str)
def test_numpy_arrays_by_the_definition(case: Case) -> None:
    input, weight, bias = case.tensors()
    assert_right(unfold_einsum(input, weight, bias, **settings(case)), case)
    columns = unfold(input, weight.shape[2:], **settings(case))
    assert np.array_equal(unfold_one_hot(input, weight.shape[2:], **settings(case)), columns)


def test_a_nan_spoils_a_window_only_by_one_hot_filters() -> None:
    input = np.ones((1, 1, 4), np.float32)
    input[0, 0, 1] = np.nan
    assert np.isnan(unfold(input, 2)).sum() == 2
    assert np.isnan(unfold_one_hot(input, 2)).sum() == 4


def test_float64_stays_float64_and_infinite_weights_on_padding_are_nan() -> None:
    input, weight, bias = (t.astype(float) for t in CASES[12].tensors())
    assert convlab.unfold_einsum(input, weight, bias, padding=1).dtype == np.float64
    weight = np.full((1, 1, 3), np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        got = unfold_einsum(np.ones((1, 1, 3), np.float32), weight, padding=1)
    assert np.isnan(got[0, 0, [0, -1]]).all()
    assert got[0, 0, 1] == np.inf


WRONG = {
    "weight has other channels": ({"weight": (4, 2, 3, 3)}, "its second size must be input's 3"),
    "weight has other axes": ({"weight": (4, 3, 3)}, "with as many axes"),
    "no spatial axis": ({"input": (2, 3), "weight": (4, 3)}, "with as many axes"),
    "bias too long": ({"bias": 5}, r"bias has shape \(5,\): it must be \(4,\)"),
    "stride of 0": ({"stride": 0}, "stride is 0: it must be an int of at least 1, or 2 of them"),
    "strides for 3 axes": ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\)"),
    "padding below 0": ({"padding": (1, -1)}, r"padding is \(1, -1\)"),
    "no window fits": ({"dilation": 9}, r"kernel_size \(3, 3\) with dilation 9 does not fit"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    shapes = {"input": (2, 3, 7, 9), "weight": (4, 3, 3, 3), "bias": 4}
    arrays = [np.ones(change.get(name, shape), np.float32) for name, shape in shapes.items()]
    options = {name: value for name, value in change.items() if name not in shapes}
    with pytest.raises(ValueError, match=message):
        unfold_einsum(*arrays, **options)


def test_another_library_s_arrays_need_array_api_compat(monkeypatch: pytest.MonkeyPatch) -> None:
    class Array:
        ndim, shape = 3, (1, 1, 1)

    monkeypatch.setitem(sys.modules, "array_api_compat", None)
    with pytest.raises(ModuleNotFoundError, match=r"need array-api-compat: .*'\.\[arrays\]'"):
        unfold_einsum(Array(), Array())
