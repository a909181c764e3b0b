"""What s12, s13 and s14 are held against, and what was aimed at: rivals, ratios, goals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from convlab.bench import analysis
from convlab.bench.analysis import CUDNN, GEMM_CLASS, TORCH, Contender, Layer, geometric_mean
from convlab.bench.report_why import MMA_SYNC_FLOPS
from convlab.bench.results import Results
from convlab.bench.roofline import floor_seconds
from convlab.bench.rows import Row
from convlab.stage import blocks_for
from convlab.workloads import paper_layer

OURS, DIRECT, IM2WIN = "s12_fused_im2win", "s01_direct", "s11_im2win_full"
TENSOR, WARPGROUPS = "s13_tensor_cores", "s14_warpgroups"
BATCHED, PER_IMAGE = "im2col_cublas_batched", "im2col_cublas_per_image"
PYTORCHS, PYTORCHS_IN_WORDS = "torch_own_im2col", "PyTorch's own im2col + cuBLAS"
OWN, OWN_IN_WORDS = "s03_im2col_blas", "im2col + cuBLAS, batched, convlab's own (s03_im2col_blas)"
IM2COLS = (PYTORCHS, PER_IMAGE, BATCHED, OWN)  # over these, ordinary calls count too
NOTHING, UNKNOWN = "-", "not measured"

# By what the columns are called: who, and what the paper (000) claims of im2win over it. Who is in
# no run has no column.
RIVALS = {
    "cuDNN's GEMM class": (GEMM_CLASS, ""),
    "cuDNN's fastest": (CUDNN, "1.1, up to 1.8"),
    "PyTorch fp32": (TORCH, ""),
    PYTORCHS_IN_WORDS: (PYTORCHS, "3.5 on average"),
    "im2col + cuBLAS, batched": (BATCHED, "3.5 on average"),
    "im2col + cuBLAS, per image": (PER_IMAGE, "3.5 on average"),
    OWN_IN_WORDS: (OWN, ""),
    "s01": (DIRECT, "5 to 155"),
}
AIMS = (
    ("over cuDNN's GEMM class", GEMM_CLASS, 1.3, 0.9),
    ("over PyTorch fp32", TORCH, 1.0, None),
    (f"over {PYTORCHS_IN_WORDS}", PYTORCHS, 8.0, None),
    ("over im2col + cuBLAS, batched", BATCHED, 3.0, None),
    (f"over {OWN_IN_WORDS}", OWN, 3.0, None),
    ("over im2col + cuBLAS, per image", PER_IMAGE, 8.0, None),
)


def contenders(results: Results) -> dict[str, Contender]:
    """Everybody who is in a table, by name."""
    groups = {one.name: one for one in analysis.fastest(results)}
    names = {OURS, TENSOR, WARPGROUPS, IM2WIN, *(name for name, _ in RIVALS.values())}
    return {
        name: groups.get(name) or Contender(name, name, (name,))
        for name in names
        if name in groups or name in results.systems
    }


def tried(name: str, runs: Sequence[Results]) -> bool:
    """Whether somebody is in one of these runs, with a number or without."""
    return any(name in contenders(run) for run in runs)


def stages_in(runs: Sequence[Results]) -> tuple[str, ...]:
    """The stages that are held against others: s12 and s13, and s14 where a run has it."""
    return (OURS, TENSOR, WARPGROUPS) if tried(WARPGROUPS, runs) else (OURS, TENSOR)


def ratios(
    results: Results, one: Contender | None, over: Contender | None, called: bool = False
) -> list[float | None]:
    """How many times as fast one is as the other, on each layer; None where a time is missing.
    ``called`` takes the times of ordinary calls."""
    found: list[float | None] = []
    for layer in results.layers():
        mine, other = (time_of(results, who, layer, called) for who in (one, over))
        found.append(other / mine if mine and other else None)
    return found


def time_of(results: Results, one: Contender | None, layer: Layer, called: bool) -> float | None:
    """Milliseconds on a layer, replayed from a graph or ``called``; None where it has no number."""
    row = None if one is None else one.best(results, layer)
    return None if row is None else row.called_ms if called else row.time_ms


def most_possible(results: Results, over: Contender | None, precision: str) -> float | None:
    """How many times as fast as another, replayed from a graph, a kernel would be that is at the
    roofline on every layer: in ``fp32``, or in ``3xtf32`` by the one instruction that stages have.
    None where a time or the machine is not known."""
    by_instruction = MMA_SYNC_FLOPS.get(results.machine.device)
    machine = replace(results.machine, tf32_flops=by_instruction)
    if machine.peak_flops(precision) is None:
        return None
    found = []
    for layer in results.layers():
        other = time_of(results, over, layer, called=False)
        floor = floor_seconds(paper_layer(*layer), machine, precision)
        if not other or not floor:
            return None
        found.append(other / 1e3 / floor)
    return geometric_mean(found) if found else None


def filter_bytes(layer: Layer, tile: str | None = None) -> int:
    """The filter's bytes; with a tile, such as ``64x128x16/8x8``, filled up to whole ones."""
    problem = paper_layer(*layer)
    M_B, _, K_B = map(int, tile.partition("/")[0].split("x")) if tile else (1, 1, 1)
    return 4 * blocks_for(problem.M, M_B) * M_B * blocks_for(problem.K, K_B) * K_B


