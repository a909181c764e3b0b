"""Calls and command lines at random: each ends in an answer or in one clear sentence, in time.

``HYPOTHESIS_PROFILE=large`` tries thousands of each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import typer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda
from test_cli import convlab_
from test_unfold import side_by_side

from convlab import (
    ConvProblem,
    EngineUnavailable,
    SimulationError,
    conv1d,
    conv2d,
    conv3d,
    plans,
    simulate,
    trace_stage,
    unfold_einsum,
)  # fmt: skip
from convlab.simulation.findings import three
from convlab.unfold import unfold

pytestmark = pytest.mark.same_in_cudasim

IN_TIME = settings(deadline=10_000)
REFUSALS = (TypeError, ValueError, MemoryError, EngineUnavailable)
ARGUMENTS = {"input", "weight", "bias", "out", "groups", "stage", "engine", "tile"}
CONVOLUTIONS = {conv1d: 1, conv2d: 2, conv3d: 3}
SETTINGS = {"stride", "padding", "dilation"}

enormous = st.sampled_from([2**31 - 1, 2**31, 2**63, 10**400, 10**4299, -(10**4299)])
numbers = st.integers(-2, 5) | enormous
odd = st.sampled_from([
    None, True, 1.5, float("nan"), "same", "valid", "s01", "\udcff", b"1", {}, {1}, [], range(3),
    np.int8(2), np.True_, np.float32(1), np.ones(2), np.ma.ones(2), object(), "x" * 10**6,
])  # fmt: skip
CHANNELS = st.integers(1, 3)
LAUNCHED = st.sampled_from(["steps", "shared_bytes"])
setting = st.recursive(numbers | odd, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner))
dtypes = st.sampled_from(["f4"] * 4 + ["f2", "f8", "i4", "?", "c8", ">f4", "O"])


@st.composite
def arrays(draw: st.DrawFn, usual: tuple[int, ...]) -> np.ndarray:
    """Of about the usual shape; some do not own their elements, however many they say."""
    sizes = [draw(st.sampled_from([n] * 6 + [0, 1, 3])) for n in usual]
    shape = sizes[draw(st.sampled_from([0] * 6 + [1, 2])) :]
    if draw(st.integers(0, 9)) == 0:
        return np.broadcast_to(np.float32(1), [2**12] * len(shape))
    made = np.ones(shape, draw(dtypes))
    return np.ma.array(made) if draw(st.integers(0, 9)) == 0 else made


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, dict[str, Any]]:
    """A function and its arguments: right ones, up to three of them replaced."""
    function, axes = draw(st.sampled_from([*CONVOLUTIONS.items(), (unfold_einsum, 2), (unfold, 2)]))
    size, kernel = (3, 5, 6)[3 - axes :], (2, 3, 2)[3 - axes :]
    given: dict[str, Any] = {"input": draw(arrays((2, 4, *size)))}
    if function is unfold:
        given["kernel_size"] = 2
    else:
        given |= {"weight": draw(arrays((2, 4, *kernel))), "bias": draw(st.none() | arrays((2,)))}
    more = {*SETTINGS, *given, *(ARGUMENTS if function in CONVOLUTIONS else ())}
    for name in draw(st.lists(st.sampled_from(sorted(more)), max_size=3)):
        given[name] = draw(setting)
    return function, given


def assert_short(refusal: Exception) -> None:
    """One sentence: what is given, and the rule behind a colon or how much it needs."""
    said = str(refusal)
    assert ": " in said or " needs " in said
    assert "\n" not in said
    assert len(said) < 300


@IN_TIME
@given(calls())
def test_a_call_ends_in_an_answer_or_one_sentence(call):
    function, given = call
    patience, plans.PATIENCE_SECONDS = plans.PATIENCE_SECONDS, 10
    say, plans.say = plans.say, pytest.skip  # what takes minutes is announced, and not waited for
    try:
        result = function(**given)
    except pytest.skip.Exception:
        return
    except REFUSALS as error:
        assert_short(error)
    else:
        assert np.isfinite(result).all()
    finally:
        plans.PATIENCE_SECONDS, plans.say = patience, say


@IN_TIME
@given(st.lists(setting, min_size=6, max_size=9))
@example([1, 1, 2**31 - 1, 2**31 - 1, 1, 1])
def test_a_problem_ends_in_one_too(sizes):
    try:
        str(ConvProblem(*sizes))
    except (TypeError, ValueError) as error:
        assert_short(error)


LAYOUTS: list[Callable[[np.ndarray], np.ndarray]] = [
    np.ascontiguousarray, np.asfortranarray,
    lambda a: a[..., ::-1], lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    lambda a: np.concatenate([[0], a.ravel()])[1:].astype(a.dtype).reshape(a.shape),
]  # fmt: skip


@st.composite
def right_calls(draw: st.DrawFn) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A convolution, its tensors in any layout, and its settings. Whole numbers have exact sums."""
    (function, axes), groups = draw(st.sampled_from([*CONVOLUTIONS.items()])), draw(CHANNELS)
    each = st.tuples(*[st.integers(1, 3)] * axes)
    taps, dilation, more = draw(each), draw(each), draw(each)
    size = [(k - 1) * d + n for k, d, n in zip(taps, dilation, more, strict=True)]
    channels, filters = draw(CHANNELS), groups * draw(CHANNELS)
    shapes = {
        "input": (draw(CHANNELS), groups * channels, *size),
        "weight": (filters, channels, *taps),
        "bias": (filters, 1),
    }
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    given = {
        name: draw(st.sampled_from(LAYOUTS))(numbers.integers(-9, 10, shape).astype(np.float32))
        for name, shape in shapes.items()
    }
    given["bias"] = given["bias"][:, 0]
    sides = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = draw(st.sampled_from(["same", "valid", 1, (2,) * axes]) | st.tuples(*[sides] * axes))
    stride = 1 if padding == "same" else draw(st.integers(1, 3) | each)
    return function, given, {"stride": stride, "padding": padding, "dilation": dilation}


