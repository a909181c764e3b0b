"""The lists of cases, and the run over them: systems x layers into rows, one after the other.

Beside the twelve layers there are those of ``convlab bench --cases NAME``
(:mod:`convlab.measuring.case_lists`). ``precisions`` has both of PyTorch's layouts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from convlab.ladder import LADDER, Stage, stage_named
from convlab.ladder.half_precision.h08_padded_input import is_copied
from convlab.measuring import gpu_backend
from convlab.measuring.analysis import TORCH
from convlab.measuring.baselines import System, unfold_table
from convlab.measuring.bounds import Checked, Checker
from convlab.measuring.case_lists import NAMES
from convlab.measuring.gpu_backend import SETTLED_PERCENT
from convlab.measuring.harness import MeasuringOutcome, no_room
from convlab.measuring.kernels_ahead import compile_kernels
from convlab.measuring.machine import version
from convlab.measuring.pool import ROW_SECONDS, WorkerPool
from convlab.measuring.results import LIBRARIES, Key, ResultRow, State, identity
from convlab.measuring.roofline import Machine, in_gemm_class, too_fast
from convlab.measuring.systems import VARIANTS, WHOLE, system_named
from convlab.problems.oracle import random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import (
    GROUPED,
    LAYER_NAMES,
    NETWORK_BATCH,
    PAPER_BATCH,
    STEMS,
    UNSEEN,
    UNTUNED,
    gradients,
    paper_layer,
    unseen_layers,
)
from convlab.running.chosen_stages import AUTO_TF32, preferred_stages
from convlab.running.engines.absent import GpuFacts

SEED = 0
# A GPU that was too hot or in use may recover: such a case is measured again at the end of its
# layer, and only the second outcome becomes a row.
PASSING: tuple[State, ...] = ("unsteady", "busy")

SIZES = UNTUNED | UNSEEN
M15 = "m15_split_k"
# On a convolution, and on its gradients.
OF_EACH = (("m01_direct",), ("g01_direct_gradients", "g03_shared_pixels"))
# On a gradient a stage is g02 by that stage, and PyTorch its convolution_backward.
GRADIENT_SYSTEMS = ("m06_vectorized", "m11_warp_tiling", M15, TORCH)
SIZE_SYSTEMS = (M15, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")
UNSEEN_21 = unseen_layers()
UNSEEN_SYSTEMS = ("auto", M15, "t05_warpgroups", "t06_split_k", TORCH)
TORCH_16_BITS = ("torch_16_bits", "torch_16_bits_channels_last")
TORCH_TF32 = ("torch_tf32", "torch_tf32_channels_last")
SWEEP_BASE = ConvProblem(1, 4, 128, 128, 16, 3)
# Article 001 gives no sizes but a filter of 64 x 64. These keep the C++ loops at seconds.
SWEEPS: dict[str, tuple[int, ...]] = {
    "size": (32, 64, 128, 256, 512, 1024),
    "in_channels": (1, 4, 16, 64, 256),
    "out_channels": (1, 4, 16, 64, 256),
    "kernel_size": (1, 3, 7, 16, 32, 64),
}
SWEEP_SYSTEMS = (
    "cpp_seven_loops", "c01_input_channels", "c03_output_channels", "c02_receptive_field",
    "cutlass_analytic",
    "cutlass_optimized", "torch_compile_fp32", "torch_compile_tf32", "cutlass_tf32", WHOLE,
)  # fmt: skip
UNFOLDED = unfold_table.PROBLEM
UNFOLD_SYSTEMS = (*unfold_table.LINES, "i05_unfold_einsum", WHOLE)


@dataclass(frozen=True)
class BenchCase:
    """One system on one layer."""

    layer: str
    problem: ConvProblem
    system: System

    @property
    def key(self) -> Key:
        """Layer, batch and the system's name."""
        return self.layer, self.problem.batch, self.system.name


def cases_for(layers: Sequence[str], batch: int, systems: Sequence[System]) -> list[BenchCase]:
    """Every system on every layer, layer by layer. Raises ``ValueError`` for an unknown layer."""
    return crossed({layer.lower(): paper_layer(layer, batch) for layer in layers}, systems)


def crossed(
    problems: Mapping[str, ConvProblem], systems: Iterable[System | str]
) -> list[BenchCase]:
    """Every system, or the one of that name, on every problem of that name."""
    known = [system_named(one) if isinstance(one, str) else one for one in systems]
    return [
        BenchCase(name, problem, system) for name, problem in problems.items() for system in known
    ]


