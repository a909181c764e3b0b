"""ConvProblem: shapes against window positions counted one by one, and what it refuses."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import pair, problems

from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import GPU_DEFAULT, LAYER_NAMES, paper_layer

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


@given(problems(max_macs=1500))
def test_shapes_and_counts_are_those_of_windows_counted_one_by_one(problem):
    p = problem
    assert p.M * p.N * p.K <= 1500  # as small as asked for
    (top, bottom), (left, right) = p.padding
    window_h, window_w = p.H_f * p.d_h - (p.d_h - 1), p.W_f * p.d_w - (p.d_w - 1)
    rows = window_starts(top + p.height + bottom, window_h, p.s_h)
    columns = window_starts(left + p.width + right, window_w, p.s_w)
    assert p.output_shape == (p.batch, p.out_channels, len(rows), len(columns))
    assert p.output_shape == (p.N_i, p.C_o, p.H_o, p.W_o)
    assert p.window_shape == (window_h, window_w)
    assert (p.s_h, p.s_w, p.d_h, p.d_w) == (*p.stride, *p.dilation)
    assert (p.p_h, p.p_w) == (top, left)
    assert p.input_shape == (p.N_i, p.C_i, p.H_i, p.W_i)
    assert p.weight_shape == (p.C_o, p.C_i, p.H_f, p.W_f) == (p.M, p.C_i, *p.kernel_size)

    terms = p.in_channels * p.kernel_size[0] * p.kernel_size[1]
    outputs = p.batch * p.out_channels * len(rows) * len(columns)
    assert (terms, outputs) == (p.K, p.M * p.N)
    assert p.flops == 2 * outputs * terms

    met_h = pixels_met(p.height, top, rows, p.H_f, p.d_h)
    met_w = pixels_met(p.width, left, columns, p.W_f, p.d_w)
    inputs = p.batch * p.in_channels * len(met_h) * len(met_w)
    assert p.least_bytes == 4 * (inputs + p.out_channels * terms + outputs)
    assert p.flops_per_byte == p.flops / p.least_bytes


@given(pair(1, 9), pair(1, 5), pair(1, 3))
def test_same_padding_keeps_the_size_and_puts_the_odd_zero_last(size, kernel_size, dilation):
    p = ConvProblem(1, 1, *size, 1, kernel_size, padding="same", dilation=dilation)
    assert (p.H_o, p.W_o) == size
    for before, after in p.padding:
        assert after - before in (0, 1)


@pytest.mark.parametrize(
    ("given", "held"),
    [
        (np.int64(1), ((1, 1), (1, 1))),
        ((np.int8(1), 2), ((1, 1), (2, 2))),
        ([[1, 2], [3, 4]], ((1, 2), (3, 4))),
        (((1, 2), 3), ((1, 2), (3, 3))),
        ("valid", ((0, 0), (0, 0))),
    ],
    ids=str,
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
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.batch = 3
    replaced = dataclasses.replace(problem, batch=batch)
    assert replaced.batch == batch
    assert dataclasses.replace(replaced, batch=problem.batch) == problem


def test_str_is_shapes_and_what_is_unusual():
    assert str(make(padding=1)) == "2x3x9x7 * 5x3x3x3, padding 1"
    assert str(make(stride=(2, 1), padding=((1, 0), (0, 0)), dilation=2)) == (
        "2x3x9x7 * 5x3x3x3, stride (2, 1), padding ((1, 0), (0, 0)), dilation 2"
    )


def test_least_bytes_of_a_huge_axis_needs_no_list_of_its_pixels():
    p = ConvProblem(1, 1, 1, 2**31 - 1, 1, (1, 3), stride=(1, 5))
    assert p.least_bytes == 4 * (3 * p.W_o + 3 + p.W_o)


# What is changed, and the name, the value and the rule that the sentence gives.
WRONG_TYPES = [
    ({"batch": True}, "batch is True: .* not bool"),
    ({"batch": np.True_}, "batch is (np.)?True_?: .* not bool"),
    ({"height": np.float32(9)}, "height is .*9.0.*: .* float32"),
    ({"width": (7,)}, r"width is \(7,\): .* not tuple"),
    ({"kernel_size": (3, 2.5)}, r"kernel_size is \(3, 2.5\): .* float"),
    ({"stride": {1, 2}}, r"stride is \{1, 2\}: .* set"),
    ({"padding": np.array([1, 2])}, r"padding is array.*: .* ndarray"),
]
WRONG_VALUES = [
    ({"batch": 0}, "batch is 0: .* at least 1"),
    ({"batch": 2**31}, "batch is 2147483648: .* 2..31"),
    ({"kernel_size": (3, 0)}, r"kernel_size is \(3, 0\): .* 1"),
    ({"kernel_size": (3, 3, 3)}, r"kernel_size is \(3, 3, 3\): .* 3 long"),
    ({"padding": -1}, "padding is -1: .* at least 0"),
    ({"padding": ((0, -1), (0, 0))}, r"padding is \(\(0, -1\), \(0, 0\)\): .* at least 0"),
    ({"padding": ((1, 2), (3, 4), (5, 6))}, r"padding is .*6\)\): .* \(\(top, bottom\), "),
    ({"padding": ((1, 2, 3), 4)}, r"padding is \(\(1, 2, 3\), 4\): .* 3"),
    ({"padding": "full"}, "padding is 'full': .* 'same' and 'valid'"),
    ({"padding": "same", "stride": 2}, r"padding is 'same' with stride \(2, 2\): .* stride 1"),
    ({"kernel_size": (10, 3)}, r"kernel_size \(10, 3\) .* 10 pixels of height, .* has 9: "),
    ({"dilation": (1, 4)}, r"dilation \(1, 4\) spans 9 pixels of width, .* has 7: "),
    ({"padding": 2**31 - 1}, r"padding \(\(2147483647, 2.* height 4294967303: .* 2..31"),
    ({"batch": 2**30, "in_channels": 2**30, "height": 2**10}, r"the input .* \d+ elem.* 2..63"),
    ({"in_channels": 2**30, "out_channels": 2**30}, r"the weight .* \d+ elements: .* 2..63"),
    ({"batch": 2**29, "out_channels": 2**29}, r"the output .* \d+ elements: .* 2..63"),
    ({"in_channels": 2**28}, r"kernel_size \(3, 3\) over .* 2415919104 terms: .* 2..31"),
]


REFUSED = [(TypeError, *row) for row in WRONG_TYPES] + [(ValueError, *row) for row in WRONG_VALUES]


@pytest.mark.parametrize(("error", "changes", "names"), REFUSED)
def test_a_bad_problem_is_refused_in_one_sentence(error, changes, names):
    with pytest.raises(error, match=rf"^[^\n]*{names}[^\n]*$"):
        make(**changes)


# Problems with names; test_docs.py compares the twelve layers with Table 2 in the glossary.


def test_the_layers_are_the_tables_twelve_in_its_order():
    assert tuple(f"conv{number}" for number in range(1, 13)) == LAYER_NAMES
    assert paper_layer("Conv9", batch=4).batch == 4
    assert paper_layer("Conv9") == paper_layer("conv9") == GPU_DEFAULT
    with pytest.raises(ValueError, match="batch is 0"):
        paper_layer("conv9", batch=0)


@pytest.mark.parametrize("name", ["conv13", "conv0", "", None])
def test_another_name_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=f"layer is {name!r}: it must be one of conv1, .*, conv12"):
        paper_layer(name)
