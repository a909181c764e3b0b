"""The compile gate: what every stage's machine code must look like, checked with no GPU.

Each kernel is built as it is for a launch (:mod:`convlab.running.engines.kernels`) and
held to its budget: no spills, no stack, no float64 arithmetic, no more registers than its budget,
and 128-bit accesses where the stage claims them."""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

from convlab.ladder import Stage, production_program, production_tile, stage_named
from convlab.ladder.stage import Capability, Launch, Program
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import cores
from convlab.problems.workloads import paper_layer
from convlab.running.able_stages import why_too_old
from convlab.running.engines import disassembly, kernels
from convlab.running.engines.cubin import Cubin, arch_of
from convlab.support.files import Count, Name, document, record
from convlab.support.whole_files import bytes_of

CAPABILITIES: tuple[Capability, ...] = ((8, 0), (9, 0))

# The layers that have differed most from the rest (few channels, large filters, 64 and 128 filters;
# m15 takes split-K on conv12) and a problem in which no size divides another. Further tiles of m11
# to t05 are compiled by their own tests.
LAYERS = ("conv3", "conv4", "conv7", "conv8", "conv9", "conv12")
PROBLEMS: dict[str, ConvProblem] = {
    **{layer: paper_layer(layer) for layer in LAYERS},
    "awkward": ConvProblem(
        3, 5, 31, 32, 67, (3, 5), stride=(2, 3), padding=(2, 1), dilation=(1, 2)
    ),
}

# The most registers per thread, by kernel. An SM has 65,536: with 128 per thread two blocks of 256
# threads are resident, with 64 one block of 1,024, with 168 three blocks of 128. Scalar access
# decides m05's budget. The loads that a thread has in flight decide cin_parallel's. On tensor
# cores, up to 128 accumulators and both TF32 parts of the operands decide the budget.
REGISTER_BUDGET: dict[str, int] = {
    kernel: registers
    for registers, kernels in {
        40: "fill_with_bias im2col to_depth_last implicit_gemm im2win clear im2win_transform "
        "pack_filter_by_squares pack_filter",
        # On conv12 by_pixels takes 46, and runs at nearly a copy's speed.
        48: "im2win_transform_by_pixels im2win_transform_by_groups split_filter round_to_tf32",
        64: "direct cin_naive cout_parallel im2col_by_runs shared_memory",
        80: "cin_parallel",
        136: "prefetch double_buffer",
        160: "microkernel",
        168: "warp_tiling async_copies copied_windows fused_epilogue split_k warp_specialization",
        192: "one_product stem",  # 128 sums per thread, and one part of the operands
        # On tensor cores 16 x 8 sums per thread, and both parts of each operand.
        255: "mma mma_pipeline tensor_cores swapped_operands warpgroups split_warpgroups "
        "shared_pixels",
    }.items()
    for kernel in kernels.split()
}
USUAL_BUDGET = 128  # the budget of every other kernel
# Layout transforms that must have 128-bit accesses; for main kernels see ``Stage.vectorized``.
WIDE_TRANSFORMS: dict[str, tuple[str, ...]] = {
    "im2col_by_runs": ("LDG", "LDS", "STG"),
    # Loads are 128-bit only where rows are aligned, so these transforms need not have them.
    "im2win_transform_by_pixels": ("STG",),
    "im2win_transform_by_groups": ("STG",),
    "pack_filter_by_squares": ("STG",),
    "split_filter": ("STG",),
    "round_to_tf32": ("STG",),
    "pad_channels": ("STG",),
}
DISASSEMBLED_TOGETHER = 4  # problems of a stage at a time: nvdisasm takes 0.4 s to start
MOST_PROCESSES = 8  # that compile at a time, however many cores there are
NO_LOAD = "LDS RZ, [RZ]"  # ptxas writes three, which never execute, before the first LDGSTS
MOST_REGISTERS = 255  # the most that a thread can have: the budget if no other is set


