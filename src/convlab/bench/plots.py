"""Results of the ladder, made into the picture, the tables and the sample of the documentation.

``python -m convlab.bench.plots`` reads ``docs/results/*.json``, which ``convlab ladder --json``
wrote on a GPU, and rewrites what shows them: ``docs/images/ladder.svg`` and the tables between
the markers of README.md and docs/ladder.md. It also runs the ladder on the simulator, for the
sample of its output there, and rewrites the tables of docs/judging.md.
``--check`` rewrites nothing and exits 1 where a file differs from what the results give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from convlab.bench import sanitizers
from convlab.bench.generated import (
    RESULTS,
    RUNS,
    filled,
    holding,
    regenerate,
    section,
)
from convlab.bench.ladder_picture import picture
from convlab.bench.ladder_results import Results
from convlab.bench.ladder_sample import sample_section
from convlab.bench.ladder_tables import full_tables, short_table
from convlab.bench.results import open_results

README, PAGE, PICTURE = "README.md", "docs/ladder.md", "docs/images/ladder.svg"
SANITIZERS, SANITIZERS_PAGE = "sanitizers_h200.json", "docs/judging.md"
COMMANDS = {
    SANITIZERS: f"python -m convlab.bench.sanitizers --json {RESULTS}/{SANITIZERS}",
}
HEADLINE = "ladder_conv9_h200"  # the results that README.md shows


def generated(root: Path) -> dict[Path, str]:
    """Every file that shows results, and what it has to hold.

    Raises ``ValueError`` saying what is missing: results, a file or its markers.
    """
    folder = root / RESULTS
    every = [Results.read(path) for path in sorted(folder.glob("ladder_*.json"))]
    every.sort(key=lambda results: results.name != HEADLINE)  # that one first
    if not every or every[0].name != HEADLINE:
        raise ValueError(f"there is no {folder / HEADLINE}.json: convlab ladder --json writes it")
    newer = open_results(root / RUNS[0]) if (root / RUNS[0]).is_file() else None
    sections: dict[str, dict[str, Callable[[str], str]]] = {
        README: {"ladder": holding(short_table(every[0], newer))},
        PAGE: {"ladder": holding(full_tables(every, newer)), "sample": sample_section},
    }
    if (folder / SANITIZERS).is_file():
        said = section(root, SANITIZERS, COMMANDS[SANITIZERS], sanitizers.show)
        sections[SANITIZERS_PAGE] = {"sanitizers": holding(said)}
    files = {root / name: filled(root / name, makers) for name, makers in sections.items()}
    return files | {root / PICTURE: picture(every[0])}


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the ladder's picture and tables from {RESULTS}/*.json, and its sample."
    return regenerate("convlab.bench.plots", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
