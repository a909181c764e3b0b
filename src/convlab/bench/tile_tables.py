"""The tables of docs/tiles.md: what the models choose beside what tuning found best.

``python -m convlab.bench.tile_tables`` reads docs/results/tuned_h200.json and tuned_s11_h200.json,
which ``convlab tune --all --json`` wrote on a GPU, asks today's model of the stage which tile it
takes for each problem, and rewrites what is between the page's markers. ``--check`` rewrites
nothing and exits 1 where the page differs.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convlab.bench.generated import RESULTS, filled, holding, regenerate, source
from convlab.bench.measured import tables_by_title
from convlab.problem import ConvProblem
from convlab.stages import Tile, stage_named
from convlab.workloads import LAYER_NAMES, S11_FITTED, UNSEEN, UNTUNED, paper_layer

PAGE, FILE, S11_FILE = "docs/tiles.md", "tuned_h200", "tuned_s11_h200"
COMMANDS = {
    FILE: f"convlab tune --all --json {RESULTS}/{FILE}.json",
    S11_FILE: f"convlab tune --all --stage s11 --json {RESULTS}/{S11_FILE}.json",
}
CLOSE = 1.1  # what the page calls close to the best
S11_GROUPS = {"s11 on the paper's layers": "conv"}
GROUPS = {
    "The paper's layers": "conv",
    "ResNet-50": "resnet50",
    "VGG-16": "vgg16",
    "One image": "one_image",
    "MobileNet, 1 x 1 filters": "mobilenet",
    "Other shapes": "",
}
UNSEEN_TITLE = "Not seen before"
FITTED = {"s12_fused_im2win": UNTUNED, "s11_im2win_full": S11_FITTED}  # beside the layers
HEAD = ["problem", "model's tile", "ms", "best tile", "ms", "ratio", "TFLOP/s"]


@dataclass(frozen=True)
class Choice:
    """A problem, the model's tile and the best one, and their times; None for a tile that was not
    measured."""

    name: str
    problem: ConvProblem
    model: Tile
    model_ms: float | None
    best: Tile
    best_ms: float

    @property
    def ratio(self) -> float | None:
        """The model's time over the best; None where it was not measured."""
        return None if self.model_ms is None else self.model_ms / self.best_ms


def choices(document: dict[str, Any]) -> list[Choice]:
    """Today's choice for every problem of the document.

    Raises ``ValueError`` for a problem that is not the one of its name any more.
    """
    problems = {name: paper_layer(name) for name in LAYER_NAMES} | UNTUNED | UNSEEN
    stage = stage_named(document["stage"])
    found = []
    for row in document["problems"]:
        problem = problems.get(row["name"])
        if problem is None or str(problem) != row["problem"]:
            raise ValueError(f"{row['name']} is not {row['problem']} now: measure it again")
        times = {
            Tile(*one["tile"]): one["time_ms"] for one in row["tiles"] if one["time_ms"] is not None
        }
        model = stage.production_tile(problem, document["multiprocessors"])
        assert model is not None
        best = min(times, key=times.__getitem__)
        found.append(Choice(row["name"], problem, model, times.get(model), best, times[best]))
    return found


def show(document: dict[str, Any], groups: dict[str, str] = GROUPS) -> str:
    """What is true of all of them in a line, then a table for each of these groups, and one for
    problems that the model has not seen."""
    found = choices(document)
    fitted = {*LAYER_NAMES, *FITTED[document["stage"]]}
    seen = [choice for choice in found if choice.name in fitted]
    unseen = [choice for choice in found if choice.name not in fitted]
    said = (
        f"{document['device']}, {sum(len(row['tiles']) for row in document['problems'])} tiles on "
        f"{len(found)} problems. The model's tile is within {CLOSE - 1:.0%} of the best on "
        f"{_summary(seen)}."
    )
    if unseen:
        said += f" Of those that it had not seen before: on {_summary(unseen)}."
    parts = [f"{said}\n"]
    parts += tables_by_title(HEAD, [(choice.name, _row(choice)) for choice in seen], groups)
    rows = [(choice.name, _row(choice)) for choice in unseen]
    return "\n".join(parts + tables_by_title(HEAD, rows, {UNSEEN_TITLE: ""}))


def _summary(found: Sequence[Choice]) -> str:
    ratios = [choice.ratio for choice in found if choice.ratio is not None]
    said = f"{sum(ratio <= CLOSE for ratio in ratios)} of {len(found)}"
    if len(ratios) < len(found):
        said += f"; {len(found) - len(ratios)} not measured"
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        said += f"; the geometric mean of the ratios is {mean:.3f}, the largest {max(ratios):.2f}"
    return said


def _row(choice: Choice) -> list[str]:
    same = choice.best == choice.model
    rate = choice.problem.flops / choice.best_ms / 1e9
    return [
        str(choice.problem),
        str(choice.model),
        "-" if choice.model_ms is None else f"{choice.model_ms:.4g}",
        "the same" if same else str(choice.best),
        f"{choice.best_ms:.4g}",
        "-" if choice.ratio is None else f"{choice.ratio:.2f}",
        f"{rate:.1f}",
    ]


def _later(document: dict[str, Any]) -> str:
    """Which problems were measured with another command, after the others."""
    by_command: dict[str, list[str]] = {}
    problems = {row["name"]: row["problem"] for row in document["problems"]}
    for name, command in (document.get("measured_later") or {}).items():
        by_command.setdefault(command, []).append(problems[name])
    return "".join(
        f"Measured later, by `{command}`: {'; '.join(found)}.\n"
        for command, found in by_command.items()
    )


def generated(root: Path) -> dict[Path, str]:
    """The page as it has to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    page = root / PAGE
    sections = {
        "tiles": _section(root, FILE, GROUPS),
        "s11-tiles": _section(root, S11_FILE, S11_GROUPS),
    }
    return {page: filled(page, {name: holding(text) for name, text in sections.items()})}


def _section(root: Path, name: str, groups: dict[str, str]) -> str:
    file, command = root / RESULTS / f"{name}.json", COMMANDS[name]
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        shown = show(document, groups)
        by = source(file.name, document.get("environment"), command) + _later(document)
    except FileNotFoundError as error:
        raise ValueError(f"there is no {file}: {command} on a GPU writes it") from error
    except (KeyError, TypeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is no result of {command}: {error!r}") from error
    return f"{shown}\n{by}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the tables of {PAGE} from {RESULTS}/{FILE}.json and {S11_FILE}.json."
    return regenerate("convlab.bench.tile_tables", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
