"""Results of rows: speedups, means, the fastest of several, memory, and the roofline.

A file has some hundred rows, and ``convlab bench`` prints their summary in an installation without
the ``plots`` extra, so this uses the standard library: a data frame would hold the same
rows, whose systems, problems and groups are objects with methods here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import NamedTuple, TypedDict

from convlab.measuring.results import Layer, ResultRow, Results, tensor_bytes
from convlab.measuring.roofline import floor_seconds, in_gemm_class

BASELINE = "m01_direct"
CUDNN, GEMM_CLASS = "cudnn_fastest", "cudnn_gemm_class"
TORCH = "torch_fp32"


@dataclass(frozen=True)
class Speedup:
    """One system's speed over another's on each layer; None where one has no number."""

    by_layer: Sequence[float | None]

    @property
    def known(self) -> list[float]:
        """The ratios of the layers that both systems have."""
        return [ratio for ratio in self.by_layer if ratio]

    @property
    def mean(self) -> float | None:
        """The geometric mean over the layers that both have."""
        return geometric_mean(self.known) if self.known else None

    @property
    def few(self) -> str:
        """`` (7)`` to stand after a mean over 7 layers, where there are more."""
        few = len(self.known)
        return "" if few == len(self.by_layer) else f" ({few})"


@dataclass(frozen=True)
class Contender:
    """A system, or on each layer the fastest of several, under one name. ``gemm_class`` lets only
    the rows count that :func:`in_gemm_class` accepts."""

    results: Results
    name: str
    title: str
    members: Sequence[str]
    gemm_class: bool = False

    @property
    def is_group(self) -> bool:
        """True for the fastest of several systems, which has a name of its own."""
        return self.name not in self.results.systems

    def best(self, layer: Layer) -> ResultRow | None:
        """The fastest member's row on a layer; None where none has a number."""
        rows = (self.results.row(*layer, member) for member in self.members)
        timed = [row for row in rows if row is not None and row.ok and self._counts(row)]
        return min(timed, key=lambda row: row.time_ms or math.inf, default=None)

    def _counts(self, row: ResultRow) -> bool:
        method = self.results.systems[row.system]["method"]
        return not self.gemm_class or in_gemm_class(method, row.algorithm)

    def rows(self) -> list[ResultRow | None]:
        """The best row of each layer."""
        return [self.best(layer) for layer in self.results.layers()]

    def measured(self) -> list[ResultRow]:
        """The best rows, of the layers that have one."""
        return [row for row in self.rows() if row is not None]

    def over(self, other: Contender) -> Speedup:
        """Return the speed of this contender over another's on each layer."""
        pairs = zip(self.rows(), other.rows(), strict=True)
        times = ((mine and mine.time_ms, theirs and theirs.time_ms) for mine, theirs in pairs)
        return Speedup([theirs / mine if mine and theirs else None for mine, theirs in times])


def contender(results: Results, name: str) -> Contender:
    """One system as it is. One that was not measured has no rows, and its name as title."""
    return Contender(results, name, results.systems.get(name, {}).get("title", name), (name,))


def stages(results: Results) -> list[Contender]:
    """The stages, in the ladder's order."""
    return [contender(results, name) for name in results.names("stage")]


def baselines(results: Results) -> list[Contender]:
    """The baselines that have at least one number."""
    every = (contender(results, name) for name in results.names("baseline"))
    return [one for one in every if one.measured()]


def everybody(results: Results) -> list[Contender]:
    """The stages, then the baselines."""
    return [*stages(results), *baselines(results)]


def first(results: Results) -> list[Contender]:
    """m01, which the stages are compared with, where it is there."""
    return [one for one in stages(results) if one.name == BASELINE]


def comparators(results: Results) -> list[Contender]:
    """Return the systems that a stage is compared with: m01, each baseline, the fastest of some."""
    return [*first(results), *baselines(results), *fastest(results)]


def selected(results: Results) -> list[Contender]:
    """Return a plot's systems: m01, im2col with BLAS, the last stages, the fastest baselines."""
    every = stages(results)
    few = {BASELINE, "i04_im2col_blas", *(one.name for one in every[-3:])}
    named = [replace(one, title=one.name) for one in every if one.name in few]
    return [*named, *fastest(results)]


def fastest(results: Results) -> list[Contender]:
    """The fastest of PyTorch, of cuDNN (by its own API or as PyTorch chose), and of cuDNN's kernels
    that do every multiplication as the stages do. In fp32; a group without a number is left out."""
    torch, cudnn = in_fp32(results, "pytorch"), (*in_fp32(results, "cudnn"), TORCH)
    groups = (
        Contender(results, "torch_fastest", "the fastest of PyTorch, fp32", torch),
        Contender(results, CUDNN, "the fastest of cuDNN, fp32", cudnn),
        Contender(
            results, GEMM_CLASS, "the fastest of cuDNN's GEMM class, fp32", cudnn, gemm_class=True
        ),
    )
    return [one for one in groups if one.measured()]


def in_few_rows(results: Results) -> list[Contender]:
    """The stages, then the fastest of each library in each precision, as a short table has them."""
    families: dict[str, list[str]] = {}
    for one in baselines(results):
        system = results.systems[one.name]
        families.setdefault(f"{system['family']} {system['precision']}", []).append(one.name)
    named = {"pytorch fp32": "torch_fastest", "cudnn fp32": CUDNN}
    groups = {one.name: one for one in fastest(results)}
    found = stages(results)
    for name, members in families.items():
        of_several = Contender(results, f"{name}, fastest", "", members)
        alone = contender(results, members[0])
        found.append(groups.get(named.get(name, ""), alone if len(members) == 1 else of_several))
    return [*found, *(one for one in groups.values() if one.gemm_class)]


