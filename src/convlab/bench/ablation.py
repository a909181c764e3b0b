"""What each technique of s11 is worth: ``python -m convlab.bench.ablation [--json FILE]``.

Figure 4 of the im2win paper (000): the whole kernel, and the kernel without prefetching, without
vectorised access and without the micro-kernel, on the twelve layers at batch 128. Each variant is
s11 with one switch off (:mod:`convlab.kernels.ablation`), measured as ``convlab bench`` measures
stages; the im2win transform is part of every time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convlab.bench.analysis import geometric_mean
from convlab.bench.cases import cases_for
from convlab.bench.gpu_backend import GpuBackend
from convlab.bench.harness import SETTLED_PERCENT
from convlab.bench.measured import table
from convlab.bench.seed_runs import marked, number_of, reasons_below, run_cases, unsettled
from convlab.bench.systems import System, of_stage
from convlab.stages import stage_named
from convlab.workloads import LAYER_NAMES, PAPER_BATCH

WHOLE = "s11_im2win_full"
# By the variant's name: the switch of s11 that is off, and the variant in the paper's words.
VARIANTS = {
    "without_prefetch": ("prefetch", "without prefetching and double buffers"),
    "without_vectorized": ("vectorized", "without vectorized access"),
    "without_microkernel": ("microkernel", "without the micro-kernel"),
}
NAMES = (WHOLE, *VARIANTS)
BACKEND = "convlab.bench.ablation:Variants"


def variant(name: str) -> System:
    """s11, whole or with a technique left out. Raises ``KeyError`` for any other name."""
    stage = stage_named(WHOLE)
    if name == WHOLE:
        return of_stage(stage)
    switch, words = VARIANTS[name]
    return replace(of_stage(stage, **{switch: False}), name=name, title=f"s11 {words}")


class Variants(GpuBackend):
    """The GPU, for processes that know the variants by name."""

    def system_named(self, name: str) -> System:
        """The variant of that name."""
        return variant(name)


def layers_of(document: dict[str, Any]) -> list[str]:
    """The layers that were measured, in order."""
    return list(dict.fromkeys(row["layer"] for row in document["rows"]))


def tflops(document: dict[str, Any], layer: str, name: str) -> float | None:
    """TFLOP/s of a variant on a layer; None where there is no number."""
    return number_of(document, layer, name, "tflops")


def worth(document: dict[str, Any], name: str) -> list[float]:
    """How many times as fast the whole is as the variant, on each layer where both have a time."""
    pairs = [
        (number_of(document, layer, name, "time_ms"), number_of(document, layer, WHOLE, "time_ms"))
        for layer in layers_of(document)
    ]
    return [without / whole for without, whole in pairs if without and whole]


def show(document: dict[str, Any]) -> str:
    """The tables: TFLOP/s by layer, and what each technique is worth."""
    head = ("layer", *(f"{name} TFLOP/s" for name in NAMES))
    rows = [
        (layer, *(_speed(document, layer, name) for name in NAMES)) for layer in layers_of(document)
    ]
    gains = []
    for name, (_, words) in VARIANTS.items():
        ratios = worth(document, name)
        if ratios:
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            gains.append((words, f"{geometric_mean(ratios):.2f}", spread, f"{len(ratios)}"))
    return (
        f"Batch {PAPER_BATCH} on an {document['device']}; every time with its transform; ~ where "
        f"the runs' spread stayed above {SETTLED_PERCENT:g} %.\n\n"
        f"{table(head, rows)}\nThe whole s11 is so many times as fast as s11\n\n"
        f"{table(('', 'geometric mean', 'from, to', 'layers'), gains)}"
        f"{reasons_below(document)}"
    )


def _speed(document: dict[str, Any], layer: str, name: str) -> str:
    value = tflops(document, layer, name)
    return "-" if value is None else marked(f"{value:.1f}", unsettled(document, layer, name))


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    about = "s11 whole and without each of its techniques, on the twelve layers."
    cases = cases_for(LAYER_NAMES, PAPER_BATCH, [variant(name) for name in NAMES])
    return run_cases("convlab.bench.ablation", about, cases, BACKEND, show, arguments)


if __name__ == "__main__":
    sys.exit(main())