def sweep_points() -> list[tuple[str, int, ConvProblem]]:
    """Every sweep, value and problem: the base with one of its sizes changed."""

    def problem(sweep: str, value: int) -> ConvProblem:
        changed = dict.fromkeys(("height", "width") if sweep == "size" else (sweep,), value)
        return replace(SWEEP_BASE, **changed)  # type: ignore[arg-type]

    return [(sweep, n, problem(sweep, n)) for sweep, values in SWEEPS.items() for n in values]


def _gradients() -> list[BenchCase]:
    layers = {name: paper_layer(name, NETWORK_BATCH) for name in LAYER_NAMES}
    return [
        case
        for problems, own in zip((layers, gradients(layers)), OF_EACH, strict=True)
        for case in crossed(problems, (*own, *GRADIENT_SYSTEMS))
    ]


def precision_layers() -> dict[str, ConvProblem]:
    """The layers of ``--cases precisions``, in float32: the paper's twelve, 21 others and stems."""
    paper = {name: paper_layer(name, PAPER_BATCH) for name in LAYER_NAMES}
    return paper | unseen_layers([NETWORK_BATCH]) | STEMS


def _is_measured(stage: Stage, problem: ConvProblem) -> bool:
    """Return whether a stage takes a problem of 16 bits, and is not another there: h08 is h07 where
    it does not copy the input, and h07 takes it."""
    if stage.why_not(problem) is not None:
        return False
    is_h07 = stage_named("h07").why_not(problem) is None and not is_copied(problem)
    return stage.name != "h08_padded_input" or not is_h07


def _is_chosen(own: Sequence[str], problem: ConvProblem) -> bool:
    """Return whether "auto" is one of these stages in TF32, with the channels last. With few
    channels it is t07, from a copy with the channels first."""
    names = preferred_stages(problem)
    first = (name for name in names if name in own or not stage_named(name).channels_last)
    return next(first) in own


def _precisions() -> list[BenchCase]:
    """Give for each type the stages that take it, and what a plan takes, beside PyTorch in both
    layouts. The stages' tensors have the stage's layout, before and after."""
    cases: list[BenchCase] = []
    tf32 = [stage for stage in LADDER if stage.precision == "tf32"]
    for name, problem in precision_layers().items():
        for dtype in ("bfloat16", "float16"):
            halves = replace(problem, dtype=dtype, channels_last=True)
            own = [stage.name for stage in LADDER if _is_measured(stage, halves)]
            own = ["auto", *own] if own else []
            cases += crossed({f"{name} {dtype}": halves}, (*own, *TORCH_16_BITS))
        for kind, last in (("tf32", False), ("tf32-last", True)):
            floats = replace(problem, channels_last=last)
            own = [stage.name for stage in tf32 if stage.why_not(floats) is None]
            auto = [AUTO_TF32] if not last or _is_chosen(own, floats) else []
            if own:
                cases += crossed({f"{name} {kind}": floats}, (*auto, *own, *TORCH_TF32))
    return cases


EXPERIMENTS: dict[str, Callable[[], list[BenchCase]]] = {
    "sizes": lambda: crossed(SIZES, SIZE_SYSTEMS),
    "unseen": lambda: crossed(UNSEEN_21, UNSEEN_SYSTEMS),
    "grouped": lambda: crossed(GROUPED, ("grouped", TORCH)),
    "gradients": _gradients,
    "ablation": lambda: crossed(
        {name: paper_layer(name, PAPER_BATCH) for name in LAYER_NAMES}, (WHOLE, *VARIANTS)
    ),
    # A problem that several sweeps share is measured once.
    "sweeps": lambda: crossed({str(one): one for _, _, one in sweep_points()}, SWEEP_SYSTEMS),
    "precisions": _precisions,
    "unfold_table": lambda: crossed({str(UNFOLDED): UNFOLDED}, UNFOLD_SYSTEMS),
}
# What else belongs into a document, from what an older one of the same identity has of it.
MORE: dict[str, Callable[[Mapping[str, object]], dict[str, object]]] = {
    "sweeps": lambda older: {
        "points": [
            {"sweep": sweep, "value": value, "problem": str(problem)}
            for sweep, value, problem in sweep_points()
        ]
    },
    "unfold_table": unfold_table.first_calls_once,
}


def experiment(name: str) -> list[BenchCase]:
    """The cases of that list. Raises ``ValueError`` for an unknown name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"--cases is {name!r}: it must be one of {', '.join(NAMES)}")
    return EXPERIMENTS[name]()


def compiled_ahead(cases: Sequence[BenchCase]) -> list[BenchCase]:
    """Return the cases to compile before measuring: each stage's, and each GPU baseline once."""
    stages = [case for case in cases if case.system.kind == "stage"]
    baselines = {case.system.name: case for case in cases if case.system.on_gpu}
    return [*stages, *(case for case in baselines.values() if case.system.kind == "baseline")]