@given(
    right_calls(),
    st.sampled_from(["auto", "s01", "s11"]),  # s11 packs the filter and transforms the input
    st.booleans(),
    st.none() | st.sampled_from(LAYOUTS),
)
def test_answers_are_those_of_unfold_einsum(call, stage, alone, laid_out):
    """Of a batch, or of an image alone; in a new array, or one of any layout."""
    function, given, settings = call
    groups = given["input"].shape[1] // given["weight"].shape[1]
    if alone:
        given["input"] = given["input"][:1]
    expected = side_by_side(*given.values(), groups, **settings)
    if alone:
        given["input"], expected = given["input"][0], expected[0]
    before = {name: array.copy() for name, array in given.items()}
    out = None if laid_out is None else laid_out(np.full(expected.shape, np.nan, np.float32))
    result = function(**given, **settings, groups=groups, stage=stage, out=out)
    assert out is None or result is out
    np.testing.assert_array_equal(result, expected, strict=True)
    assert all(np.array_equal(given[name], array) for name, array in before.items())


@cuda.jit
def write(a, n):
    if cuda.grid(1) < n:
        a[cuda.grid(1)] = n


@IN_TIME
@given(st.lists(setting, min_size=2, max_size=2), st.dictionaries(LAUNCHED, setting, max_size=2))
@example([1, range(10**12)], {})
@example(["12", 1.5], {"steps": (1,), "shared_bytes": None})
def test_a_launch_ends_in_one_too(sizes, given):
    try:
        # A grid of thousands of blocks is a right one, which takes long.
        grid, block = map(three, sizes, ("grid", "block"))
        simulate(write, grid if prod(grid) < 99 else 1, block, np.ones(4, np.float32), 4, **given)
    except SimulationError:
        pass
    except (TypeError, ValueError) as error:
        assert_short(error)


@pytest.mark.parametrize("odd", [{"problem": "conv9"}, {"problem": 1}, {"tile": "8x8x8"}])
def test_a_trace_is_of_a_problem_with_a_tile(odd):
    with pytest.raises(TypeError, match=f"{next(iter(odd))} is .*: it must be a") as refused:
        trace_stage("s05", **odd)
    assert_short(refused.value)


VERBS = ["doctor", "stages", "ladder", "check", "trace", "lint", "tune", "bench", "report", "no"]
OPTIONS = [
    "--layer", "--batch", "--engine", "--stage", "--image", "--output", "--seed", "--json", "-h",
    "--block", "--html", "--problem", "--compiled", "--arch", "--against", "--as", "--cases", "-",
    "--markdown", "--forget", "--dance", "--tile",
]  # fmt: skip
WORDS = [
    "s01", "s99", "conv1", "conv13", "0", "-1", "1e9", "9999999999", "absent/file", ".", "sm_90",
    "sm_9", "simulator", "gpu", "8x8x8", "0x0x0", "1x1x1x1,1x1x1x1,p(((", "\u2588", "\udcff", "",
    " ", "9" * 9999, "x" * 9999, "a\nb", "\0",
]  # fmt: skip
words = st.sampled_from(WORDS) | st.text(max_size=9)


@IN_TIME
@given(st.sampled_from(VERBS), st.lists(st.sampled_from(OPTIONS) | words, min_size=1, max_size=5))
def test_a_command_line_ends_in_one_too(tmp_path_factory, verb, typed):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        patch.setattr(
            "convlab.ladder.run", lambda *_, **__: iter(())
        )  # tests of their own run them
        patch.setattr("convlab.lint.lint_all", lambda *_: iter(()))  # minutes for every stage
        patch.setattr("convlab.image.draw", lambda *_: b"")
        patch.setattr("convlab.tracing.trace_stage", Mock(side_effect=typer.Exit))
        result = convlab_(verb, *typed)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code != 2 or len(result.stderr.splitlines()[-1]) < 300
