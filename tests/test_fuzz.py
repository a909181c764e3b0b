"""Calls at random: each ends in an answer or in one clear sentence, in time. Command lines are in
test_fuzz_commands.

``HYPOTHESIS_PROFILE=large`` tries thousands of each.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import prod
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import cuda
from test_unfold import side_by_side

from convlab import (
    ConvProblem,
    EngineUnavailable,
    Gradient,
    SimulationError,
    Tile,
    check,
    conv1d,
    conv2d,
    conv3d,
    open_trace,
    plan,
    simulate,
    simulator,
    trace,
    trace_stage,
    unfold_einsum,
)
from convlab.problems.unfold import unfold
from convlab.running import simulated_time
from convlab.simulation.rules.coordinates import three
from convlab.support.values import shown

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]

IN_TIME = settings(deadline=10_000)
REFUSALS = (TypeError, ValueError, MemoryError, EngineUnavailable)
ARGUMENTS = {"input", "weight", "bias", "out", "groups", "stage", "engine", "tile"}
CONVOLUTIONS = {conv1d: 1, conv2d: 2, conv3d: 3}
SETTINGS = {"stride", "padding", "dilation"}


class Raises:
    """Raises an error of its own wherever it is looked at."""

    def fails(self, *_: Any) -> Any:
        raise RuntimeError("no\nsuch luck")

    __len__ = __iter__ = __index__ = __repr__ = __bool__ = __eq__ = __float__ = fails
    __getitem__ = __contains__ = __hash__ = fails


class Loud:
    """Has much to say of itself."""

    def __repr__(self) -> str:
        return "\x1b[2J\n" * 10**6


@Sequence.register
class Liar:
    """A sequence with fewer, more or endless entries than it says."""

    def __init__(self, says: int, has: float) -> None:
        self.says, self.has = says, has

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[int]:
        yield from itertools.takewhile(lambda number: number <= self.has, itertools.count(1))

    def __getitem__(self, index: Any) -> Any:
        return 1


@Sequence.register
class Unreadable(Raises):
    """A sequence that cannot be read."""


def nested(levels: int) -> list[Any]:
    """A list in a list, and so on."""
    made: list[Any] = [1]
    for _ in range(levels):
        made = [made]
    return made


ITSELF: list[Any] = [1]
ITSELF.append(ITSELF)
enormous = st.sampled_from([2**31 - 1, 2**31, 2**63, 10**400, 10**4299, -(10**4299)])
numbers = st.integers(-2, 5) | enormous
odd = st.sampled_from([
    None, True, 1.5, float("nan"), float("inf"), -0.0, 1j, Fraction(3, 2), Decimal(2), "same",
    "valid", "m01", "\udcff", "\x1b[2J", "\0", b"1", bytearray(2), memoryview(b"12"), {}, {1: 2},
    {1}, [], range(3), range(2), range(10**9), range(10**18), np.int8(2), np.True_, np.float32(1),
    np.float64("nan"), np.array(2), np.array(None), np.ones(2), np.arange(2), np.ma.ones(2),
    np.datetime64(1, "s"), np.str_("m01"), object(), int, len, slice(3), ..., NotImplemented,
    "x" * 10**6,
])  # fmt: skip
# Made anew for each call: what can be read once, and what Hypothesis must not compare.
once = st.sampled_from([
    Raises, Loud, lambda: [Loud(), 1], lambda: (Raises(), 1), lambda: Liar(2, 1),
    lambda: Liar(2, 3), lambda: nested(10**4), lambda: ITSELF, lambda: [1] * 10**6,
    lambda: Liar(2, math.inf), lambda: Liar(sys.maxsize, math.inf), lambda: Liar(0, 2), Unreadable,
    lambda: itertools.count(1), lambda: iter([1, 1]), lambda: (n for n in range(2)),
    lambda: map(int, "12"), lambda: zip(range(2), range(2), strict=True),
]).map(lambda make: make())  # fmt: skip
odd = odd | once


class Drawn:
    """Values drawn for a call, which Hypothesis can show whatever is in it."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __repr__(self) -> str:
        texts = [
            ", ".join(f"{name}={shown(one)}" for name, one in value.items())
            if isinstance(value, dict)
            else ", ".join(map(shown, value))
            if isinstance(value, list)
            else shown(value)
            for value in self.values
        ]
        return f"Drawn({'; '.join(texts)})"


CHANNELS = st.integers(1, 3)
LAUNCHED = st.sampled_from(["steps", "shared_bytes"])
setting = st.recursive(numbers | odd, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner))
dtypes = st.sampled_from(["f4"] * 4 + ["f2", "f8", "i4", "?", "c8", ">f4", "O"])


@st.composite
def arrays(draw: st.DrawFn, usual: tuple[int, ...]) -> np.ndarray:
    """Draw arrays of about the usual shape; some do not own the elements that they claim."""
    sizes = [draw(st.sampled_from([n] * 6 + [0, 1, 3])) for n in usual]
    shape = sizes[draw(st.sampled_from([0] * 6 + [1, 2])) :]
    if draw(st.integers(0, 9)) == 0:
        return np.broadcast_to(np.float32(1), [2**12] * len(shape))
    made = np.ones(shape, draw(dtypes))
    return np.ma.array(made) if draw(st.integers(0, 9)) == 0 else made


@st.composite
def calls(draw: st.DrawFn) -> Drawn:
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
    return Drawn(function, given)