def estimated_seconds(problem: ConvProblem) -> float:
    """Estimate the time of a row: a constant, the problem's bytes, its FLOP on the slow stages."""
    return 0.8 + 1.2 * problem.least_bytes / 1e9 + 4.0 * problem.flops / 610e9


class Bench(NamedTuple):
    """Workers, and what rows are measured with; ``identity`` stands for all of it and the code.
    ``gpu`` is what compilers need to know of the GPU, None where there is none."""

    pool: WorkerPool
    machine: Machine
    environment: dict[str, Any]
    identity: str
    gpu: GpuFacts | None = None


@contextmanager
def open_bench(row_seconds: float = ROW_SECONDS) -> Iterator[Bench]:
    """Start the workers. Raises ``WorkerDied`` or ``OSError`` where no process can measure."""
    gpu = gpu_backend.current_gpu()
    pool = WorkerPool(row_seconds=row_seconds, foreign=gpu_backend.processes(gpu))
    try:
        facts = pool.facts()
        known = facts["environment"]
        libraries = {name: found for name in LIBRARIES if (found := version(name)) is not None}
        known["packages"] = known["packages"] | libraries
        machine = Machine(**facts["machine"])
        yield Bench(pool, machine, known, identity(known, gpu), facts.get("gpu"))
    finally:
        pool.close()


def run(
    cases: Sequence[BenchCase], bench: Bench, *, on_compiled: Callable[[], None] = lambda: None
) -> Iterator[ResultRow]:
    """Compile, then measure the cases layer by layer and yield their rows."""
    ahead = [(case.problem, case.system) for case in compiled_ahead(cases)]
    compile_kernels(ahead, bench.gpu)
    for _ in bench.pool.compile(ahead):
        on_compiled()
    for layer in dict.fromkeys(case.layer for case in cases):
        yield from _layer([case for case in cases if case.layer == layer], bench)


def _layer(cases: Sequence[BenchCase], bench: Bench) -> Iterator[ResultRow]:
    problem = cases[0].problem

    def row(case: BenchCase, outcome: MeasuringOutcome, started: float) -> ResultRow:
        seconds = time.monotonic() - started
        return row_of(case, outcome, bench.machine, bench.identity, seconds)

    def measured(case: BenchCase) -> ResultRow:
        system, started = case.system, time.monotonic()

        def check(output: np.ndarray) -> Checked:
            allowances = system.allowances(problem)
            precision = system.precision_on(problem)
            return checker.check(output, precision, system.method, allowances)

        return row(case, bench.pool.measure(system, check), started)

    with ExitStack() as held:
        try:
            input, weight, _ = random_tensors(problem, SEED, bias=False)
            checker = Checker(problem, input, weight)
            held.enter_context(bench.pool.layer(problem, (input, weight)))
        except (MemoryError, OSError) as error:
            outcome = no_room(error, f"the host cannot hold {problem} and its float64 answer")
            yield from (row(case, outcome, time.monotonic()) for case in cases)
            return
        later = []
        for case in cases:
            found = measured(case)
            if found.state in PASSING:
                later.append(case)
            else:
                yield found
        yield from map(measured, later)


def row_of(
    case: BenchCase, outcome: MeasuringOutcome, machine: Machine, identity: str, seconds: float
) -> ResultRow:
    """The row of an outcome: with its number, unless that is above the roofline."""
    problem, system = case.problem, case.system
    if outcome.time_ms is not None:
        # The algorithm that a library chose is known by now: the GEMM class does every
        # multiplication.
        method = "gemm" if in_gemm_class(system.method, outcome.algorithm) else system.method
        precision = system.precision_on(problem)
        above = too_fast(problem, outcome.time_ms, machine, precision, method)
        if above is not None:
            outcome = replace(outcome).without_number("refused", above)
    known = asdict(outcome) | {"layer": case.layer, "batch": problem.batch, "system": system.name}
    del known["healthy"]
    if outcome.error_over_bound is not None:
        known["error_over_bound"] = float(outcome.error_over_bound)
    time_ms, spread = outcome.time_ms, outcome.time_spread
    return ResultRow(
        **known,
        settled=None if spread is None else spread <= SETTLED_PERCENT,
        tflops=None if time_ms is None else problem.flops / time_ms / 1e9,
        seconds=round(seconds, 3),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        identity=identity,
    )
