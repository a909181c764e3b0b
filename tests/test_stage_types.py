"""Stages of 16 bits and channels last: what they take, and what engines hand to kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from kernels import halves as halves_file
from kernels.halves import DIRECT_16
from typer.testing import CliRunner

from convlab import ConvProblem, ladder
from convlab.checking.checker import check_also
from convlab.commands.cli import app
from convlab.ladder import allowances, stage_named
from convlab.ladder.stage import Buffer, Launch
from convlab.measuring import ladder_run
from convlab.problems import workloads
from convlab.problems.number_types import FLOAT32, NUMBER_TYPES
from convlab.problems.oracle import Oracle, random_tensors
from convlab.running.engines import UNWRITTEN, choose
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.kernels import argument_types
from convlab.running.plans import Plan
from convlab.tracing import trace_stage

HALVES = ("bfloat16", "float16")
PROBLEM = ConvProblem(2, 3, 9, 7, 5, (3, 2), (2, 1), ((1, 0), (0, 2)), (1, 2))
of_halves = pytest.mark.parametrize("dtype", HALVES)


def halves(dtype, problem=PROBLEM):
    return replace(problem, dtype=dtype, channels_last=True)


# --- Stages and programs ------------------------------------------------------------------------


@of_halves
def test_a_stage_takes_its_types_and_its_layout_and_no_other(dtype):
    m01 = stage_named("m01")
    for stage, problem, says in (
        (m01, halves(dtype), f"dtype is {dtype}: it must be float32 for stage m01_direct"),
        (m01, replace(PROBLEM, channels_last=True),
         "channels_last is True: it must be False for stage m01_direct"),
        (DIRECT_16, PROBLEM,
         "dtype is float32: it must be bfloat16 or float16 for stage x01_halves"),
        (DIRECT_16, replace(PROBLEM, dtype=dtype),
         "channels_last is False: it must be True for stage x01_halves"),
        (DIRECT_16, replace(halves(dtype), in_channels=4, out_channels=2, groups=2),
         "groups is 2: it must be 1 for stage x01_halves; stage 'grouped' computes any number"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{says}$"):
            stage.prepare(problem, stage.tiny_tile)
        assert stage.why_not(problem) == says
    assert DIRECT_16.why_not(halves(dtype)) is None
    assert m01.adapted(halves(dtype)) == PROBLEM
    assert DIRECT_16.adapted(PROBLEM) == halves("bfloat16")
    assert DIRECT_16.adapted(halves(dtype)) == halves(dtype)
    assert not DIRECT_16.needs_library


@of_halves
def test_a_program_knows_the_types_of_its_arrays(dtype):
    program = DIRECT_16.prepare(halves(dtype), None)
    names = ("input", "weight", "bias", "output", "packed")
    assert program.dtypes == dict.fromkeys(names, "uint16")
    assert program.workspace_bytes == 2 * math.prod(halves(dtype).weight_shape)
    main = program.launches[-1]
    found = [(str(kind.dtype), kind.ndim, kind.layout) for kind in argument_types(main, program)]
    assert found == [("uint16", 4, "C"), ("uint16", 1, "C"), ("uint16", 1, "C"), ("uint16", 1, "C")]
    m08 = stage_named("m08")
    of_floats = m08.prepare(PROBLEM, m08.tiny_tile)
    assert {*of_floats.dtypes.values()} == {"float32"}


def test_buffers_have_types_and_launches_dynamic_shared_memory():
    kinds = ("uint8", "uint16", "uint32", "float32", "uint64")
    assert [Buffer("b", (3, 2), kind).nbytes for kind in kinds] == [6, 12, 24, 24, 48]
    with pytest.raises(ValueError, match=r"^dtype of buffer b is 'bfloat16': it must be one of fl"):
        Buffer("b", (1,), "bfloat16")
    kernel = stage_named("m01").prepare(PROBLEM, None).launches[0].kernel
    assert Launch(kernel, (1,), (1,), (), 227 * 1024).shared_bytes == 232448
    with pytest.raises(ValueError, match=r"^shared_bytes is 232449: a block of direct has at most"):
        Launch(kernel, (1,), (1,), (), 227 * 1024 + 1)
    with pytest.raises(ValueError, match=r"^shared_bytes is -1: it must be at least 0"):
        Launch(kernel, (1,), (1,), (), -1)


# --- Engines ------------------------------------------------------------------------------------


def computed(problem, engine, tensors):
    arrays = [engine.to_device(one, problem.dtype) for one in tensors]
    output = engine.empty(problem.output_shape, problem.dtype)
    ready = Plan(problem, DIRECT_16, None, engine)
    ready(*arrays[:2], output, *arrays[2:])
    again = engine.empty(problem.output_shape, problem.dtype)
    ready.for_weight(*arrays[1:])(arrays[0], again)
    found = engine.to_host(output, problem.dtype)
    np.testing.assert_array_equal(found, engine.to_host(again, problem.dtype))
    return found


@of_halves
@pytest.mark.parametrize("name", ["simulator", "cudasim"])
def test_16_bit_numbers_go_through_an_engine(name, dtype):
    engine = CudaSim() if name == "cudasim" else choose(name)
    problem = halves(dtype, ConvProblem(2, 3, 4, 5, 3, (3, 2), (2, 1), padding=1))
    for integers in (False, True):
        tensors = random_tensors(problem, 0, integers=integers)
        output = computed(problem, engine, tensors)
        assert output.dtype == problem.number_type.numpy
        result = Oracle(problem, *tensors).check(output, **allowances(DIRECT_16, problem))
        assert result.ok, result


@of_halves
def test_a_new_array_of_an_engine_holds_no_right_answer(dtype):
    engine = choose("simulator")
    made = engine.empty((4,), dtype)
    assert np.isnan(made[::2]).all()
    assert (made[1::2] == UNWRITTEN).all()
    assert np.isnan(engine.empty((2,), "uint16").view(NUMBER_TYPES[dtype].numpy)).all()
    assert engine.empty((1,), "uint64")[0] == 2**64 - 1
    assert engine.empty((1,)).dtype == FLOAT32.numpy


# --- What runs stages ---------------------------------------------------------------------------


@pytest.fixture
def with_halves(monkeypatch):
    """The ladder with a stage of 16 bits."""
    monkeypatch.setattr(ladder, "LADDER", (*ladder.LADDER, DIRECT_16))


@of_halves
def test_the_ladder_runs_a_stage_of_16_bits(dtype):
    problem = halves(dtype, ConvProblem(2, 3, 4, 5, 3, (3, 2), (2, 1), padding=1))
    tensors = random_tensors(problem, 0)
    (result,) = ladder_run.run(problem, [DIRECT_16], choose("simulator"), tensors)
    assert result.ok, result.error
    assert result.error_over_bound <= 1
    document = ladder_run.as_json(problem, choose("simulator"), [result])
    assert document["problem"]["dtype"] == dtype
    assert document["problem"]["channels_last"] is True


SMALL = ConvProblem(1, 2, 4, 4, 3, 2)


def test_a_trace_of_a_stage_of_16_bits_has_requests_of_two_bytes(with_halves, monkeypatch):
    monkeypatch.setattr(workloads, "MODEL", SMALL)
    made = trace_stage("x01")
    assert not any(launch.findings for launch in made.launches)
    assert made.about["problem"] == f"{DIRECT_16.adapted(SMALL)}"
    copy = made.launches[0]
    loads = [one for one in copy.of(space="global") if one.operation == "load"]
    assert copy.total("sectors", loads) == math.ceil(2 * 3 * 2 * 2 * 2 / 32)


def test_a_kernel_is_checked_as_a_stage_of_16_bits(with_halves):
    def prepare(problem):
        return halves_file.prepare(problem, None)

    answer, findings = check_also(prepare, "x01", DIRECT_16.adapted(SMALL))
    assert answer.ok, answer
    assert findings == ()


# --- Commands -----------------------------------------------------------------------------------


def ran(*words):
    return CliRunner().invoke(app, [*words])


def test_the_ladder_takes_a_type_and_a_layout(with_halves, monkeypatch):
    monkeypatch.setitem(workloads.DEFAULTS, "simulator", SMALL)
    words = "ladder", "--engine", "simulator", "--dtype", "float16"
    done = ran(*words, "--channels-last", "--stage", "x01")
    assert done.exit_code == 0, done.output
    assert f"{halves('float16', SMALL)} -> 1x3x3x3" in done.stdout
    assert "x01_halves" in done.stdout
    refused = ran(*words, "--stage", "x01")
    assert refused.exit_code == 2
    said = " ".join(refused.output.split())
    assert "channels_last is False: it must be True for stage x01_halves (--dtype, --ch" in said
    nobody = ran(*words)
    assert nobody.exit_code == 2
    assert f"no stage takes {replace(SMALL, dtype='float16')}" in " ".join(nobody.output.split())
    assert "it must be one of float32, float16, bfloat16" in " ".join(
        ran("ladder", "--engine", "simulator", "--dtype", "half").output.split()
    )


def test_a_trace_and_a_check_take_a_type(with_halves, monkeypatch):
    monkeypatch.setitem(workloads.DEFAULTS, "simulator", SMALL)
    done = ran("trace", "x01", "--dtype", "float16", "--json", "-")
    assert done.exit_code == 0, done.output
    assert "float16, channels last" in done.stdout
    wrong = ran("check", "kernels/halves.py::prepare", "--as", "x01", "--dtype", "float32")
    assert wrong.exit_code == 2
    said = " ".join(wrong.output.split())
    assert "dtype is 'float32': it must be bfloat16 or float16 for x01_halves" in said