def assert_short(refusal: Exception) -> None:
    """One sentence: what is given, and the rule behind a colon or how much it needs."""
    said = str(refusal)
    assert ": " in said or " needs " in said
    assert "\n" not in said
    assert len(said) < 300


@IN_TIME
@given(calls())
def test_a_call_ends_in_an_answer_or_one_sentence(call):
    function, given = call.values
    patience, simulated_time.ANNOUNCED_FROM_SECONDS = simulated_time.ANNOUNCED_FROM_SECONDS, 10
    # What takes minutes is announced, and not waited for.
    say, simulated_time.say = simulated_time.say, pytest.skip
    try:
        result = function(**given)
    except pytest.skip.Exception:
        return
    except REFUSALS as error:
        assert_short(error)
    else:
        assert np.isfinite(result).all()
    finally:
        simulated_time.ANNOUNCED_FROM_SECONDS, simulated_time.say = patience, say


@IN_TIME
@given(st.lists(setting, min_size=6, max_size=9).map(Drawn))
@example(Drawn([1, 1, 2**31 - 1, 2**31 - 1, 1, 1]))
def test_a_problem_ends_in_one_too(sizes):
    try:
        str(ConvProblem(*sizes.values[0]))
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
    st.sampled_from(["auto", "m01", "m11"]),  # m11 packs the filter and transforms the input
    st.booleans(),
    st.none() | st.sampled_from(LAYOUTS),
)
def test_answers_are_those_of_unfold_einsum(call, stage, alone, laid_out):
    """Answers are right for a batch or one image; in a new array, or one of any layout."""
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
@given(
    st.builds(
        Drawn,
        st.lists(setting, min_size=2, max_size=2),
        st.dictionaries(LAUNCHED, setting, max_size=2),
    )
)
@example(Drawn([1, range(10**12)], {}))
@example(Drawn(["12", 1.5], {"steps": (1,), "shared_bytes": None}))
def test_a_launch_ends_in_one_too(launch):
    sizes, given = launch.values
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
        trace_stage("m03", **odd)
    assert_short(refused.value)


def opened(**given: Any) -> None:
    """Open a simulator, and close it."""
    with simulator(**given):
        pass


SMALL = ConvProblem(1, 1, 3, 3, 1, 2)
OTHERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ConvProblem": (ConvProblem, dict.fromkeys(
        ("batch", "in_channels", "height", "width", "out_channels", "kernel_size"), 2)),
    "Gradient": (Gradient, {"problem": SMALL, "of": "input"}),
    "Tile": (Tile, {"M_B": 8, "N_B": 8, "K_B": 8, "M_T": 1, "N_T": 1}),
    "plan": (plan, {"problem": SMALL, "engine": "simulator", "stage": "m03", "tile": None,
                    "workspace_limit": None}),
    "simulate": (simulate, {"kernel": write, "grid": 1, "block": 2, "shared_bytes": 0,
                            "steps": None, "typed": True}),
    "trace": (trace, {"kernel": write, "grid": 1, "block": 2, "shared_bytes": 0, "block_shown": 0,
                      "compiled": None}),
    "trace_stage": (trace_stage, {"stage": "m01", "problem": SMALL, "tile": None, "block_shown": 0,
                                  "compiled": None, "seed": 0}),
    "check": (check, {"kernel": "absent.py::kernel", "stage": "m01", "seed": 0, "model": None}),
    "open_trace": (open_trace, {"path": "absent.json"}),
    "simulator": (opened, {"stop": True, "steps": None, "typed": True}),
    "unfold": (unfold, {"input": np.ones((1, 1, 3, 3), np.float32), "kernel_size": 2}),
}  # fmt: skip
LAUNCHING = ("simulate", "trace")


@st.composite
def other_calls(draw: st.DrawFn) -> Drawn:
    """A function, its arguments, up to two of them replaced, and those of a kernel."""
    name = draw(st.sampled_from([*OTHERS]))
    given = dict(OTHERS[name][1])
    for argument in draw(st.lists(st.sampled_from([*given]), min_size=1, max_size=2)):
        given[argument] = draw(setting)
    arguments = [np.ones(4, np.float32), 4]
    if draw(st.booleans()):
        arguments[draw(st.integers(0, 1))] = draw(setting)
    return Drawn(name, given, arguments if name in LAUNCHING else [])


@IN_TIME
@given(other_calls())
def test_every_other_call_ends_in_one_too(call):
    name, given, arguments = call.values
    kernel = [given.pop(one) for one in ("kernel", "grid", "block")] if name in LAUNCHING else []
    if kernel:
        with suppress(TypeError, ValueError):  # thousands of blocks are right, and take long
            if prod(three(kernel[1], "grid")) > 99:
                kernel[1] = 1
    try:
        OTHERS[name][0](*kernel, *arguments, **given)
    except (SimulationError, OSError):
        pass
    except REFUSALS as error:
        assert_short(error)


@pytest.mark.parametrize(
    "padding", [range(10**9), Liar(2, math.inf), Unreadable(), itertools.count()], ids=type
)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "kernel_size"])
def test_a_setting_is_refused_without_a_look_at_all_of_it(name, padding):
    given = {"stride": 1, "padding": 0, "dilation": 1, "kernel_size": 2} | {name: padding}
    started = process_time()
    with pytest.raises((TypeError, ValueError), match=f"{name} is .*: it must be") as refused:
        ConvProblem(1, 1, 4, 4, 1, **given)
    assert process_time() - started < 1
    assert_short(refused.value)