@dataclass(frozen=True)
class KernelRow:
    """One kernel of one stage, compiled for one architecture, and what is wrong with it."""

    stage: str
    kernel: str
    problem: str
    tile: str
    arch: str
    registers: int
    budget: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    float64: tuple[str, ...]
    wide: dict[str, int]
    findings: tuple[str, ...]
    step: int = 0  # of the stage's kernels, from 0
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    instructions: int = 0
    multiply_adds: int = 0
    loop_instructions: int = 0  # of the main loop, the one with the most multiply-adds
    loop_multiply_adds: int = 0

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def __str__(self) -> str:
        return f"{self.stage}: {self.kernel} on {self.problem}, {self.arch}"


class NotCompiled(Exception):
    """A kernel that cannot be compiled: where and why; ``capability`` says for which GPU."""

    def __init__(self, said: str, capability: Capability) -> None:
        super().__init__(said, capability)  # a process sends only these to another
        self.capability = capability

    def __str__(self) -> str:
        return str(self.args[0])


def lint_stage(
    stage: Stage,
    problems: dict[str, ConvProblem] = PROBLEMS,
    capabilities: tuple[Capability, ...] = CAPABILITIES,
    **switches: bool,
) -> Iterator[KernelRow]:
    """Compile every kernel of a stage at its production tile and check the machine code. Raises
    ``CompilerMissing`` where the compilers are not installed, ``ValueError`` for a GPU that the
    stage cannot run on, :class:`NotCompiled`."""
    for capability in capabilities:
        if (reason := why_too_old((stage,), capability, arch_of(capability))) is not None:
            raise ValueError(reason)
    whole = all(switches.values())
    compiled: list[_Compiled] = []
    for name, problem in problems.items():
        program: Program | None = None
        for capability in capabilities:
            try:
                if program is None:
                    adapted = stage.adapted(problem)
                    if stage.why_not(adapted) is not None:
                        break  # such as a filter that is too large for the stage
                    program = production_program(stage, adapted, None, None, **switches)
                for step, launch in enumerate(program.kernels):
                    cubin = kernels.compile_launch(launch, program, capability)
                    is_main = launch.name == program.launches[-1].name
                    compiled.append(_Compiled(name, problem, step, launch, is_main, cubin))
            except kernels.CompilerMissing:
                raise
            except Exception as error:  # such as a typing error, of which Numba has many types
                said = f"{type(error).__name__}: {' '.join(str(error).split())}"
                where = f"{stage.name} on {name}, {arch_of(capability)}"
                raise NotCompiled(f"{where} cannot be compiled: {said}", capability) from error
    codes = disassembly.instructions_of([one.cubin for one in compiled])
    for one, code in zip(compiled, codes, strict=True):
        wide = WIDE_TRANSFORMS.get(one.launch.name, ())
        if stage.vectorized and one.is_main and whole:
            aligned_output = one.problem.H_o * one.problem.W_o % 4 == 0
            wide = ("LDG", "LDS", "STS", *(("STG",) if aligned_output else ()))
        # Without a technique a main kernel has no budget: the ablation measures the cost.
        is_held = (whole or not one.is_main) and one.cubin.capability in CAPABILITIES
        budget = REGISTER_BUDGET.get(one.launch.name, USUAL_BUDGET) if is_held else MOST_REGISTERS
        yield _row(stage, one, code, expected_wide=wide, budget=budget)


class _Compiled(NamedTuple):
    """A kernel of a stage on a problem, compiled for one GPU."""

    problem_name: str
    problem: ConvProblem
    step: int
    launch: Launch
    is_main: bool
    cubin: Cubin


