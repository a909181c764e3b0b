"""The compile gate: every stage's real machine code is within its budget, and bad code is not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from kernels.tensor_cores import products, roundings, tf32_gemm
from numba import cuda, float32, uint32
from numba.core.errors import TypingError
from numba.cuda import types
from numba.cuda.core import config

from convlab import LADDER, ConvProblem, Stage
from convlab.device import (
    commit_copies,
    copy_async,
    copy_async4,
    load4,
    mma_tf32,
    split_tf32,
    store4,
    to_tf32,
    wait_copies,
)
from convlab.ladder import (
    BACKWARD,
    production_program,
    production_tile,
    stage_named,
    tile_heuristic,
)
from convlab.ladder.im2col import depth_last_layout as depth_last
from convlab.ladder.im2col.im2col_gemm import columns_buffer
from convlab.ladder.stage import Flat, Launch, Program, Tile
from convlab.measuring import machine_code as lint
from convlab.measuring.machine_code import (
    CAPABILITIES,
    PROBLEMS,
    REGISTER_BUDGET,
    NotCompiled,
    StageCompilation,
    lint_all,
    lint_stage,
    tasks_for,
)
from convlab.problems.gradient import Gradient
from convlab.problems.workloads import GROUPED, paper_layer
from convlab.running.engines import compilation, kernels
from convlab.running.engines.cubin import Cubin
from convlab.running.engines.disassembly import (
    code_of,
    instructions_of,
    is_float64,
    opcodes_of,
)
from convlab.running.engines.kernels import compile_kernel, compile_launch

if config.ENABLE_CUDASIM:
    pytest.skip(
        "the gate compiles for real; NUMBA_ENABLE_CUDASIM=1 is set", allow_module_level=True
    )

pytestmark = pytest.mark.gate

CONV9 = {"conv9": PROBLEMS["conv9"]}
BARRIER = "BAR.SYNC.DEFER_BLOCKING"
F1, F2, F3 = (types.Array(types.float32, ndim, "C") for ndim in (1, 2, 3))
BY_EACH = pytest.mark.usefixtures("compiler")
ONCE = pytest.mark.usefixtures("compiled_once")
GPUS = pytest.mark.parametrize("capability", CAPABILITIES)


def compiled(kernel, capability: tuple[int, int] = (9, 0)) -> Cubin:
    """A kernel of this file, which takes one array."""
    return compile_kernel(kernel, (F1,), capability)


def opcodes_in(code: Sequence[str]) -> list[str]:
    return [instruction.split()[0] for instruction in code]


@cache
def main_kernel(name: str, layer: str) -> Cubin:
    program = production_program(stage_named(name), PROBLEMS[layer])
    return compile_launch(program.launches[-1], program, (9, 0))


def problems_of(stage: Stage, *, each_tile: bool = False) -> dict[str, ConvProblem]:
    """The gate's problems without those whose code is that of another: with conv4's tile conv9 has
    its main kernel and conv8's transforms. Then ``each_tile``: one for every tile, and the awkward
    one."""
    tiles = {name: production_tile(stage, PROBLEMS[name]) for name in PROBLEMS}
    names = [*PROBLEMS]
    if tiles["conv9"] == tiles["conv4"]:
        names.remove("conv9")
    if each_tile:
        names = [*{(tiles[name] or name, name == "awkward"): name for name in names}.values()]
    return {name: PROBLEMS[name] for name in names}


@ONCE
@pytest.mark.parametrize("stage", LADDER, ids=lambda stage: stage.name)
def test_every_kernel_is_within_its_budget_on_the_gpus_that_its_stage_says_it_runs_on(
    stage, monkeypatch
):
    """The budgets hold as `convlab lint` finds, and conv12 for other GPUs: 7.5 is the oldest that
    CUDA 13 knows. All GPUs are compiled for from the same LLVM IR: for 9.0 of all problems, for 8.0
    of each tile."""
    # The same kernels for each GPU, so that Numba's part, most of the time, is done once.
    monkeypatch.setattr(lint, "production_program", cache(production_program))
    anywhere, name = replace(stage, requires=None), "conv12"
    if stage.why_not(stage.adapted(PROBLEMS[name])) is not None:
        name = "awkward"  # conv12's filter is too large for the stage
    elsewhere = {name: PROBLEMS[name]}
    tensor_cores = stage.name.startswith(("t03", "t05", "t06", "t07"))
    others = ((7, 5), (10, 0)) if tensor_cores else ((7, 5),)
    gpus = [gpu for gpu in CAPABILITIES if stage.runs_on(gpu)]
    assert gpus == ([(9, 0)] if stage.requires and stage.requires.exact else [(8, 0), (9, 0)])
    rows = []
    for gpu in reversed(gpus):
        problems = problems_of(stage, each_tile=gpu != (9, 0))
        found = list(lint_stage(anywhere, problems, (gpu,)))
        taken = {one for one, of in problems.items() if not stage.why_not(stage.adapted(of))}
        # A library does all of a stage without rows.
        assert {row.problem for row in found} == taken or (stage.needs_library and not found)
        rows += found
    for gpu in (*CAPABILITIES, *others):
        if gpu in others and stage.runs_on(gpu):
            rows += lint_stage(anywhere, elsewhere, (gpu,))
        elif not stage.runs_on(gpu):
            with pytest.raises(NotCompiled, match="PTX_COMPILE"):
                list(lint_stage(anywhere, elsewhere, (gpu,)))
    assert not [row for row in rows if not row.ok]


@ONCE
def test_a_kernel_of_two_stages_is_compiled_once(monkeypatch):
    """Each stage makes a kernel of its own for the same layout transform."""
    stages = (stage_named("m10"), stage_named("m11"))
    first, second = (production_program(stage, PROBLEMS["conv9"]) for stage in stages)
    assert first.kernels[0].kernel is not second.kernels[0].kernel
    code = compile_launch(first.kernels[0], first, (9, 0))
    monkeypatch.setattr(kernels, "_newly_compiled", lambda *_: pytest.fail("compiled again"))
    found = compile_launch(second.kernels[0], second, (9, 0))
    # Two processes of this run may have compiled it at the same time. Then each has a name of its
    # own, which is in the code as well.
    assert replace(found, name=code.name, code=code.code) == code


def test_two_processes_find_what_one_does():
    conv9, awkward = PROBLEMS["conv9"], PROBLEMS["awkward"]
    tasks = [
        StageCompilation("m01_direct", {"conv9": conv9}, ((9, 0),)),
        StageCompilation("m02_implicit_gemm", {"awkward": awkward}, ((8, 0),)),
        StageCompilation("m01_direct", {"conv9": conv9}, ((99, 9),)),
    ]
    found = []
    for jobs in (1, 2):
        done = lint_all(tasks, jobs)
        found.append([next(done), next(done)])
        unknown = r"^m01_direct on conv9, sm_999 cannot be compiled: UnknownGPU: "
        with pytest.raises(NotCompiled, match=unknown) as refused:
            next(done)
        assert refused.value.capability == (99, 9)
    assert found[0] == found[1]
    assert [[(row.stage, row.problem, row.arch) for row in rows] for rows in found[0]] == [
        [("m01_direct", "conv9", "sm_90")],
        [("m02_implicit_gemm", "awkward", "sm_80")],
    ]


def test_the_work_is_shared_among_processes():
    stages = [stage_named("m01"), stage_named("t05")]
    gpus = ((8, 0), (9, 0))
    for jobs, sizes in ((1, [4, 3, 4, 3]), (7, [2, 2, 2, 1] * 2), (100, [1] * 14)):
        tasks = tasks_for(stages, PROBLEMS, gpus, jobs)
        assert [len(task.problems) for task in tasks] == sizes
        for stage, able in zip(stages, (gpus, ((9, 0),)), strict=True):
            its_own = [task for task in tasks if task.stage == stage.name]
            assert [name for task in its_own for name in task.problems] == [*PROBLEMS]
            assert {task.capabilities for task in its_own} == {able}


def test_nobody_compiles_on_for_one_who_is_gone():
    """Ctrl-C ends a parent this way."""
    alone = [{name: problem} for name, problem in PROBLEMS.items()]
    tasks = [StageCompilation("m01_direct", problems, ((9, 0),)) for problems in alone] * 7
    done = lint_all(tasks, 2)
    next(done)
    assert len(multiprocessing.active_children()) == 2
    done.close()
    assert not multiprocessing.active_children()


def test_the_kernel_for_groups_compiles_cleanly():
    layers = {name: GROUPED[name] for name in ("mobilenetv2_2", "resnext50_2", "resnext50_7")}
    rows = list(lint_stage(stage_named("grouped"), layers))
    assert len(rows) == 6
    assert not [row for row in rows if not row.ok]
    assert max(row.registers for row in rows) <= 40  # six blocks are resident per SM


@pytest.mark.parametrize(
    ("switch", "registers"), [("microkernel", 40), ("vectorized", 232), ("prefetch", 128)]
)
def test_the_ablation_compiles_cleanly(switch, registers):
    """Scalar loads keep so many values in flight that two blocks are resident per SM, where three
    of the whole m11 are."""
    rows = list(lint_stage(stage_named("ablation"), CONV9, ((9, 0),), **{switch: False}))
    assert not [row for row in rows if not row.ok]
    assert rows[-1].registers <= registers
    wide = rows[-1].wide
    assert ("LDG" in wide) == (switch != "vectorized")
    assert ("LDS" in wide) == (switch == "prefetch")


def opcodes_of_slices(name: str, layer: str) -> list[str]:
    """The opcodes of a stage's main kernel, without m11's prologue, which ends at its first
    barrier."""
    opcodes = opcodes_in(code_of(main_kernel(name, layer)))
    return opcodes[opcodes.index(BARRIER) + 1 :] if name == "m11" else opcodes


@ONCE
@pytest.mark.parametrize("layer", ["conv8", "conv9"])
@pytest.mark.parametrize(
    ("name", "order", "barriers"),
    [
        ("m06", ["LDG.E.128", "STS.128", BARRIER, "FFMA"], 2),
        ("m08", ["LDG.E.128", "FFMA", "STS.128", BARRIER], 1),
    ],
)
def test_what_is_prefetched_is_asked_for_before_the_arithmetic(name, order, barriers, layer):
    """The machine code of a slice: m06 waits for what it fetches, m08 multiplies meanwhile and
    needs one barrier, because the other half of shared memory is free."""
    opcodes = opcodes_of_slices(name, layer)
    places = [
        next(at for at, opcode in enumerate(opcodes) if opcode.startswith(kind)) for kind in order
    ]
    assert places == sorted(places)
    assert opcodes.count(BARRIER) == barriers


@ONCE
@pytest.mark.parametrize("layer", ["conv8", "conv9", "conv12"])
def test_m11_multiplies_while_it_waits(layer):
    """At least nine tenths of a slice's multiply-adds come after the last of its loads and before
    its one barrier, and there is hardly anything else. (Without ``issue_loads`` a quarter, on
    conv12 a seventh.)"""
    opcodes = opcodes_of_slices("m11", layer)
    stored = opcodes.index("STS.128")
    loaded = max(at for at, opcode in enumerate(opcodes[:stored]) if opcode == "LDG.E.128")
    barrier = opcodes.index(BARRIER)
    assert loaded < stored < barrier
    assert opcodes.count("FFMA") == 16 * 64
    assert opcodes[loaded:stored].count("FFMA") >= 0.9 * 16 * 64
    assert opcodes[:barrier].count("FFMA") >= 0.85 * barrier  # with signed indices 0.82
    assert opcodes.count(BARRIER) == 1


@pytest.mark.parametrize("depth", [4, 8, 12, 16])
@GPUS
def test_every_depth_pitch_moves_float4s(depth, capability):
    """The kernel is the one that docs/notes/measurements.md times."""
    problem = ConvProblem(128, depth, 56, 56, 1, 3, padding=1)
    (launch,) = depth_last.im2col_launches(problem)
    program = Program((depth_last.buffer(problem), columns_buffer(problem)), (launch,))
    cubin = compile_launch(launch, program, capability)
    opcodes = opcodes_of(cubin)
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
    assert not [
        name for name in opcodes if name.startswith(("LDG", "LDS", "STG")) and "128" not in name
    ]
    assert all(any(name.startswith(kind) for name in opcodes) for kind in ("LDG", "LDS", "STG"))
    assert not [name for name in opcodes if "F64" in name]


IN_FLIGHT = 1


@cuda.jit
def copies(output):
    wide = cuda.shared.array((2, 128), float32, alignment=16)
    narrow = cuda.shared.array(32, float32)
    i = uint32(cuda.threadIdx.x)
    copy_async4(wide, (1, 4 * i), output, 4 * i, 4 * i + 3 < output.size)
    commit_copies()
    copy_async(narrow, i, output, i, True)
    commit_copies()
    wait_copies(IN_FLIGHT)
    cuda.syncthreads()
    value = wide[1, 127 - i]
    wait_copies(0)
    cuda.syncthreads()
    output[i] = value + narrow[31 - i]


@BY_EACH
@GPUS
def test_async_copies_are_one_instruction_each(capability):
    cubin = compiled(copies, capability)
    wanted = ("LDGSTS", "LDGDEPBAR", "DEPBAR", "LDS", "STS", "STG")
    seen = [line for line in code_of(cubin) if line.startswith(wanted) and "RZ" not in line]
    assert opcodes_in(seen) == [
        "LDGSTS.E.BYPASS.128", "LDGDEPBAR", "LDGSTS.E", "LDGDEPBAR",
        "DEPBAR.LE", "LDS", "DEPBAR.LE", "LDS", "STG.E",
    ]  # fmt: skip
    waits = [line for line in seen if line.startswith("DEPBAR")]
    assert waits == ["DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0"]
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)


@BY_EACH
@GPUS
@pytest.mark.parametrize(
    ("kernel", "kinds", "instructions"),
    [(products, (F3, F3, F3, F3), 1), (roundings, (F1, F1), 0), (tf32_gemm, (F2, F2, F2), 4)],
)
def test_tensor_cores_multiply(kernel, kinds, instructions, capability):
    cubin = compile_kernel(kernel, kinds, capability)
    opcodes = opcodes_of(cubin)
    assert opcodes["HMMA.1688.F32.TF32"] == instructions
    assert not [name for name in opcodes if name.startswith(("LDL", "STL", "DADD", "DMUL", "F2F"))]
    assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)


@cuda.jit
def result_for_some_lanes(output):
    x = output[cuda.threadIdx.x]
    total = mma_tf32((x, x, x, x), (x, x), (x, x, x, x))
    if x > 0:
        for k in range(output.size):
            output[k] += total[0]


@BY_EACH
@GPUS
def test_no_tensor_core_waits_in_a_branch_that_some_lanes_take(capability):
    opcodes = opcodes_in(code_of(compiled(result_for_some_lanes, capability)))
    assert opcodes.index("HMMA.1688.F32.TF32") < min(map(opcodes.index, ("EXIT", "BRA")))


@cuda.jit
def splits(output):
    output[1], output[2] = split_tf32(output[0])


@BY_EACH
def test_numbers_are_split_by_three_instructions():
    code = code_of(compiled(splits))
    loaded = next(at for at, line in enumerate(code) if line.startswith("LDG"))
    stored = next(at for at, line in enumerate(code) if line.startswith("STG"))
    arithmetic = [line for line in code[loaded:stored] if "0x1000" in line or "0xffffe000" in line]
    assert len(arithmetic) == 2, code[loaded:stored]
    assert sum(line.startswith("FADD") for line in code) == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x: mma_tf32((x, x, x, 0.0), (x, x), (x, x, x, x)), "mma_tf32: a is .* 4 float32"),
        (lambda x: mma_tf32((x, x, x, x), (x,), (x, x, x, x)), "mma_tf32: b is .* 2 float32"),
        (lambda x: to_tf32(1), "to_tf32: value is .*int64.*, but must be float32"),
        (lambda x: split_tf32(1.0), "split_tf32: value is .*float64.*, but must be float32"),
        (lambda x: wait_copies(x), "wait_copies"),  # a number of groups that is known late
    ],
    ids=["a float64 among fragments", "too few", "an integer", "a float64", "known late"],
)
def test_arguments_have_the_types_that_instructions_need(wrong, says):
    called = cuda.jit(device=True)(wrong)

    @cuda.jit
    def kernel(output):
        called(output[0])

    with pytest.raises(TypingError, match=says):
        compiled(kernel)


def test_what_is_lowered_once_is_compiled_for_each_gpu():
    """The machine code for a GPU is the same whichever GPU its kernel was compiled for before."""

    def code(*gpus: tuple[int, int]) -> list[list[str]]:
        kernels._compiled.cache_clear()
        compilation._lowered.cache_clear()
        cubins = [compile_kernel(tf32_gemm, (F2, F2, F2), gpu) for gpu in gpus]
        assert compilation._lowered.cache_info().hits == 1
        return [[*code_of(cubin)] for cubin in cubins]

    old, new = code((8, 0), (9, 0))
    assert old != new
    assert code((9, 0), (8, 0)) == [new, old]


def test_several_kernels_are_disassembled_as_each_alone():
    """Also where some are for another GPU."""
    cubins = [compiled(splits), compiled(scalar_copy, (8, 0)), compiled(float64_leak)]
    each = [[*code_of(cubin)] for cubin in cubins]
    assert [opcodes_of(cubin)["FADD"] for cubin in cubins] == [1, 0, 0]
    assert [any(map(is_float64, opcodes_in(code))) for code in each] == [False, False, True]
    assert instructions_of(cubins[::-1]) == each[::-1]
    assert instructions_of([]) == []


def test_a_linker_that_tells_nothing_is_not_taken_for_no_registers(monkeypatch):
    kernels._compiled.cache_clear()
    monkeypatch.setattr(compilation, "_link", lambda *_: (b"", "ptxas info    : 0 bytes gmem"))
    with pytest.raises(RuntimeError, match="how many registers splits takes"):
        compiled(splits)


@cuda.jit
def float64_leak(output):
    total = 0.0
    for k in range(output.size):
        total += output[k]
    output[0] = total


@cuda.jit
def array_on_the_stack(output):
    values = cuda.local.array(64, float32)
    for k in range(64):
        values[uint32(output[k])] = output[k]
    output[0] = values[uint32(output[1])]


@cuda.jit
def scalar_copy(output):
    output[cuda.threadIdx.x] = output[cuda.threadIdx.x + 4]


@cuda.jit
def narrow_reads(output):
    staged = cuda.shared.array(256, float32, alignment=16)
    i = cuda.threadIdx.x * 4
    store4(staged, i, load4(output, i))
    cuda.syncthreads()
    store4(output, i, load4(staged, i))
    output[i] = staged[255 - i]


@cuda.jit(launch_bounds=(1024, 2))
def registers_spilled(output):
    values = cuda.local.array(96, float32)
    for k in range(96):
        values[k] = output[k]
    for _ in range(output.size):
        for k in range(96):
            values[k] = values[k] * values[95 - k] + output[0]
    for k in range(96):
        output[k] = values[k]


@pytest.mark.parametrize(
    ("kernel", "budget", "finding"),
    [
        (float64_leak, 255, "computes in float64"),
        (array_on_the_stack, 255, "bytes on the stack"),
        (scalar_copy, 255, "has no 128-bit LDG"),
        (narrow_reads, 255, "has 1 loads from shared memory that are not 128-bit"),
        (registers_spilled, 255, "spills"),
        (scalar_copy, 4, "its budget is 4"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_bad_code_is_found(kernel, budget, finding, monkeypatch):
    monkeypatch.setitem(REGISTER_BUDGET, kernel.__name__, budget)
    launch = Launch(kernel, (1,), (32,), (Flat("output"),))
    wide = kernel in (scalar_copy, narrow_reads)
    stage = Stage("s99", "bad", "", (), lambda *_: Program((), (launch,)), vectorized=wide)
    (row,) = lint_stage(stage, CONV9, ((9, 0),))
    assert not row.ok
    assert any(finding in found for found in row.findings), row


def test_every_budget_is_a_kernel_s():
    kernels = {  # of all problems: some stages have other kernels for many channels than for few
        launch.name
        for stage in LADDER
        for problem in map(stage.adapted, PROBLEMS.values())
        if stage.why_not(problem) is None
        for launch in production_program(stage, problem).kernels
    }
    kernels |= {
        launch.name
        for stage in BACKWARD
        for of in ("input", "weight")
        for launch in production_program(stage, Gradient(PROBLEMS["conv9"], of)).kernels
    }
    assert set(REGISTER_BUDGET) <= kernels  # a kernel without has the usual budget


# Blocks that stick out along rows and columns (whose code is the longest), along rows, not at all.
SPLIT = [
    ConvProblem(1, 512, 35, 35, 100, 3, padding=1),
    ConvProblem(1, 512, 35, 35, 128, 3, padding=1),
    paper_layer("conv12"),
]
TILES = [Tile(M_B, N_B, 16, M_T, N_T) for M_B, N_B, M_T, N_T in tile_heuristic.M15.rates]


@ONCE
@pytest.mark.parametrize(
    ("tile", "problem"),
    [*((tile, SPLIT[0]) for tile in TILES), *((TILES[0], problem) for problem in SPLIT[1:])],
    ids=str,
)
def test_split_sums_stay_in_registers(tile, problem):
    if tile_heuristic.M15.best_splits(problem, tile, sm_count=10**6) > 1:
        program = stage_named("m15").prepare(problem, tile, splits=3)
        cubin = compile_launch(program.launches[-1], program, (9, 0))
        assert (cubin.spill_bytes, cubin.stack_bytes) == (0, 0)
        assert cubin.registers <= REGISTER_BUDGET["split_k"]


def test_the_awkward_problem_compiles_the_scalar_way_out():
    problem = PROBLEMS["awkward"]
    assert problem.H_o * problem.W_o % 4
    assert problem.M % 64
    assert problem.K % 8