def in_fp32(results: Results, family: str) -> list[str]:
    """The names of a family's systems that compute in fp32."""
    return [
        system["name"]
        for system in results.systems.values()
        if system["family"] == family and system["precision"] == "fp32"
    ]


def best_stage(results: Results, precision: str = "fp32") -> Contender | None:
    """The stage of a precision with the highest geometric mean over m01, of those on most layers.
    ``fp32`` is the arithmetic of the baselines; ``3xtf32`` is as accurate."""
    ranked = [
        (len(over.known), over.mean, one.name)
        for base in first(results)
        for one in stages(results)
        if results.systems[one.name]["precision"] == precision
        and (over := one.over(base)).mean is not None
    ]
    return contender(results, max(ranked)[2]) if ranked else None


def percent(results: Results, row: ResultRow | None) -> float | None:
    """The floor of the convolution as it is defined, all multiplications done, over a row's time,
    in percent; above 100 only where an algorithm does fewer multiplications."""
    if row is None or row.time_ms is None:
        return None
    precision = results.systems[row.system]["precision"]
    floor = floor_seconds(row.problem, results.machine, precision)
    return None if floor is None else 100 * floor / (row.time_ms / 1e3)


class MemoryUse(NamedTuple):
    """The memory of a system beside the tensors, over the layers that it can do.

    It has the largest workspace in bytes, and the geometric mean of all memory over that of the
    tensors.
    """

    workspace: int | None
    ratio: float | None


def memory(one: Contender) -> tuple[MemoryUse, MemoryUse]:
    """Computed, and measured: the peak without input, filter and output."""
    tensors = [tensor_bytes(row.problem) for row in one.measured()]
    computed = [row.workspace_bytes for row in one.measured()]
    peaks = zip([row.peak_bytes for row in one.measured()], tensors, strict=True)
    measured = [None if peak is None else peak - own for peak, own in peaks]

    def over(sizes: Sequence[int | None]) -> MemoryUse:
        known = [(size, own) for size, own in zip(sizes, tensors, strict=True) if size is not None]
        ratios = [1 + size / own for size, own in known if own + size > 0]
        most = max((size for size, _ in known), default=None)
        return MemoryUse(most, geometric_mean(ratios) if ratios else None)

    return over(computed), over(measured)


class Numberless(TypedDict):
    """Layers on which a system has no number for the same reason."""

    system: str
    state: str
    reason: str
    layers: list[str]


def numberless(rows: Iterable[ResultRow]) -> list[Numberless]:
    """Return the rows that have no number, those of one system with the same reason together."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if not row.ok:
            found.setdefault((row.system, row.state, str(row.reason)), []).append(row.layer)
    return [
        Numberless(system=system, state=state, reason=reason, layers=layers)
        for (system, state, reason), layers in found.items()
    ]


def agreement(one: Results, other: Results) -> list[tuple[str, int, float, float]]:
    """Compare two runs, for each system that both measured.

    A row has the system's name, its number of layers, and the median and the largest difference
    over these, in percent of the first run's time.
    """
    found: dict[str, list[float]] = {name: [] for name in one.systems}
    for key, row in one.rows.items():
        again = other.rows.get(key)
        if row.time_ms and again is not None and again.time_ms:
            found[row.system].append(100 * abs(again.time_ms - row.time_ms) / row.time_ms)
    return [(name, len(off), median(off), max(off)) for name, off in found.items() if off]


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


def as_json(results: Results, others: Sequence[Results] = ()) -> dict[str, object]:
    """Return a report as a document of :mod:`json`.

    It holds each batch's speedups, roofline shares and reasons, and the agreement of ``others``
    with these results.
    """
    columns = ("system", "layers", "median_percent", "largest_percent")

    def told(one: Results) -> dict[str, object]:
        return {name: getattr(one, name) for name in ("environment", "identity", "finished")}

    def agreed(other: Results) -> list[dict[str, object]]:
        return [dict(zip(columns, row, strict=True)) for row in agreement(results, other)]

    return {
        "device": results.device,
        **told(results),
        "batches": [_batch_json(one, batch) for batch, one in by_batch(results).items()],
        "other_runs": [{**told(other), "systems": agreed(other)} for other in others],
    }


def _batch_json(results: Results, batch: int) -> dict[str, object]:
    groups = fastest(results)
    systems = []
    for one in (*everybody(results), *groups):
        over = {other.name: one.over(other) for other in (*first(results), *groups)}
        systems.append({
            "name": one.name,
            "title": one.title,
            "mean_speedup_over": {
                name: ratios.mean and {"mean": ratios.mean, "layers": len(ratios.known)}
                for name, ratios in over.items()
            },
            "layers": [
                {
                    "layer": layer,
                    **{name: getattr(row, name, None) for name in _OF_A_LAYER},
                    "percent_of_roofline": percent(results, row),
                    "speedup_over": {name: ratios.by_layer[at] for name, ratios in over.items()},
                }
                for at, ((layer, _), row) in enumerate(
                    zip(results.layers(), one.rows(), strict=True)
                )
            ],
        })  # fmt: skip
    return {"batch": batch, "systems": systems, "without_number": numberless(results.rows.values())}


_OF_A_LAYER = ("system", "time_ms", "settled", "tflops", "workspace_bytes", "peak_bytes")