Goals = dict[tuple[str, str], tuple[str, str]]


def goals_of(results: Results, stage: str, others: Sequence[Results] = ()) -> Goals:
    """By what was aimed at, over whom some run has: what was found, and whether that is enough.
    Means of ordinary calls are the host's as well, and of ``others``, further runs, too."""
    everybody = contenders(results)
    ours = everybody.get(stage)
    goals: Goals = {}

    def add(what: str, wanted: str, found: str, reached: bool | None) -> None:
        goals[what, wanted] = found, "" if reached is None else "yes" if reached else "no"

    def known(name: str) -> list[float]:
        every = ratios(results, ours, everybody.get(name))
        return [ratio for ratio in every if ratio is not None]

    runs = (results, *others)
    for words, name, mean, least in AIMS:
        if not tried(name, runs):
            continue
        wanted = f"{mean:.1f} on average" + (f", {least} on every layer" if least else "")
        found = known(name)
        enough = bool(found) and geometric_mean(found) >= mean
        reached: bool | None = enough and (least is None or min(found) >= least)
        add(words, wanted, _spread(found), reached if found else None)
        if name in IM2COLS:
            means = called_means(runs, stage, name)
            goals[f"{words}, called", wanted] = _over_runs(means, mean)
    add("over s01", "the range, beside the paper's 5 to 155", _spread(known(DIRECT)), None)
    more = [
        row.workspace_bytes - filter_bytes(layer, row.algorithm)
        for layer in results.layers()
        if ours is not None
        and (row := ours.best(results, layer)) is not None
        and row.workspace_bytes is not None
    ]
    said = f"{max(more):,} bytes more at most" if more else UNKNOWN
    reached = max(more) == 0 if more and stage == OURS else None
    add("workspace", "the re-ordered filter, in whole tiles", said, reached)
    machine = results.machine
    for layer in results.layers():
        row = ours.best(results, layer) if ours else None
        rate = None if row is None else row.tflops
        if layer[0] in ("conv4", "conv8"):
            peak = machine.sgemm_tflops
            said = (
                f"{rate:.1f} of {peak:.1f} TFLOP/s: {rate / peak:.1%}" if rate and peak else UNKNOWN
            )
            share = rate / peak if rate and peak else None
            # The kernel alone is faster than all in: between the two goals nobody knows.
            reached = None if share is None or 0.85 <= share < 0.9 else share >= 0.9
            wanted = "90 % the kernel, 85 % all in"
            add(f"{layer[0]}, share of cuBLAS's SGEMM, all in", wanted, said, reached)
        if layer[0] == "conv7":
            copy, time_ms = machine.copy_bytes_per_second, row.time_ms if row else None
            said, reached = UNKNOWN, None
            if copy and time_ms:
                moved = paper_layer(*layer).least_bytes / time_ms * 1e3
                said = f"{moved / 1e12:.2f} of {copy / 1e12:.2f} TB/s: {moved / copy:.1%}"
                reached = moved / copy >= 0.6
            add("conv7, share of a copy's bandwidth, necessary bytes", "60 %", said, reached)
    return goals


def called_means(runs: Sequence[Results], one: str, over: str) -> list[float]:
    """By ordinary calls, how many times as fast one is as the other: the mean of each run that has
    both."""
    means = []
    for run in runs:
        everybody = contenders(run)
        every = ratios(run, everybody.get(one), everybody.get(over), called=True)
        if known := [ratio for ratio in every if ratio is not None]:
            means.append(geometric_mean(known))
    return means


def _over_runs(means: Sequence[float], wanted: float) -> tuple[str, str]:
    """The middle one and the range, and in how many runs that is enough."""
    if not means:
        return UNKNOWN, ""
    enough = sum(mean >= wanted for mean in means)
    found = f"{median(means):.2f} ({min(means):.2f} to {max(means):.2f} in {len(means)} runs)"
    if len(means) == 1:
        found = f"{means[0]:.2f}"
    if 0 < enough < len(means):
        return found, f"in {enough} of {len(means)}"
    return found, "yes" if enough else "no"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return UNKNOWN
    return f"{geometric_mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def of_known(column: Sequence[float | None], make: Callable[[Sequence[float]], float]) -> str:
    """A cell made of what is known of a column; a dash where nothing is."""
    known = [value for value in column if value is not None]
    return cell_of(make(known)) if known else NOTHING


def cell_of(value: float | None, digits: int = 2) -> str:
    """A number; a dash for none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def ms_and_rate(row: Row | None) -> tuple[str, str]:
    """Two cells: milliseconds and TFLOP/s; dashes where a row has no number."""
    if row is None or row.time_ms is None or row.tflops is None:
        return NOTHING, NOTHING
    return f"{row.time_ms:.3f}", f"{row.tflops:.1f}"
