"""The tables of docs/sizes.md: s12 beside others on sizes that nobody tuned for.

``python -m convlab.bench.size_tables`` reads docs/results/sizes_h200.json, which
``convlab.bench.sizes`` wrote on a GPU, and rewrites what is between the page's markers; where there
is no such file yet it says so and shows no number. ``--check`` rewrites nothing and exits 1 where
the page differs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convlab.bench.analysis import TORCH, geometric_mean, in_gemm_class
from convlab.bench.generated import RESULTS, filled, holding, not_yet, regenerate, source
from convlab.bench.harness import SETTLED_PERCENT
from convlab.bench.measured import table, tables_by_title
from convlab.bench.rows import Row
from convlab.problem import ConvProblem
from convlab.stages import Launch, stage_named
from convlab.workloads import UNSEEN, UNTUNED

PAGE, FILE = "docs/sizes.md", f"{RESULTS}/sizes_h200.json"
COMMAND = f"python -m convlab.bench.sizes --json {FILE}"
PROBLEMS = UNTUNED | UNSEEN
OURS = "s12_fused_im2win"
SYSTEMS = (OURS, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")
GROUPS = {
    "ResNet-50": "resnet50",
    "VGG-16": "vgg16",
    "One image": "one_image",
    "MobileNet, 1 x 1 filters": "mobilenet",
    "Other shapes": "",
}
LIMIT = 0.7  # what convlab wants nothing to be below
HEAD = (  # what is looked for first: on a narrow page the rest is to be scrolled to
    "problem", "GEMM class / s12", "PyTorch / s12", "fitted to", "s12 ms", "TFLOP/s",
    "GEMM class ms", "PyTorch ms", "tile", "parts", "GEMM class: whose", "PyTorch's kernel",
)  # fmt: skip
NOTHING = "-"


def marked(cell: str, unsettled: bool) -> str:
    return f"~{cell}" if unsettled else cell


def numberless(document: Mapping[str, Any]) -> list[tuple[str, str, str, list[str]]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in document["rows"]:
        if row["state"] != "measured":
            key = row["system"], row["state"], row["reason"]
            found.setdefault(key, []).append(row["layer"])
    return [(*key, layers) for key, layers in found.items()]


@dataclass(frozen=True)
class Size:
    """A problem and its rows, by system."""

    name: str
    problem: ConvProblem
    rows: Mapping[str, Row]

    def time_ms(self, system: str) -> float | None:
        """A system's time; None where it has none."""
        row = self.rows.get(system)
        return None if row is None else row.time_ms

    @property
    def gemm_class(self) -> Row | None:
        """The fastest that does every multiplication: of cuDNN's three, and PyTorch's choice."""
        others = [
            row
            for name, row in self.rows.items()
            if name != OURS
            and row.time_ms is not None
            and in_gemm_class("any" if name == TORCH else "gemm", row)
        ]
        return min(others, key=lambda row: row.time_ms or 0.0, default=None)

    @property
    def gemm_ms(self) -> float | None:
        """Its time."""
        row = self.gemm_class
        return None if row is None else row.time_ms

    @property
    def ratio(self) -> float | None:
        """How many times as fast as that s12 is."""
        return _over(self.gemm_ms, self.time_ms(OURS))

    @property
    def over_torch(self) -> float | None:
        """How many times as fast as PyTorch s12 is."""
        return _over(self.time_ms(TORCH), self.time_ms(OURS))

    @property
    def kind(self) -> str:
        """Which explanation is for it: a heading of the page, in small letters."""
        return next((words for words, applies in KINDS.items() if applies(self.problem)), "others")


KINDS: dict[str, Callable[[ConvProblem], bool]] = {
    "a single image": lambda problem: problem.N_i == 1,
    "channels that 8 does not divide": lambda problem: problem.C_i % 8 != 0,
    "few filters": lambda problem: problem.M < 32,
    "1 x 1 filters": lambda problem: problem.H_f * problem.W_f == 1,
}


def sizes(document: Mapping[str, Any]) -> list[Size]:
    """The problems of the document that are still those of their names, in their order."""
    return [
        Size(name, problem, rows)
        for name, problem in PROBLEMS.items()
        if (rows := _rows(document, name, problem))
    ]


def _rows(document: Mapping[str, Any], name: str, problem: ConvProblem) -> dict[str, Row]:
    return {
        row["system"]: Row.from_json(row)
        for row in document["rows"]
        if (row["layer"], row["problem"]) == (name, str(problem))
    }


def show(document: Mapping[str, Any]) -> str:
    """What is true of all of them, a table for each group, and what has no number."""
    found = sizes(document)
    shown = [
        f"{document['device']}; medians of graph replays, all in; ~ where the runs' spread, of "
        f"either time where it is a ratio's, stayed above {SETTLED_PERCENT:g} %.\n"
    ]
    seen = [size for size in found if size.name in UNTUNED]
    unseen = [size for size in found if size.name in UNSEEN]
    shown.append(
        table(
            ("s12 is so many times as fast", "problems", "geometric mean", "from", "to", "below 1",
             f"below {LIMIT}"),
            [
                (f"as {words}, {which}", *_summary(ratios))
                for words, ratio in (("the GEMM class", "ratio"), ("PyTorch", "over_torch"))
                for which, group in (
                    ("fitted to", seen),
                    ("not seen before", unseen),
                )
                if (ratios := [value for size in group if (value := getattr(size, ratio))])
            ],
        )
    )  # fmt: skip
    cores = document["machine"]["multiprocessors"]
    shown += tables_by_title(HEAD, [(size.name, _row(size, cores)) for size in found], GROUPS)
    if missing := numberless(document):
        reasons = [
            (f"`{system}`", ", ".join(where), state, reason)
            for system, state, reason, where in missing
        ]
        head = ("system", "problems", "what", "why")
        shown.append(f"### Without a number\n\n{table(head, reasons, left=4)}")
    return "\n".join(shown)


