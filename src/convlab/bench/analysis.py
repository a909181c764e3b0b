"""What follows from rows: speedups, means, the fastest of several, memory, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

from convlab.bench.results import Results, tensor_bytes
from convlab.bench.roofline import EVERY_MULTIPLICATION, percent_of_roofline
from convlab.bench.rows import Row
from convlab.workloads import problem_named

BASELINE = "s01_direct"
CUDNN, GEMM_CLASS = "cudnn_fastest", "cudnn_gemm_class"
TORCH = "torch_fp32"
# Parts of the names of cuDNN's kernels that do fewer multiplications than a GEMM: Fourier
# transforms, the complex products between two of them, Winograd's.
FEWER_MULTIPLICATIONS = ("fft", "cf32", "cgemm", "winograd")
Layer = tuple[str, int]


@dataclass(frozen=True)
class Contender:
    """A system, or on each layer the fastest of several, under one name. ``gemm_class`` lets only
    the rows count that :func:`in_gemm_class` accepts."""

    name: str
    title: str
    members: tuple[str, ...]
    gemm_class: bool = False

    def best(self, results: Results, layer: Layer) -> Row | None:
        """The fastest member's row on a layer; None where none has a number."""
        rows = (results.row(*layer, member) for member in self.members)
        timed = [row for row in rows if row is not None and row.ok]
        if self.gemm_class:
            timed = [r for r in timed if in_gemm_class(results.systems[r.system]["method"], r)]
        return min(timed, key=lambda row: row.time_ms or math.inf, default=None)

    def time_ms(self, results: Results, layer: Layer) -> float | None:
        """The system's time on a layer."""
        row = self.best(results, layer)
        return None if row is None else row.time_ms


def in_gemm_class(method: str, row: Row) -> bool:
    """Whether a row's kernels do every multiplication of the convolution, as cuDNN's GEMM and
    direct algorithms do. Where the library chooses (``any``), the names of the kernels that ran
    decide; a row without names is not accepted."""
    if method != "any":
        return method in EVERY_MULTIPLICATION
    names = (row.algorithm or FEWER_MULTIPLICATIONS[0]).lower()
    return not any(sign in names for sign in FEWER_MULTIPLICATIONS)


def contender(results: Results, name: str) -> Contender:
    """One system as it is."""
    return Contender(name, results.systems[name]["title"], (name,))


def stages(results: Results) -> list[Contender]:
    """The stages, in the ladder's order."""
    return [contender(results, name) for name in results.names("stage")]


def baselines(results: Results) -> list[Contender]:
    """The baselines that have at least one number."""
    timed = {row.system for row in results.rows.values() if row.ok}
    return [contender(results, name) for name in results.names("baseline") if name in timed]


def everybody(results: Results) -> list[Contender]:
    """The stages, then the baselines."""
    return [*stages(results), *baselines(results)]


def comparators(results: Results) -> list[Contender]:
    """What a stage is compared with: s01, each baseline, and the fastest of some."""
    first = [one for one in stages(results) if one.name == BASELINE]
    return [*first, *baselines(results), *fastest(results)]


def selected(results: Results) -> list[Contender]:
    """What one plot has room for: s01, im2col with BLAS, the last stages, the fastest baselines."""
    names = results.names("stage")
    few = {BASELINE, "s03_im2col_blas", *names[-3:]}
    return [*(Contender(name, name, (name,)) for name in names if name in few), *fastest(results)]


def fastest(results: Results) -> list[Contender]:
    """The fastest of PyTorch, of cuDNN (by its own API or as PyTorch chose), and of cuDNN's kernels
    that do every multiplication as the stages do. In fp32; a group without a number is left out."""
    cudnn = (*in_fp32(results, "cudnn"), TORCH)
    title = "the fastest of cuDNN's GEMM class, fp32"
    groups = (
        Contender("torch_fastest", "the fastest of PyTorch, fp32", in_fp32(results, "pytorch")),
        Contender(CUDNN, "the fastest of cuDNN, fp32", cudnn),
        Contender(GEMM_CLASS, title, cudnn, gemm_class=True),
    )
    layers = results.layers()
    return [one for one in groups if any(one.best(results, layer) for layer in layers)]


def in_fp32(results: Results, family: str) -> tuple[str, ...]:
    """The names of a family's systems that compute in fp32."""
    return tuple(
        system["name"]
        for system in results.systems.values()
        if system["family"] == family and system["precision"] == "fp32"
    )


def speedup(results: Results, one: Contender, over: Contender, layer: Layer) -> float | None:
    """How many times as fast as the other; None unless both have a number there."""
    mine, other = one.time_ms(results, layer), over.time_ms(results, layer)
    return other / mine if mine and other else None


def mean_speedup(results: Results, one: Contender, over: Contender) -> tuple[float, int] | None:
    """The geometric mean of the speedups, and over how many layers; None where there is none."""
    ratios = [speedup(results, one, over, layer) for layer in results.layers()]
    known = [ratio for ratio in ratios if ratio]
    return (geometric_mean(known), len(known)) if known else None


