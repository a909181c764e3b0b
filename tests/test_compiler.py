"""The second compiler: it is chosen by name, and makes the same of stages as the first."""

from __future__ import annotations

import gc
import subprocess
import threading
from contextlib import nullcontext

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it compiles nothing", allow_module_level=True)

from pretended_driver import PROBLEM, SHAPES, arrays_at, kernel_of, parameters_of
from typer.testing import CliRunner

from convlab.commands.cli import app
from convlab.ladder import production_program, stage_named
from convlab.measuring.machine import environment
from convlab.measuring.machine_code import PROBLEMS, lint_stage
from convlab.running import compilers
from convlab.running.compilers import MLIR, NAMES, VARIABLE
from convlab.running.engines import (
    EngineUnavailable,
    address_of,
    choose,
    compilation,
    device_functions,
    disassembly,
)
from convlab.running.engines.compilation import linked, numba_lto_ir
from convlab.running.engines.cubin import instruction_bytes
from convlab.running.engines.kernels import argument_types, compile_launch
from convlab.running.engines.launching import GpuArray, _part
from convlab.running.engines.packed_program import PackedProgram
from convlab.running.engines.parameters import array_parameters
from convlab.support import numba_shortcuts

CONV9 = {"conv9": PROBLEMS["conv9"]}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("clang", "CONVLAB_COMPILER is 'clang': it must be 'numba-cuda' or 'mlir'"),
        (MLIR, "CONVLAB_COMPILER is 'mlir', but numba-cuda-mlir is not installed: run "),
        ("", "numba-cuda, for which the kernels are written, is not installed: run "),
    ],
)
def test_a_compiler_that_is_not_here_is_refused_in_a_sentence(name, says, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    monkeypatch.setattr(compilers, "find_spec", lambda module: None)
    with pytest.raises((ValueError, EngineUnavailable)) as refused:
        choose()
    assert str(refused.value).startswith(says)
    if name != "clang":
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
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0), (10, 0), (12, 0)])
def test_kernels_take_as_many_parameters_as_are_laid_out(capability):
    """The machine code says how many."""
    program = production_program(stage_named("i01_im2col"), PROBLEM)
    shapes = SHAPES | {buffer.name: buffer.shape for buffer in program.buffers}
    for step in program.kernels:
        cubin = compile_launch(step, program, capability)
        arrays = [_part(argument, shapes, {}).shape for argument in step.arguments]
        laid_out = [array_parameters(cubin.layout, shape) for shape in arrays]
        assert cubin.parameter_bytes == 8 * sum(map(len, laid_out))
        assert step.name in cubin.name


def instructions_of_stage(name: str) -> list[bytes]:
    """The machine code of a stage's kernels, whose functions are new ones, without their names,
    which have numbers that count."""
    program = production_program(stage_named(name), PROBLEM)
    cubins = [compile_launch(step, program, (9, 0)) for step in program.kernels]
    return [instruction_bytes(cubin.code) for cubin in cubins]


@pytest.mark.gate
@pytest.mark.parametrize("name", ["m05", "t04"])
def test_shortcuts_through_numba_s_compiler_make_the_same_machine_code(name, monkeypatch):
    """Also with signatures that an earlier kernel has found."""
    monkeypatch.setattr(device_functions, "function_key", lambda function: None)  # anew each time
    numba_shortcuts._found.clear()
    cold, warm = (instructions_of_stage(name) for _ in range(2))
    monkeypatch.setattr(compilation, "numba_shortcuts", nullcontext)
    assert instructions_of_stage(name) == cold == warm


@pytest.mark.gate
def test_signatures_that_were_found_are_forgotten_where_they_are_too_many(monkeypatch):
    monkeypatch.setattr(device_functions, "function_key", lambda function: None)
    monkeypatch.setattr(numba_shortcuts, "MOST_SIGNATURES", 20)
    numba_shortcuts._found.clear()
    forgetful = instructions_of_stage("m01")
    assert 0 < len(numba_shortcuts._found) <= 20
    monkeypatch.undo()
    assert instructions_of_stage("m01") == forgetful


@pytest.mark.gate
def test_a_device_function_that_is_handed_over_once_makes_the_same_machine_code():
    program = production_program(stage_named("m11"), PROBLEM)
    step = program.kernels[-1]
    types = argument_types(step, program)
    library = compilation._compiled_by_numba(step.kernel, types, (9, 0), False)
    once, as_often_as_called = library.llvm_strs, [str(module) for module in library.modules]
    assert {*once} == {*as_often_as_called}
    assert len(once) < len(as_often_as_called)
    made = []
    for texts in (once, as_often_as_called):
        library._llvm_strs = texts
        library._ltoir_cache.clear()
        lto_ir = bytes(library.get_ltoir(cc=(9, 0)))
        cubin = linked(lto_ir, (9, 0), kernel=step.name, layout="numba")
        made.append(instruction_bytes(cubin.code))
    assert made[0] == made[1]


@pytest.mark.gate
@pytest.mark.parametrize("name", ["m14", "t04"])
def test_device_functions_that_are_compiled_once_make_the_same_machine_code(name, monkeypatch):
    instructions_of_stage(name)
    known = dict(device_functions._compiled)
    shared = instructions_of_stage(name)
    assert device_functions._compiled == known
    monkeypatch.setattr(device_functions, "function_key", lambda function: None)
    assert instructions_of_stage(name) == shared


