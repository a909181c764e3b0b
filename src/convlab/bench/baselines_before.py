"""Baselines' times beside those that were known before this benchmark was written: what both
measured, and why they differ where they do. A part of docs/baselines.md, which
:mod:`convlab.bench.report_docs` makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from convlab.bench import analysis
from convlab.bench.analysis import CUDNN, GEMM_CLASS, TORCH, Contender
from convlab.bench.measured import table
from convlab.bench.report_runs import nth_run
from convlab.bench.results import Results
from convlab.bench.rows import Row
from convlab.workloads import LAYER_NAMES

# What the project began with: batch 128, float32 NCHW, one H200 with driver 580, CUDA 13.0,
# PyTorch 2.11 and cuDNN 9.19. Medians in ms, many of them by events around single calls.
BEFORE_MS: dict[str, dict[str, float]] = {
    name: dict(zip(LAYER_NAMES, times, strict=True))
    for name, times in {
        TORCH: (
            1.036, 1.056, 1.438, 26.87, 0.443, 0.603, 1.314, 5.427, 0.723, 0.322, 0.328, 0.492,
        ),
        GEMM_CLASS: (
            1.036, 1.056, 1.438, 26.87, 1.755, 1.150, 1.314, 5.427, 0.723, 0.781, 0.817, 0.492,
        ),
        CUDNN: (
            1.036, 1.056, 1.438, 7.23, 0.443, 0.422, 1.314, 3.218, 0.480, 0.322, 0.281, 0.388,
        ),
        "torch_tf32": (
            1.00, 1.02, 1.31, 4.60, 0.268, 0.164, 1.36, 1.32, 0.274, 0.169, 0.129, 0.109,
        ),
        "im2col_cublas_batched": (
            3.87, 4.06, 2.56, 22.41, 3.01, 2.37, 2.46, 8.02, 1.95, 2.07, 1.98, 1.81,
        ),
        "im2col_cublas_per_image": (
            9.84, 10.46, 9.82, 26.32, 11.74, 11.00, 10.20, 10.16, 10.91, 12.34, 10.44, 11.04,
        ),
    }.items()
}  # fmt: skip
SINCE = ("cutlass_optimized", "cutlass_tf32")  # of which nothing was known before
TITLES = {GEMM_CLASS: "cuDNN's GEMM class", CUDNN: "cuDNN's fastest"}
APART = 0.10
UNEXPLAINED = "not explained yet"
NOTHING = "-"
Cell = tuple[str, str]


@dataclass(frozen=True)
class Reason:
    """Why times differ from those before, in which cells; ``faster`` is the benchmark."""

    names: tuple[str, ...]
    layers: tuple[str, ...]
    faster: bool
    why: str

    def explains(self, name: str, layer: str, change: float) -> bool:
        """Whether it is the reason for a change there, as a part of the time before."""
        return name in self.names and layer in self.layers and (change < 0) == self.faster


REASONS = (
    Reason(
        ("im2col_cublas_batched",), LAYER_NAMES, True,
        "PyTorch starts its im2col kernel once an image: 128 launches, whose time on the host "
        "counts with events around a call and not in a graph. How long a host takes for them is "
        "not the same each time: called, each of these layers came within an eighth of that time "
        "in one or another of our own runs, and most of them stayed a fifth or more below it in "
        "others.",
    ),
    Reason(
        ("im2col_cublas_per_image",), LAYER_NAMES, True,
        "128 launches of im2col and 128 products after them, whose time on the host counts with "
        "events around a call and not in a graph. Called, these layers took between two fifths and "
        "all of the time before in our own runs, by host.",
    ),
    Reason(
        ("torch_tf32",), ("conv5", "conv6", "conv9", "conv10", "conv11", "conv12"), True,
        "Several kernels a call, as the tensors are turned round: called, launches included, it "
        "takes about as long as before, or longer. And PyTorch's trial of cuDNN's kernels, whose "
        "times are so near to each other, does not end with the same one each time: "
        "[results.md](results.md#a-second-run) has where our own runs had others.",
    ),
    Reason(
        (CUDNN,), ("conv6", "conv9", "conv11", "conv12"), True,
        "Winograd's and Fourier's algorithms are several kernels a call, and their launches "
        "counted before: called, they take about as long as then, or longer, but for Conv9 and "
        "Conv12 in one of our own runs each, where they took a tenth less.",
    ),
    Reason(
        (GEMM_CLASS,), ("conv6", "conv10", "conv11"), True,
        "The launch counted before: called, it takes about as long as then, "
        "or longer.",
    ),
)  # fmt: skip


def differing(results: Results) -> dict[Cell, float]:
    """By column and layer: how far a time is from the one before, as a part of it, where that is
    more than :data:`APART`."""
    found = {}
    for name, before in BEFORE_MS.items():
        for layer, row in _rows(results, name).items():
            if row is not None and row.time_ms is not None and layer in before:
                change = row.time_ms / before[layer] - 1
                if abs(change) > APART:
                    found[name, layer] = change
    return found


def reason_for(name: str, layer: str, change: float) -> str:
    """Why a time differs; :data:`UNEXPLAINED` where nobody has said."""
    found = (reason.why for reason in REASONS if reason.explains(name, layer, change))
    return next(found, UNEXPLAINED)


def section(results: Results, others: Sequence[Results] = ()) -> str:
    """Both measurements, what differs and why, what ordinary calls take there, in ``others``,
    further runs, too, and what ``torch.compile`` costs."""
    parts = (_heading(results), _both(results), _why(results), _called(results, others))
    return "\n".join((*(part for part in parts if part), _compiled(results)))


def _heading(results: Results) -> str:
    packages = results.environment.get("packages") or {}
    known = {"PyTorch": "torch", "cuDNN": "nvidia-cudnn-cu13", "CUTLASS": "nvidia-cutlass"}
    versions = [f"{word} {packages[name]}" for word, name in known.items() if packages.get(name)]
    batches = ", ".join(str(batch) for batch in dict.fromkeys(b for _, b in results.layers()))
    return (
        f"{results.device} ({', '.join(versions)}), batch {batches}, milliseconds: medians of "
        "graph replays, L2 flushed. In brackets what was measured on such a GPU before this "
        "benchmark was written, much of it by events around single calls; of CUTLASS nothing was.\n"
    )


def _contender(results: Results, name: str) -> Contender | None:
    groups = {one.name: one for one in analysis.fastest(results)}
    if name in groups or name in TITLES:
        return groups.get(name)
    return analysis.contender(results, name) if name in results.systems else None


def _rows(results: Results, name: str) -> dict[str, Row | None]:
    one = _contender(results, name)
    return {
        layer: None if one is None else one.best(results, (layer, batch))
        for layer, batch in results.layers()
    }


def _both(results: Results) -> str:
    columns = {name: _rows(results, name) for name in (*BEFORE_MS, *SINCE)}
    rows = [
        (layer, *(_cell(name, layer, rows[layer]) for name, rows in columns.items()))
        for layer, _ in results.layers()
    ]
    return table(("layer", *(TITLES.get(name, f"`{name}`") for name in columns)), rows)


def _cell(name: str, layer: str, row: Row | None) -> str:
    before = BEFORE_MS.get(name, {}).get(layer)
    known = "" if before is None else f" ({before:g})"
    if row is None or row.time_ms is None:
        return f"{NOTHING}{known}"
    who = ""
    if name in TITLES:
        who = " PyTorch's" if row.system == TORCH else f" {row.system[len('cudnn_') :].upper()}"
    mark = "" if row.settled else "~"
    return f"{mark}{row.time_ms:.{3 if row.time_ms < 10 else 2}f}{known}{who}"


def _why(results: Results) -> str:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (name, layer), change in differing(results).items():
        why = reason_for(name, layer, change)
        by_reason.setdefault((name, why), []).append(f"{layer} {100 * change:+.0f} %")
    if not by_reason:
        return f"Nowhere do the two differ by more than {100 * APART:.0f} %.\n"
    rows = [
        (f"{TITLES.get(name, f'`{name}`')}: {', '.join(cells)}", why)
        for (name, why), cells in by_reason.items()
    ]
    words = f"Where the two differ by more than {100 * APART:.0f} %:\n\n"
    return words + table(("what", "why"), rows, left=2)


def _called(results: Results, others: Sequence[Results]) -> str:
    """What ordinary calls take where times differ, and of the same system in other runs."""
    rows = []
    for name, layer in differing(results):
        row = _rows(results, name)[layer]
        assert row is not None, "it differs"
        times = [row.time_ms, *(called_ms(one, row) for one in (results, *others))]
        cells = (NOTHING if time_ms is None else f"{time_ms:.3f}" for time_ms in times)
        rows.append((TITLES.get(name, f"`{name}`"), layer, f"{BEFORE_MS[name][layer]:g}", *cells))
    if not rows:
        return ""
    further = (f"called, in {nth_run(number)}" for number, _ in enumerate(others, start=2))
    head = ("what", "layer", "before", "replayed", "called", *further)
    dates = "; [their dates](fast-table.md#called-ordinarily)" if others else ""
    words = f"There, by ordinary calls with their launches, milliseconds{dates}:\n\n"
    return words + table(head, rows, left=2)


def called_ms(results: Results, row: Row) -> float | None:
    """What an ordinary call of a row's system takes in a run."""
    there = results.row(row.layer, row.batch, row.system)
    return None if there is None else there.called_ms


def _compiled(results: Results) -> str:
    plain, compiled = (_rows(results, name) for name in (TORCH, "torch_compile_fp32"))
    changes = [
        100 * (after.time_ms / before.time_ms - 1)
        for before, after in zip(plain.values(), compiled.values(), strict=True)
        if before and after and before.time_ms and after.time_ms
    ]
    if not changes:
        return ""
    return (
        "`torch.compile` turned the tensors channels-last around the convolution: in fp32 it took "
        f"{min(changes):.0f} to {max(changes):.0f} % longer than `conv2d`, by layer.\n"
    )
