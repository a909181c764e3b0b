"""Lists of cases beside the twelve layers: ``convlab bench --cases NAME``.

============ ======================================================================================
sizes        s12, PyTorch and cuDNN's GEMM class on sizes that no tile was tuned for
ablation     Figure 4 of the im2win paper: s11 whole and without each technique, twelve layers
sweeps       Figures 1 to 4 of article 001: single images, one size changed at a time, and C++ loops
unfold_table Table 1 of article 002 (:mod:`convlab.bench.baselines.unfold_table`)
============ ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from convlab.bench.analysis import TORCH
from convlab.bench.baselines import unfold_table
from convlab.bench.cases import Case
from convlab.bench.systems import VARIANTS, WHOLE, system_named
from convlab.problem import ConvProblem
from convlab.workloads import LAYER_NAMES, PAPER_BATCH, UNSEEN, UNTUNED, paper_layer

SIZES = UNTUNED | UNSEEN
S12 = "s12_fused_im2win"
SIZE_SYSTEMS = (S12, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")
SWEEP_BASE = ConvProblem(1, 4, 128, 128, 16, 3)
# Article 001 gives no sizes but a filter of 64 x 64. These keep the C++ loops at seconds.
SWEEPS: dict[str, tuple[int, ...]] = {
    "size": (32, 64, 128, 256, 512, 1024),
    "in_channels": (1, 4, 16, 64, 256),
    "out_channels": (1, 4, 16, 64, 256),
    "kernel_size": (1, 3, 7, 16, 32, 64),
}
SWEEP_SYSTEMS = (
    "cpp_seven_loops", "s02_cin_naive", "s02_cout", "s02_cin", "cutlass_analytic",
    "cutlass_optimized", "torch_compile_fp32", "torch_compile_tf32", "cutlass_tf32", WHOLE,
)  # fmt: skip
UNFOLDED = unfold_table.PROBLEM
UNFOLD_SYSTEMS = (*unfold_table.LINES, "s03_unfold_einsum", WHOLE)


def named(problems: Mapping[str, ConvProblem], systems: Iterable[str]) -> list[Case]:
    """Every system on every problem of that name."""
    chosen = [system_named(name) for name in systems]
    return [Case(name, problem, system) for name, problem in problems.items() for system in chosen]


def sweep_points() -> list[tuple[str, int, ConvProblem]]:
    """Every sweep, value and problem: the base with one of its sizes changed."""

    def problem(sweep: str, value: int) -> ConvProblem:
        changed = dict.fromkeys(("height", "width") if sweep == "size" else (sweep,), value)
        return replace(SWEEP_BASE, **changed)  # type: ignore[arg-type]

    return [(sweep, n, problem(sweep, n)) for sweep, values in SWEEPS.items() for n in values]


def points_as_json(older: Mapping[str, Any]) -> dict[str, Any]:
    """The points of all sweeps."""
    return {
        "points": [
            {"sweep": sweep, "value": value, "problem": str(problem)}
            for sweep, value, problem in sweep_points()
        ]
    }


EXPERIMENTS: dict[str, Callable[[], list[Case]]] = {
    "sizes": lambda: named(SIZES, SIZE_SYSTEMS),
    "ablation": lambda: named(
        {name: paper_layer(name, PAPER_BATCH) for name in LAYER_NAMES}, (WHOLE, *VARIANTS)
    ),
    # A problem that several sweeps share is measured once.
    "sweeps": lambda: named({str(one): one for _, _, one in sweep_points()}, SWEEP_SYSTEMS),
    "unfold_table": lambda: named({str(UNFOLDED): UNFOLDED}, UNFOLD_SYSTEMS),
}
# What else belongs into a document, from what an older one of the same identity has of it.
MORE: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "sweeps": points_as_json,
    "unfold_table": unfold_table.first_calls_once,
}


def cases_of(name: str) -> list[Case]:
    """The cases of that list. Raises ``ValueError`` for an unknown name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"--cases is {name!r}: it must be one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]()
