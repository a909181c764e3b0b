"""Every system that the four documents name: the document's figure, ours, and the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convlab.bench import ablation, analysis, seed_paper, seed_runs, sweeps, unfold_table
from convlab.bench.analysis import Contender, geometric_mean
from convlab.bench.measured import table
from convlab.bench.results import Results
from convlab.bench.seed_figures import unsteady
from convlab.bench.seed_runs import marked

NOT_YET = "not measured yet"
Found = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Named:
    """A system that a document names: its figure there, and ours, found in the results called
    ``file``; None where there is nothing to run, and ``ours`` is the reason."""

    document: str
    system: str
    claimed: str
    file: str | None
    ours: Found | str


def over_layers(name: str) -> Found:
    """TFLOP/s of a system of ``convlab bench``, over the layers where it has a number."""

    def found(results: Mapping[str, Any]) -> str:
        bench: Results = results["bench"]
        known = analysis.contender(bench, name) if name in bench.systems else None
        return _tflops(bench, known)

    return found


def _tflops(results: Results, one: Contender | None) -> str:
    if one is None:
        return NOT_YET
    rows = [one.best(results, layer) for layer in results.layers()]
    known = [row.tflops for row in rows if row is not None and row.tflops]
    if known:
        return f"{geometric_mean(known):.1f} TFLOP/s on {_layers(len(known))}"
    reasons = [
        row
        for member in one.members
        for layer in results.layers()
        if (row := results.row(*layer, member)) is not None
    ]
    return f"{reasons[0].state}: {reasons[0].reason}" if reasons else NOT_YET


def _layers(count: int) -> str:
    return f"{count} layer" + ("s" if count > 1 else "")


def fastest_cudnn(results: Mapping[str, Any]) -> str:
    """TFLOP/s of the fastest of cuDNN's kernels on each layer."""
    groups = {one.name: one for one in analysis.fastest(results["bench"])}
    return _tflops(results["bench"], groups.get(analysis.CUDNN))


def im2win(results: Mapping[str, Any]) -> str:
    """s11, and where another stage is faster, that one."""
    bench: Results = results["bench"]
    found = over_layers(seed_paper.IM2WIN)(results)
    best = analysis.best_stage(bench)
    if best is None or best.name == seed_paper.IM2WIN:
        return found
    return f"{found}; {best.name} {_tflops(bench, best)}"


def im2col(results: Mapping[str, Any]) -> str:
    """PyTorch's own im2col + cuBLAS, or Python's loop where a run lacks that."""
    has_it = seed_paper.PYTORCHS in results["bench"].systems
    return over_layers(seed_paper.PYTORCHS if has_it else seed_paper.PER_IMAGE)(results)


def left_out(name: str) -> Found:
    """How many times as fast s11 is as this variant."""

    def found(results: Mapping[str, Any]) -> str:
        ratios = ablation.worth(results["ablation"], name)
        if not ratios:
            return "no number on any layer"
        return f"{1 / geometric_mean(ratios):.2f} of s11's speed, on {_layers(len(ratios))}"

    return found


def over_cpp(name: str) -> Found:
    """The least and the most that a system gains over C++."""

    def found(results: Mapping[str, Any]) -> str:
        document = results["sweeps"]
        known = [
            (ratio, "~" if place in unsteady(document, sweep, name, sweeps.BASELINE) else "")
            for sweep in sweeps.SWEEPS
            for place, ratio in enumerate(sweeps.speedups(document, sweep, name))
            if ratio
        ]
        if not known:
            return "no number at any point"
        least, most = (f"{mark}{ratio:,.0f}x" for ratio, mark in (min(known), max(known)))
        return f"{least} to {most} over C++"

    return found


def baseline(results: Mapping[str, Any]) -> str:
    """How fast the C++ loops are."""
    times = [
        row["tflops"] * 1e3
        for row in results["sweeps"]["rows"]
        if row["system"] == sweeps.BASELINE and row["tflops"]
    ]
    return f"1x: {min(times):.1f} to {max(times):.1f} GFLOP/s" if times else "no number"


def row_of_table_1(name: str) -> Found:
    """The times of a row of 002's table."""

    def found(results: Mapping[str, Any]) -> str:
        document = results["unfold_table"]
        first = document["first_calls"].get(name, {}).get("ms")
        time = unfold_table.time_of(document, name)
        swings = seed_runs.unsettled(document, str(unfold_table.PROBLEM), name)
        return "; ".join(
            f"{words} {marked(f'{value:.3f} ms', mark)}" if value else f"{words}: none"
            for words, value, mark in (("first call", first, False), ("on the GPU", time, swings))
        )

    return found


