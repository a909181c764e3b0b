"""The second compiler: it is chosen by name, and makes the same of stages as the first."""

from __future__ import annotations

import numpy as np
import pytest
from cuda.bindings import driver
from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it compiles nothing", allow_module_level=True)

from pretended_driver import KERNEL, PROBLEM, SHAPES, arrays_at
from typer.testing import CliRunner

from convlab.commands.cli import app
from convlab.ladder import production_program, stage_named
from convlab.measuring.machine import environment
from convlab.measuring.machine_code import PROBLEMS, lint_stage
from convlab.running.engines import (
    EngineUnavailable,
    address_of,
    choose,
    compiler,
    offline,
    prepacked,
)
from convlab.running.engines.compiler import MLIR, NAMES, VARIABLE, MlirKernel

CONV9 = {"conv9": PROBLEMS["conv9"]}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("clang", "CONVLAB_COMPILER is 'clang': it must be 'numba-cuda' or 'mlir'"),
        (MLIR, "CONVLAB_COMPILER is 'mlir', but numba-cuda-mlir is not installed: run "),
    ],
)
def test_a_compiler_that_is_not_here_is_refused_in_a_sentence(name, says, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    monkeypatch.setattr(compiler, "find_spec", lambda module: None)
    with pytest.raises((ValueError, EngineUnavailable)) as refused:
        choose()
    assert str(refused.value).startswith(says)
    if name == MLIR:
        assert choose("simulator").name == "simulator"  # which compiles nothing
    for command in (["lint", "m01"], ["ladder", "--stage", "m01"]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert says in result.stderr


def test_a_stored_command_names_the_compiler(monkeypatch):
    for chosen, command in (
        ("", "convlab lint m01"),
        (MLIR, "CONVLAB_COMPILER=mlir convlab lint m01"),
    ):
        monkeypatch.setenv(VARIABLE, chosen)
        assert environment(["lint", "m01"])["command"] == command


@pytest.mark.gate
@pytest.mark.parametrize("name", ["c02_receptive_field", "m06", "t01", "t05", "grouped"])
def test_both_make_the_same_accesses(name, monkeypatch):
    pytest.importorskip("numba_cuda_mlir", reason="needs numba-cuda-mlir, which is optional")
    each = []
    for chosen in NAMES:
        monkeypatch.setenv(VARIABLE, chosen)
        each.append(list(lint_stage(stage_named(name), CONV9, ((9, 0),))))
    for theirs, ours in zip(*each, strict=True):
        for fact in ("kernel", "grid", "block", "shared_bytes", "wide", "float64", "spill_bytes"):
            assert getattr(theirs, fact) == getattr(ours, fact), (ours, fact)
        assert bool(theirs.multiply_adds) == bool(ours.multiply_adds)


@pytest.mark.gate
def test_its_kernels_take_as_many_parameters_as_are_laid_out():
    """As the machine code says: the attribute 0x19 of a kernel, 16 bits."""
    pytest.importorskip("numba_cuda_mlir", reason="needs numba-cuda-mlir, which is optional")
    program = production_program(stage_named("i01_im2col"), PROBLEM)
    shapes = SHAPES | {buffer.name: buffer.shape for buffer in program.buffers}
    for step in program.kernels:
        kinds = compiler.signature(step, program)
        code, _ = offline._built_by(MLIR, step.kernel, kinds, (9, 0), False)
        laid_out = [MlirKernel.laid_out(_shape(argument, shapes), 0) for argument in step.arguments]
        size = 8 * sum(map(len, laid_out))
        assert b"\x03\x19" + size.to_bytes(2, "little") in code


def _shape(argument, shapes):
    return prepacked._place(argument, shapes)[2]


def test_an_array_whose_indices_it_would_read_as_negative_is_refused():
    most = 2**16 - 1
    assert MlirKernel.laid_out((2**15, most), 64) == [64, 64, 0, 2**15, most, most, 1]
    with pytest.raises(ValueError, match=r"^an array has 2,147,483,648 elements: .* at most 2,147"):
        MlirKernel.laid_out((2**15, 2**16), 64)


def test_its_kernels_are_launched_alone_and_in_a_plan_s_graph(fake):
    program = production_program(stage_named("m01"), PROBLEM)
    (step,) = program.launches
    kernel = object.__new__(MlirKernel)
    kernel._driver, kernel._name, kernel.handle = fake, "direct", driver.CUkernel(KERNEL)
    arrays = arrays_at(0x7000_0000)
    used = [arrays[str(argument)] for argument in step.arguments]
    expected = []
    for argument, array in zip(step.arguments, used, strict=True):
        shape = _shape(argument, SHAPES)
        strides = [stride // 4 for stride in np.empty(shape, np.float32).strides]
        expected += [*[address_of(array)] * 2, 0, *shape, *strides]
    fake.parameters = [len(expected)]
    placed = zip(
        (_shape(one, SHAPES) for one in step.arguments), map(address_of, used), strict=True
    )
    kernel.launch(step, placed, 7)
    packed = prepacked.prepack([(step, kernel)], SHAPES, {})
    assert packed.one_graph
    packed(*arrays_at(0x6000_0000).values(), stream=7)  # then the graph is handed other addresses
    packed(*arrays.values(), stream=7)
    alone, _, in_graph = fake.launches
    assert alone == in_graph
    assert alone["values"] == expected
    assert alone["grid"] == (*step.grid, 1, 1)[:3]