def percent(results: Results, row: Row | None) -> float | None:
    """How near a row comes to the roofline of its precision; above 100 only where an algorithm does
    fewer multiplications than the convolution has."""
    if row is None or row.time_ms is None:
        return None
    precision = results.systems[row.system]["precision"]
    problem = problem_named(row.layer, row.batch)
    return percent_of_roofline(problem, row.time_ms, results.machine, precision)


def memory(row: Row) -> tuple[int | None, int | None]:
    """The workspace in bytes, computed and measured: the peak without input, filter and output."""
    own = tensor_bytes(problem_named(row.layer, row.batch))
    return row.workspace_bytes, None if row.peak_bytes is None else row.peak_bytes - own


def memory_ratios(results: Results, system: str) -> tuple[float | None, ...]:
    """All memory of a system over that of the tensors, computed and measured: geometric means over
    the layers that it can do."""
    found: tuple[list[float], list[float]] = ([], [])
    for row in results.rows.values():
        if row.system == system and row.ok:
            own = tensor_bytes(problem_named(row.layer, row.batch))
            for ratios, workspace in zip(found, memory(row), strict=True):
                if workspace is not None and own + workspace > 0:
                    ratios.append(1 + workspace / own)
    return tuple(geometric_mean(ratios) if ratios else None for ratios in found)


def best_stage(results: Results, precision: str = "fp32") -> Contender | None:
    """The stage of a precision with the highest geometric mean over s01, of those on most layers.
    ``fp32`` is the arithmetic of the baselines; ``3xtf32`` is as accurate."""
    every = {one.name: one for one in stages(results)}
    if BASELINE not in every:
        return None
    ranked = [
        (mean[1], mean[0], one.name)
        for one in every.values()
        if results.systems[one.name]["precision"] == precision
        and (mean := mean_speedup(results, one, every[BASELINE]))
    ]
    return every[max(ranked)[2]] if ranked else None


def numberless(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows that have no number, those of one system with the same reason together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if not row.ok:
            found.setdefault((row.system, row.state, str(row.reason)), []).append(row.layer)
    names = ("system", "state", "reason")
    return [dict(zip(names, alike, strict=True), layers=of) for alike, of in found.items()]


def agreement(one: Results, other: Results) -> list[tuple[str, int, float, float]]:
    """How far two runs agree, for each system that both measured: its name, on how many layers, and
    median and largest difference over these, in percent of the first's time."""
    found = []
    for name in one.systems:
        differences = [
            100 * abs(again.time_ms - row.time_ms) / row.time_ms
            for key, row in one.rows.items()
            if row.system == name
            and row.time_ms
            and (again := other.rows.get(key)) is not None
            and again.time_ms
        ]
        if differences:
            found.append((name, len(differences), median(differences), max(differences)))
    return found


def layers_in_words(names: Sequence[str], of: int) -> str:
    """``all layers``, or which."""
    return "all layers" if len(names) == of and of > 1 else ", ".join(names)


def by_batch(results: Results) -> dict[int, Results]:
    """The results of each batch by themselves."""
    return {
        batch: replace(
            results, rows={key: row for key, row in results.rows.items() if row.batch == batch}
        )
        for batch in sorted({row.batch for row in results.rows.values()})
    }


def as_json(results: Results, others: Sequence[Results] = ()) -> dict[str, Any]:
    """What a report says, as a document of :mod:`json`: each batch's speedups, roofline shares and
    reasons, and how far ``others`` agree with these results."""
    columns = ("system", "layers", "median_percent", "largest_percent")

    def told(one: Results) -> dict[str, Any]:
        return {name: getattr(one, name) for name in ("environment", "identity", "finished")}

    def agreed(other: Results) -> list[dict[str, Any]]:
        return [dict(zip(columns, row, strict=True)) for row in agreement(results, other)]

    return {
        "device": results.device,
        **told(results),
        "batches": [_batch_json(one, batch) for batch, one in by_batch(results).items()],
        "other_runs": [{**told(other), "systems": agreed(other)} for other in others],
    }


def _batch_json(results: Results, batch: int) -> dict[str, Any]:
    every, groups = everybody(results), fastest(results)
    over = [*(one for one in every if one.name == BASELINE), *groups]
    systems = []
    for one in (*every, *groups):
        means = {other.name: mean_speedup(results, one, other) for other in over}
        systems.append({
            "name": one.name,
            "title": one.title,
            "mean_speedup_over": {
                name: mean and {"mean": mean[0], "layers": mean[1]} for name, mean in means.items()
            },
            "layers": [_layer_json(results, one, over, layer) for layer in results.layers()],
        })  # fmt: skip
    return {"batch": batch, "systems": systems, "without_number": numberless(results.rows.values())}


def _layer_json(
    results: Results, one: Contender, over: list[Contender], layer: Layer
) -> dict[str, Any]:
    row = one.best(results, layer)
    told = ("system", "time_ms", "settled", "tflops", "workspace_bytes", "peak_bytes")
    return {
        "layer": layer[0],
        **{name: getattr(row, name, None) for name in told},
        "percent_of_roofline": percent(results, row),
        "speedup_over": {other.name: speedup(results, one, other, layer) for other in over},
    }