def depth(pitch: int) -> Found:
    """The bandwidth of a kernel of 003."""

    def found(results: Mapping[str, Any]) -> str:
        row = next(one for one in results["im2col"]["depths"] if one["depth"] == pitch)
        if not row["right"]:
            return "wrong"
        speed, copy = row["depth_last"]["tb_per_s"], row["copy"]["tb_per_s"]
        return f"{speed:.2f} TB/s, {100 * speed / copy:.0f} % of a copy's"

    return found


def _cudnn(algorithm: str, words: str, claimed: str) -> Named:
    return Named("000", f"cuDNN {words}", claimed, "bench", over_layers(f"cudnn_{algorithm}"))


def _times_fastest(algorithm: str) -> str:
    count = list(seed_paper.TABLE_3.values()).count(algorithm)
    return f"fastest on {count} of 12 layers"


SYSTEMS: tuple[Named, ...] = (
    Named("000", "im2winGPU", "3.5x im2col+cuBLAS, 1.1x cuDNN on average", "bench", im2win),
    Named("000", "direct", "1/5 to 1/155 of im2winGPU", "bench", over_layers("s01_direct")),
    Named("000", "im2col+cuBLAS", "1/3.5 of im2winGPU on average", "bench", im2col),
    Named("000", "cuDNN, the fastest", "1/1.1 of im2winGPU on average", "bench", fastest_cudnn),
    _cudnn("gemm", "GEMM", "never the fastest"),
    _cudnn("implicit_gemm", "IMPLICIT_GEMM", _times_fastest("IMPLICIT_GEMM")),
    _cudnn("implicit_precomp_gemm", "IMPLICIT_PRECOMP_GEMM", "never the fastest"),
    _cudnn("direct", "DIRECT", "never the fastest"),
    _cudnn("fft", "FFT", _times_fastest("FFT")),
    _cudnn("winograd", "WINOGRAD", _times_fastest("WINOGRAD")),
    Named(
        "000", "im2winGPU without prefetching", "the least loss", "ablation",
        left_out("without_prefetch"),
    ),
    Named(
        "000", "im2winGPU without vectorized load", "the second loss", "ablation",
        left_out("without_vectorized"),
    ),
    Named(
        "000", "im2winGPU without micro-kernel", "the greatest loss", "ablation",
        left_out("without_microkernel"),
    ),
    Named("000", "MEC", "none: its code is not open", None, "not run: its code is not open"),
    Named(
        "000", "μ-cuDNN", "none: related work", None,
        "not run: it splits batches so that cuDNN's algorithms fit a small workspace; here each "
        "algorithm gets the workspace that it asks for",
    ),
    Named("001", "Baseline: C++, g++", "1x", "sweeps", baseline),
    Named("001", "CUDA naive", "a line in Figures 1 to 4", "sweeps", over_cpp("s02_cin_naive")),
    Named("001", "CUDA C_out parallel", "a line in them", "sweeps", over_cpp("s02_cout")),
    Named(
        "001", "CUDA C_in parallel", "up to 270x over C++, up to 2.8x over CUTLASS", "sweeps",
        over_cpp("s02_cin"),
    ),
    Named("001", "CUTLASS analytic", "a line in them", "sweeps", over_cpp("cutlass_analytic")),
    Named("001", "CUTLASS optimized", "a line in them", "sweeps", over_cpp("cutlass_optimized")),
    Named(
        "001", "TORCH compile", "a line in them", "sweeps", over_cpp("torch_compile_fp32")
    ),
    *(
        Named("002", line.title, f"{line.claimed_ms:.3f} ms", "unfold_table", row_of_table_1(name))
        for name, line in unfold_table.LINES.items()
        if line.claimed_ms is not None
    ),
    Named(
        "002", "a kernel in Triton", "none: named as another way", None,
        "not run: the document has none",
    ),
    *(
        Named("003", f"DECX im2col, dpitch {pitch}", "no times given", "im2col", depth(pitch))
        for pitch in (4, 8, 12, 16)
    ),
)  # fmt: skip


def show(results: Mapping[str, Any], commands: Mapping[str, str]) -> str:
    """The table. ``results`` and ``commands`` are by file; a file that is not there yet has no
    entry in ``results``."""
    rows: list[Sequence[str]] = []
    for named in SYSTEMS:
        if named.file is None:
            ours, command = str(named.ours), "-"
        else:
            command = f"`{commands[named.file]}`"
            found = named.ours
            known = results.get(named.file) is not None and callable(found)
            ours = found(results) if known and callable(found) else NOT_YET
        rows.append((named.document, named.system, named.claimed, ours, command))
    return table(("document", "system", "its figure there", "ours", "command"), rows, left=5)