def _row(
    stage: Stage,
    compiled: _Compiled,
    code: list[str],
    *,
    expected_wide: tuple[str, ...],
    budget: int,
) -> KernelRow:
    """Return what the machine code says of a kernel, and the promises that it breaks."""
    cubin, launch = compiled.cubin, compiled.launch
    opcodes = Counter(line.split()[0] for line in code if line != NO_LOAD)
    if any(opcode.startswith("RED") for opcode in opcodes):  # atomic additions are scalar
        expected_wide = tuple(kind for kind in expected_wide if kind != "STG")
    float64 = tuple(sorted(opcode for opcode in opcodes if disassembly.is_float64(opcode)))
    wide, loop = _wide_accesses(opcodes), disassembly.main_loop(code)
    shared_loads = {name: n for name, n in opcodes.items() if name.split(".")[0] == "LDS"}
    narrow = sum(n for name, n in shared_loads.items() if "128" not in name.split("."))
    spilled, stack = cubin.spill_bytes, cubin.stack_bytes
    faults = {
        f"spills {spilled} bytes of registers to memory": spilled,
        f"keeps {stack} bytes on the stack (an array not in registers)": stack,
        f"computes in float64 ({', '.join(float64)})": float64,
        f"takes {cubin.registers} registers, its budget is {budget}": cubin.registers > budget,
        **{f"has no 128-bit {kind}": not wide.get(kind) for kind in expected_wide},
        f"has {narrow} loads from shared memory that are not 128-bit": (
            narrow and "LDS" in expected_wide
        ),
    }
    return KernelRow(
        stage=stage.name,
        kernel=launch.name,
        problem=compiled.problem_name,
        tile=str(production_tile(stage, compiled.problem) or "-"),
        arch=arch_of(cubin.capability),
        step=compiled.step,
        grid=launch.grid,
        block=launch.block,
        budget=budget,
        float64=float64,
        wide=wide,
        findings=tuple(fault for fault, found in faults.items() if found),
        registers=cubin.registers,
        stack_bytes=stack,
        spill_bytes=spilled,
        shared_bytes=cubin.shared_bytes,
        instructions=len(code),
        loop_instructions=len(loop),
        multiply_adds=disassembly.multiply_adds(code),
        loop_multiply_adds=disassembly.multiply_adds(loop),
    )


def _wide_accesses(opcodes: Counter[str]) -> dict[str, int]:
    """Count the 128-bit loads and stores of each kind: LDG, STG (global), LDS, STS (shared).

    An asynchronous copy, LDGSTS, counts as both LDG and STS.
    """
    counts: Counter[str] = Counter()
    for opcode, times in opcodes.items():
        kind, *modifiers = opcode.split(".")
        if "128" in modifiers and kind in ("LDG", "STG", "LDS", "STS", "LDGSTS"):
            counts.update(dict.fromkeys(("LDG", "STS") if kind == "LDGSTS" else (kind,), times))
    return dict(sorted(counts.items()))


@dataclass(frozen=True)
class StoredRow:
    """The part of a :class:`KernelRow` that is stored, to be compared with a later one."""

    stage: Name
    problem: Name
    arch: Name
    step: Count
    kernel: Name
    tile: Name
    grid: tuple[Count, ...]
    block: tuple[Count, ...]
    registers: Count
    stack_bytes: Count
    spill_bytes: Count
    shared_bytes: Count
    instructions: Count
    multiply_adds: Count
    loop_instructions: Count
    loop_multiply_adds: Count

    @property
    def key(self) -> tuple[str, str, str, int]:
        """The same for a kernel before and now."""
        return self.stage, self.problem, self.arch, self.step


COMPARED = [one.name for one in fields(StoredRow)[4:]]  # not its key
MUST_NOT_GROW = ("registers", "stack_bytes", "spill_bytes", "shared_bytes")
LOOP_GROWTH = 1.01  # of the main loop's instructions per multiply-add


@dataclass(frozen=True)
class Difference:
    """One kernel whose machine code is not as stored. ``changes`` maps a field to its value before
    and now; ``worse`` names the fields that have become worse. A kernel that was not stored has no
    changes."""

    row: KernelRow
    changes: dict[str, tuple[object, object]]
    worse: Sequence[str]