INNER = """
@cuda.jit(device=True)
def inner(number):
    return number * float32({factor})
"""
OUTER = """
@cuda.jit(device=True)
def outer(number):
    return inner(number) + float32(1)
"""
KERNEL = """
@cuda.jit
def kernel(numbers):
    numbers[0] = outer(numbers[1])
"""


@pytest.mark.gate
def test_a_device_function_that_is_defined_again_is_compiled_again():
    """As in a notebook: not in a function that stays and calls it, either. On disk the kernel's key
    says that it has the new one."""
    names = {"cuda": cuda, "float32": float32}

    def instructions(*cells: str) -> bytes:
        for cell in cells:
            exec(cell, names)
        lto_ir = numba_lto_ir(names["kernel"], (float32[::1],), (9, 0))
        return instruction_bytes(linked(lto_ir, (9, 0), kernel="kernel", layout="numba").code)

    two, three = INNER.format(factor=2), INNER.format(factor=3)
    by_two = instructions(two, OUTER, KERNEL)
    by_three = instructions(three, KERNEL)
    assert by_three == instructions(three, OUTER, KERNEL) != by_two
    assert instructions(two, KERNEL) == by_two

    exec(OUTER, names)
    with compilation._device_of((9, 0)):  # by Numba, as for a launch of its own
        cuda.compile(names["kernel"].py_func, (float32[::1],), cc=(9, 0))
    assert names["outer"].overloads
    assert instructions(three, KERNEL) == by_three


@pytest.mark.gate
@pytest.mark.parametrize("kept", [False, True], ids=["of no kernel", "of the kernel before"])
def test_compiled_device_functions_outlive_the_kernels_that_had_them(kept, monkeypatch):
    """Numba takes functions from its target when their dispatcher ends."""
    monkeypatch.setattr(compilation, "_lowered", compilation._compiled_by_numba)  # keeps none

    def compiled():
        @cuda.jit(device=True)
        def seventh(number):
            return number / float32(7 + kept)

        @cuda.jit
        def kernel(numbers):
            numbers[0] = seventh(numbers[1])

        numba_lto_ir(kernel, (float32[::1],), (9, 0))
        return kernel

    kernels = [compiled()]
    for _ in range(3):
        kernels = [*kernels[:kept], compiled()]
        gc.collect()


def test_an_array_whose_indices_it_would_read_as_negative_is_refused():
    most = 2**16 - 1
    fits = array_parameters("memref", (2**15, most))
    assert fits.at(64) == [64, 64, 0, 2**15, most, most, 1]
    assert len(fits) == 7
    with pytest.raises(ValueError, match=r"^an array has 2,147,483,648 elements: .* at most 2,147"):
        array_parameters("memref", (2**15, 2**16))


def test_its_kernels_are_launched_alone_and_in_a_plan_s_graph(fake):
    program = production_program(stage_named("m01"), PROBLEM)
    (step,) = program.launches
    kernel = kernel_of(step, program, "memref")
    arrays = arrays_at(0x7000_0000)
    used = [arrays[str(argument)] for argument in step.arguments]
    shapes = [_part(argument, SHAPES, {}).shape for argument in step.arguments]
    expected = []
    for shape, array in zip(shapes, used, strict=True):
        strides = [stride // 4 for stride in np.empty(shape, np.float32).strides]
        expected += [*[address_of(array)] * 2, 0, *shape, *strides]
    fake.parameters = parameters_of(program, "memref")
    placed = zip(shapes, map(address_of, used), strict=True)
    kernel.launch(step, [GpuArray(shape, 4, address) for shape, address in placed], 7)
    packed = PackedProgram([(step, kernel)], SHAPES, {})
    assert packed.one_graph
    packed(*arrays_at(0x6000_0000).values(), stream=7)  # then the graph is handed other addresses
    packed(*arrays.values(), stream=7)
    alone, _, in_graph = fake.launches
    assert alone == in_graph
    assert alone["values"] == expected
    assert alone["grid"] == (*step.grid, 1, 1)[:3]


# What the compilers' parts say, and how threads share them.


@cuda.jit
def halves(output):
    output[0] = output[0] / 2.0


def test_the_compiler_is_changed_by_one_thread_at_a_time():
    from numba.cuda import compiler

    types = (cuda.types.Array(cuda.types.float32, 1, "C"),)
    usual, found = compiler.CUDACompiler, []
    thread = threading.Thread(target=lambda: found.append(compilation.float64_lines(halves, types)))
    with compilation._one_at_a_time:
        thread.start()
        thread.join(0.5)
        assert thread.is_alive()
        assert compiler.CUDACompiler is usual
    thread.join()
    assert compiler.CUDACompiler is usual
    assert found == [(halves.py_func.__code__.co_firstlineno + 2,)]


@pytest.mark.gate
def test_what_the_linker_refuses_comes_with_its_log():
    with pytest.raises(
        RuntimeError, match=r"^nvJitLink refused halves \(.*ERROR.*\): .*\w"
    ) as raised:
        linked(b"no LTO-IR", (9, 0), kernel="halves", layout="numba")
    assert "\0" not in str(raised.value)
    assert "does not say why" not in str(raised.value)


def test_what_the_disassembler_refuses_comes_with_what_it_says(monkeypatch):
    monkeypatch.setattr(
        disassembly.subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 255, "", "nvdisasm fatal: why\n"),
    )
    monkeypatch.setattr("cuda.pathfinder.find_nvidia_binary_utility", lambda name: name)
    with pytest.raises(RuntimeError, match=r"^nvdisasm failed with exit status 255: .*fatal: why$"):
        disassembly._disassemble(b"no machine code")