def slow(document: Mapping[str, Any]) -> str:
    """Where s12 is slower than the GEMM class, the slowest first, each with where that is
    explained."""
    found = slower(document)
    far = sum((size.ratio or 0.0) < LIMIT for size in found)
    said = f"On {len(found)} of {len(sizes(document))} problems, on {far} below {LIMIT}.\n"
    if not found:
        return said
    rows = [
        (
            str(size.problem),
            *_times_and_ratio(size),
            f"[{size.kind}](#{size.kind.replace(' ', '-')})",
        )
        for size in found
    ]
    head = ("problem", "s12 ms", "GEMM class ms", "GEMM class / s12", "why")
    return f"{said}\n{table(head, rows)}"


def slower(document: Mapping[str, Any]) -> list[Size]:
    """The problems where s12 is slower than the GEMM class, the slowest first."""
    found = [(size.ratio, size) for size in sizes(document) if size.ratio is not None]
    return [size for ratio, size in sorted(found, key=lambda pair: pair[0]) if ratio < 1]


def parts(problem: ConvProblem, tile: str | None, multiprocessors: int) -> str:
    """Among how many blocks s12 splits each sum on such a GPU: today's model says, as rows do not;
    a dash where it would take another tile than they did."""
    stage = stage_named(OURS)
    chosen = stage.production_tile(problem, multiprocessors)
    if chosen is None or str(chosen) != tile:
        return NOTHING
    *_, main = stage.prepare(problem, chosen, sm_count=multiprocessors).launches
    assert isinstance(main, Launch)
    return str(main.grid[2])


def _row(size: Size, multiprocessors: int) -> tuple[str, ...]:
    ours, torch, others = size.rows.get(OURS), size.rows.get(TORCH), size.gemm_class
    ours_ms, gemm_ms, ratio = _times_and_ratio(size)
    return (
        str(size.problem),
        ratio,
        _shown(size.over_torch, ".2f", ours, torch),
        "yes" if size.name in UNTUNED else "no",
        ours_ms,
        _shown(None if ours is None else ours.tflops, ".1f", ours),
        gemm_ms,
        _shown(size.time_ms(TORCH), ".4g", torch),
        (ours and ours.algorithm) or NOTHING,
        parts(size.problem, None if ours is None else ours.algorithm, multiprocessors),
        NOTHING if others is None else others.system.removeprefix("cudnn_"),
        NOTHING if torch is None or torch.algorithm is None else kernel(torch.algorithm),
    )


def kernel(algorithm: str) -> str:
    """The kernel that took longest, without its template arguments and types."""
    name = re.split("[<(;]", algorithm.removeprefix("void "))[0].rpartition("::")[2]
    tiled = re.fullmatch(r"(.+?)_(c?)f32\S*?tilesize(\d+x\d+x\d+).*", name)
    if tiled is None:
        return f"`{name}`"
    return f"`{tiled[1]}{'_complex' if tiled[2] else ''} {tiled[3]}`"


def _summary(ratios: Sequence[float]) -> list[str]:
    spread = (geometric_mean(ratios), min(ratios), max(ratios))
    return [
        f"{len(ratios)}",
        *(f"{value:.2f}" for value in spread),
        *(f"{sum(ratio < limit for ratio in ratios)}" for limit in (1, LIMIT)),
    ]


def _over(theirs: float | None, ours: float | None) -> float | None:
    return theirs / ours if theirs and ours else None


def _times_and_ratio(size: Size) -> tuple[str, str, str]:
    """s12's time, the GEMM class's, and how many times as fast s12 is."""
    ours, others = size.rows.get(OURS), size.gemm_class
    return (
        _shown(size.time_ms(OURS), ".4g", ours),
        _shown(size.gemm_ms, ".4g", others),
        _shown(size.ratio, ".2f", ours, others),
    )


def _shown(value: float | None, digits: str, *rows: Row | None) -> str:
    """A number made of these rows, marked where one of them did not settle; a dash for none."""
    if value is None:
        return NOTHING
    rough = any(row is not None and row.settled is False for row in rows)
    return marked(f"{value:{digits}}", rough)


def generated(root: Path) -> dict[Path, str]:
    """The page as it has to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    file = root / FILE
    shown = dict.fromkeys(("sizes", "slow"), not_yet(COMMAND))
    if file.is_file():
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            by = source(file.name, document.get("environment"), COMMAND)
            shown = {"sizes": f"{show(document)}\n{by}", "slow": slow(document)}
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} is no result of {COMMAND}: {error!r}") from error
    return {root / PAGE: filled(root / PAGE, {name: holding(text) for name, text in shown.items()})}


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the tables of {PAGE} from {FILE}."
    return regenerate("convlab.bench.size_tables", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
