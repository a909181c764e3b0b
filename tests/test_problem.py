"""ConvProblem: shapes against window positions counted one by one, and what it refuses."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import pair, problems

from convlab.problem import ConvProblem

pytestmark = pytest.mark.same_in_cudasim

USUAL = dict(batch=2, in_channels=3, height=9, width=7, out_channels=5, kernel_size=3)


def make(**changes):
    return ConvProblem(**USUAL | changes)


def window_starts(padded, window, stride):
    """Every place of an axis where a window starts, found by trying all of them."""
    return [start for start in range(0, padded, stride) if start + window <= padded]


def pixels_met(size, before, starts, taps, dilation):
    """Every pixel of an axis (padding left out) that some window meets, tap by tap."""
    met = {start + tap * dilation - before for start in starts for tap in range(taps)}
    return {pixel for pixel in met if 0 <= pixel < size}


@given(problems(max_macs=200))
def test_drawn_problems_are_as_small_as_asked_for(problem):
    assert problem.M * problem.N * problem.K <= 200


@given(problems())
def test_shapes_and_counts_are_those_of_windows_counted_one_by_one(problem):
    p = problem
    (top, bottom), (left, right) = p.padding
    window_h = len(range(0, p.H_f * p.d_h, p.d_h)) * p.d_h - (p.d_h - 1)
    window_w = len(range(0, p.W_f * p.d_w, p.d_w)) * p.d_w - (p.d_w - 1)
    rows = window_starts(top + p.height + bottom, window_h, p.s_h)
    columns = window_starts(left + p.width + right, window_w, p.s_w)
    assert p.output_shape == (p.batch, p.out_channels, len(rows), len(columns))
    assert p.window_shape == (window_h, window_w)

    terms = p.in_channels * p.kernel_size[0] * p.kernel_size[1]
    outputs = p.batch * p.out_channels * len(rows) * len(columns)
    assert terms == p.K
    assert outputs == p.M * p.N
    assert p.flops == 2 * outputs * terms

    met_h = pixels_met(p.height, top, rows, p.H_f, p.d_h)
    met_w = pixels_met(p.width, left, columns, p.W_f, p.d_w)
    inputs = p.batch * p.in_channels * len(met_h) * len(met_w)
    assert p.least_bytes == 4 * (inputs + p.out_channels * terms + outputs)
    assert p.flops_per_byte == p.flops / p.least_bytes


@given(problems())
def test_the_papers_names_are_the_same_numbers(problem):
    p = problem
    assert (
        p.input_shape == (p.N_i, p.C_i, p.H_i, p.W_i) == (p.batch, p.in_channels, p.height, p.width)
    )
    assert p.weight_shape == (p.C_o, p.C_i, p.H_f, p.W_f) == (p.M, p.in_channels, *p.kernel_size)
    assert p.output_shape == (p.N_i, p.C_o, p.H_o, p.W_o)
    assert (p.s_h, p.s_w, p.d_h, p.d_w) == (*p.stride, *p.dilation)
    assert (p.p_h, p.p_w) == (p.padding[0][0], p.padding[1][0])
    assert p.N_i * p.H_o * p.W_o == p.N


@given(pair(1, 9), pair(1, 5), pair(1, 3))
def test_same_padding_keeps_the_size_and_puts_the_odd_zero_last(size, kernel_size, dilation):
    p = ConvProblem(1, 1, *size, 1, kernel_size, padding="same", dilation=dilation)
    assert (p.H_o, p.W_o) == size
    for before, after in p.padding:
        assert after - before in (0, 1)


def test_valid_padding_is_none():
    assert make(padding="valid") == make(padding=0)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        pytest.param(1, ((1, 1), (1, 1)), id="int"),
        pytest.param((1, 2), ((1, 1), (2, 2)), id="pair"),
        pytest.param([1, 2], ((1, 1), (2, 2)), id="list"),
        pytest.param(((1, 2), (3, 4)), ((1, 2), (3, 4)), id="pair of pairs"),
        pytest.param([[1, 2], [3, 4]], ((1, 2), (3, 4)), id="lists, as JSON has them"),
        pytest.param(((1, 2), 3), ((1, 2), (3, 3)), id="a pair and an int"),
        pytest.param(np.int64(1), ((1, 1), (1, 1)), id="NumPy integer"),
        pytest.param((np.int8(1), np.uint16(2)), ((1, 1), (2, 2)), id="NumPy integers"),
    ],
)
def test_padding_is_held_as_two_pairs(given, held):
    assert make(padding=given).padding == held


def test_equal_problems_are_equal_however_they_were_given():
    one = make(stride=2, padding=1)
    other = make(
        batch=np.int32(2), kernel_size=[3, 3], stride=(np.int64(2), 2), padding=((1, 1), (1, 1))
    )
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == repr(other)
    assert type(other.batch) is type(other.stride[0]) is int
    assert one != make(stride=2, padding=0)


@given(problems(), st.integers(1, 9))
def test_a_problem_can_be_rebuilt_replaced_copied_and_pickled(problem, batch):
    assert eval(repr(problem)) == problem
    assert ConvProblem(**dataclasses.asdict(problem)) == problem
    assert copy.deepcopy(problem) == pickle.loads(pickle.dumps(problem)) == problem
    replaced = dataclasses.replace(problem, batch=batch)
    assert replaced.batch == batch
    assert dataclasses.replace(replaced, batch=problem.batch) == problem


def test_a_problem_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().batch = 3


def test_str_is_shapes_and_what_is_unusual():
    assert str(make()) == "2x3x9x7 * 5x3x3x3"
    assert str(make(stride=2, padding=1)) == "2x3x9x7 * 5x3x3x3, stride 2, padding 1"
    assert str(make(stride=(2, 1), padding=((1, 0), (0, 0)), dilation=2)) == (
        "2x3x9x7 * 5x3x3x3, stride (2, 1), padding ((1, 0), (0, 0)), dilation 2"
    )


def test_least_bytes_of_a_huge_axis_needs_no_list_of_its_pixels():
    p = ConvProblem(1, 1, 1, 2**31 - 1, 1, (1, 3), stride=(1, 5))
    assert p.least_bytes == 4 * (3 * p.W_o + 3 + p.W_o)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"batch": 0}, ValueError, "batch is 0: .* at least 1", id="zero batch"),
        pytest.param({"batch": -1}, ValueError, "batch is -1: .* at least 1", id="negative batch"),
        pytest.param({"batch": True}, TypeError, "batch is True: .* not bool", id="bool"),
        pytest.param(
            {"batch": np.True_}, TypeError, "batch is (np.)?True_?: .* not bool", id="NumPy bool"
        ),
        pytest.param({"batch": 1.0}, TypeError, "batch is 1.0: .* not float", id="float"),
        pytest.param({"batch": None}, TypeError, "batch is None: .* not NoneType", id="None"),
        pytest.param({"batch": 2**31}, ValueError, "batch is 2147483648: .* 2..31", id="too many"),
        pytest.param(
            {"in_channels": "3"}, TypeError, "in_channels is '3': .* not str", id="string"
        ),
        pytest.param(
            {"height": np.float32(9)}, TypeError, "height is .*9.0.*: .* float32", id="NumPy float"
        ),
        pytest.param({"width": 0}, ValueError, "width is 0: .* at least 1", id="no width"),
        pytest.param({"width": (7,)}, TypeError, r"width is \(7,\): .* not tuple", id="tuple"),
        pytest.param(
            {"out_channels": 0}, ValueError, "out_channels is 0: .* at least 1", id="no filters"
        ),
        pytest.param(
            {"kernel_size": 0}, ValueError, "kernel_size is 0: .* at least 1", id="no filter"
        ),
        pytest.param(
            {"kernel_size": (3, 0)}, ValueError, r"kernel_size is \(3, 0\): .* 1", id="flat filter"
        ),
        pytest.param(
            {"kernel_size": (3, 3, 3)},
            ValueError,
            r"kernel_size is \(3, 3, 3\): .* 3 long",
            id="3-D",
        ),
        pytest.param(
            {"kernel_size": ()}, ValueError, r"kernel_size is \(\): .* 0 long", id="empty"
        ),
        pytest.param(
            {"kernel_size": (3, 2.5)}, TypeError, r"kernel_size is \(3, 2.5\): .* float", id="half"
        ),
        pytest.param(
            {"kernel_size": ((1, 2), 3)},
            TypeError,
            r"kernel_size is \(\(1, 2\), 3\): .* not tuple",
            id="nested filter",
        ),
        pytest.param({"stride": 0}, ValueError, "stride is 0: .* at least 1", id="no stride"),
        pytest.param({"stride": (1, -2)}, ValueError, r"stride is \(1, -2\): .* 1", id="backwards"),
        pytest.param({"stride": b"12"}, TypeError, "stride is b'12': .* bytes", id="bytes"),
        pytest.param({"stride": {1, 2}}, TypeError, r"stride is \{1, 2\}: .* set", id="unordered"),
        pytest.param({"dilation": 0}, ValueError, "dilation is 0: .* at least 1", id="no dilation"),
        pytest.param(
            {"dilation": (2, False)}, TypeError, r"dilation is \(2, False\): .* bool", id="False"
        ),
        pytest.param({"padding": -1}, ValueError, "padding is -1: .* at least 0", id="cropping"),
        pytest.param(
            {"padding": ((0, -1), (0, 0))},
            ValueError,
            r"padding is \(\(0, -1\), \(0, 0\)\): .* at least 0",
            id="cropping below",
        ),
        pytest.param(
            {"padding": (1, 2, 3, 4)},
            ValueError,
            r"padding is \(1, 2, 3, 4\): .* 4 long",
            id="flat",
        ),
        pytest.param(
            {"padding": ((1, 2), (3, 4), (5, 6))},
            ValueError,
            r"padding is \(\(1, 2\), \(3, 4\), \(5, 6\)\): .* \(\(top, bottom\), \(left, right\)\)",
            id="three axes",
        ),
        pytest.param(
            {"padding": ((1, 2, 3), 4)},
            ValueError,
            r"padding is \(\(1, 2, 3\), 4\): .* 3",
            id="uneven",
        ),
        pytest.param(
            {"padding": "full"}, ValueError, "padding is 'full': .* 'same' and 'valid'", id="word"
        ),
        pytest.param(
            {"padding": np.array([1, 2])}, TypeError, r"padding is array.*: .* ndarray", id="array"
        ),
        pytest.param(
            {"padding": "same", "stride": 2},
            ValueError,
            r"padding is 'same' with stride \(2, 2\): .* stride 1",
            id="same with a stride",
        ),
        pytest.param(
            {"kernel_size": (10, 3)},
            ValueError,
            r"kernel_size \(10, 3\) .* spans 10 pixels of height, .* has 9: ",
            id="filter too tall",
        ),
        pytest.param(
            {"dilation": (1, 4)},
            ValueError,
            r"kernel_size \(3, 3\) with dilation \(1, 4\) spans 9 pixels of width, .* has 7: ",
            id="filter too wide when dilated",
        ),
        pytest.param(
            {"padding": 2**31 - 1},
            ValueError,
            r"padding \(\(2147483647, 2147483647\), .* the height 4294967303: .* 2..31",
            id="padding beyond 32 bits",
        ),
        pytest.param(
            {"batch": 2**30, "in_channels": 2**30, "height": 2**10},
            ValueError,
            r"the input of shape \(1073741824, 1073741824, 1024, 7\) has \d+ elements: .* 2..63",
            id="input beyond 64 bits",
        ),
        pytest.param(
            {"in_channels": 2**30, "out_channels": 2**30},
            ValueError,
            r"the weight of shape \(1073741824, 1073741824, 3, 3\) has \d+ elements: .* 2..63",
            id="weight beyond 64 bits",
        ),
        pytest.param(
            {"batch": 2**29, "out_channels": 2**29},
            ValueError,
            r"the output of shape \(536870912, 536870912, 7, 5\) has \d+ elements: .* 2..63",
            id="output beyond 64 bits",
        ),
        pytest.param(
            {"in_channels": 2**28},
            ValueError,
            r"kernel_size \(3, 3\) over in_channels \d+ makes sums of 2415919104 terms: .* 2..31",
            id="sums beyond 32 bits",
        ),
    ],
)
def test_a_bad_problem_is_refused_in_one_sentence(changes, error, message):
    with pytest.raises(error, match=message) as raised:
        make(**changes)
    assert type(raised.value) is error
    assert "\n" not in str(raised.value)