def stored_rows(path: Path) -> list[StoredRow]:
    """Rows as ``convlab lint --json`` writes them, in one list or one on each line. Raises
    ``ValueError`` for a file that cannot be read or holds anything else."""
    try:
        text = bytes_of(path).strip()
        lines = [line for line in text.splitlines() if line.strip()]
        found = document(text) if text.startswith(b"[") else [*map(document, lines)]
        rows = record(found, list[StoredRow])
        if not rows:
            raise ValueError("it holds no rows")
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"against is {str(path)!r}, which cannot be read: {reason}") from error
    except ValueError as error:
        raise ValueError(f"against is {str(path)!r}, which cannot be compared: {error}") from error
    return rows


def differences(rows: Sequence[KernelRow], stored: Iterable[StoredRow]) -> list[Difference]:
    """Each kernel that is not as it was stored, or was not stored, in the order of the rows."""
    before = {old.key: old for old in stored}
    found = []
    for row in rows:
        now = record(asdict(row), StoredRow)
        if (old := before.get(now.key)) is None:
            found.append(Difference(row, {}, ()))
            continue
        values = {key: (getattr(old, key), getattr(now, key)) for key in COMPARED}
        changes = {key: both for key, both in values.items() if both[0] != both[1]}
        if changes:
            found.append(Difference(row, changes, _worse(old, now)))
    return found


def _worse(old: StoredRow, now: StoredRow) -> list[str]:
    worse = [key for key in MUST_NOT_GROW if getattr(now, key) > getattr(old, key)]
    # Ratios are compared as products, because a loop may have no multiply-add, and a kernel no
    # loop.
    one = now.loop_instructions * old.loop_multiply_adds
    other = old.loop_instructions * now.loop_multiply_adds
    if one > other or (old.loop_multiply_adds and not now.loop_multiply_adds):
        worse.append("share of multiply-adds in the loop")
    if one > LOOP_GROWTH * other:
        worse.append("loop instructions per multiply-add")
    return worse


@dataclass(frozen=True)
class StageCompilation:
    """A stage, by name, to be compiled for some problems and GPUs."""

    stage: str
    problems: dict[str, ConvProblem]
    capabilities: tuple[Capability, ...]

    def __str__(self) -> str:
        return f"{self.stage} on {', '.join(self.problems)}"

    def __call__(self) -> list[KernelRow]:
        return [*lint_stage(stage_named(self.stage), self.problems, self.capabilities)]


def tasks_for(
    stages: Sequence[Stage],
    problems: dict[str, ConvProblem],
    capabilities: tuple[Capability, ...],
    jobs: int,
) -> list[StageCompilation]:
    """The work as tasks for ``jobs`` processes. A task has several problems and all GPUs that the
    stage runs on, because work that does not depend on the GPU is then done once."""
    at_once = min(DISASSEMBLED_TOGETHER, -(-len(stages) * len(problems) // jobs))
    named = [*problems.items()]
    some = [dict(named[first : first + at_once]) for first in range(0, len(named), at_once)]
    able = {stage.name: tuple(filter(stage.runs_on, capabilities)) for stage in stages}
    return [
        StageCompilation(name, few, gpus) for name, gpus in able.items() for few in some if gpus
    ]


def lint_all(tasks: Sequence[StageCompilation], jobs: int) -> Iterator[list[KernelRow]]:
    """The rows of each task, in their order, ``jobs`` at a time. Numba compiles one kernel at a
    time, so each job is a process. Raises as :func:`lint_stage` does."""
    if min(jobs, len(tasks)) <= 1:
        yield from map(StageCompilation.__call__, tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin)
    try:
        yield from pool.map(StageCompilation.__call__, tasks)
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Set up a worker: Ctrl-C, which the parent reports, ends it without a traceback. Garbage
    collection would take a tenth of the compile time."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(100_000)


def processes() -> int:
    """Return how many processes compile at a time: each takes a core and about 300 MiB."""
    return min(cores(), MOST_PROCESSES)
