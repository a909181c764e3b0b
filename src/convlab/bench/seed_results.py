"""The page docs/seed-results.md: the seeds' figures and tables again, from docs/results.

``python -m convlab.bench.seed_results`` reads what the benchmarks wrote and rewrites what is
between the page's markers, and the pictures; where there are no results yet it says so and shows no
number.
``--check`` rewrites nothing and exits 1 where a file differs from what the results give.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from convlab.bench import seed_figures, seed_paper, seed_systems
from convlab.bench.generated import (
    RESULTS,
    command_of,
    document_of,
    filled,
    holding,
    not_yet,
    regenerate,
    source,
)
from convlab.bench.measured import table
from convlab.bench.results import Results, open_results
from convlab.bench.seed_figures import Shown
from convlab.bench.seed_runs import beside_bench

PAGE, IMAGES, PREFIX = "docs/seed-results.md", "docs/images", "seed-"
# By what the results are called here: the file, and the command that writes it.
FILES = {
    "bench": ("bench_h200.json", "convlab bench"),
    "ablation": ("ablation_h200.json", "python -m convlab.bench.ablation"),
    "sweeps": ("sweeps_h200.json", "python -m convlab.bench.sweeps"),
    "unfold_table": ("unfold_table_h200.json", "python -m convlab.bench.unfold_table"),
    "im2col": ("im2col_h200.json", "python -m convlab.bench.im2col"),
}
# By marker: which results, and what makes figure, tables and claims of them.
SECTIONS: dict[str, tuple[str, Callable[[Any], Shown]]] = {
    "000-figure-2": ("bench", seed_paper.figure_2),
    "000-figure-3": ("bench", seed_paper.figure_3),
    "000-table-3": ("bench", seed_paper.table_3),
    "000-figure-4": ("ablation", seed_paper.figure_4),
    "001-abstract": ("sweeps", seed_figures.headline),
    "001-figure-1": ("sweeps", partial(seed_figures.sweep, name="size")),
    "001-figure-2": ("sweeps", partial(seed_figures.sweep, name="in_channels")),
    "001-figure-3": ("sweeps", partial(seed_figures.sweep, name="out_channels")),
    "001-figure-4": ("sweeps", partial(seed_figures.sweep, name="kernel_size")),
    "002-table-1": ("unfold_table", seed_figures.unfold),
    "003-kernels": ("im2col", seed_figures.kernels_by_depth),
}
SYSTEMS = "systems"
# Where it is said if such results are of other code than those of `convlab bench`.
APART = ("000-figure-4", "001-abstract", "002-table-1")


def generated(root: Path) -> dict[Path, str]:
    """The page and its pictures, as they have to be.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    results = {name: found for name in FILES if (found := _read(root, name)) is not None}
    shown = {
        marker: _shown(root, name, show, results[name])
        for marker, (name, show) in SECTIONS.items()
        if name in results
    }
    for marker in APART:
        if marker in shown and "bench" in results:
            name = SECTIONS[marker][0]
            note = beside_bench(results[name], results["bench"], seed_paper.IM2WIN)
            text = "\n".join(filter(None, (shown[marker].text, note)))
            shown[marker] = replace(shown[marker], text=text)
    makers: dict[str, Callable[[str], str]] = {
        marker: holding(_section(FILES[name], shown.get(marker), _environment(results.get(name))))
        for marker, (name, _) in SECTIONS.items()
    }
    commands = {
        name: command_of(_environment(results.get(name)), command(*file))
        for name, file in FILES.items()
    }
    makers[SYSTEMS] = holding(seed_systems.show(results, commands))
    files = {root / PAGE: filled(root / PAGE, makers)}
    for one in shown.values():
        for name, chart in one.charts.items():
            files[root / IMAGES / f"{PREFIX}{name}.svg"] = chart.svg()
    return files


def command(file: str, module: str) -> str:
    """What writes a file of results."""
    return f"{module} --json {RESULTS}/{file}"


def _read(root: Path, name: str) -> Any:
    file = root / RESULTS / FILES[name][0]
    if name == "bench":
        return open_results(file) if file.is_file() else None
    return document_of(file)


def _environment(results: Any) -> dict[str, Any] | None:
    """What results say that they were measured with; None where there are none."""
    if isinstance(results, Results):
        return results.environment
    found: dict[str, Any] | None = None if results is None else results.get("environment")
    return found


def _shown(root: Path, name: str, show: Callable[[Any], Shown], results: Any) -> Shown:
    try:
        return show(results)
    except (KeyError, TypeError, IndexError) as error:
        file = root / RESULTS / FILES[name][0]
        raise ValueError(f"{file} is no result of {FILES[name][1]}: {error!r}") from error


def _section(file: tuple[str, str], shown: Shown | None, environment: dict[str, Any] | None) -> str:
    by = command(*file)
    if shown is None:
        return not_yet(by)
    pictures = "".join(
        f"![{chart.title}](images/{PREFIX}{name}.svg)\n\n" for name, chart in shown.charts.items()
    )
    claims = table(("the document says", "where", "here"), shown.claims, left=3)
    return f"{pictures}{claims}\n{shown.text}\n{source(file[0], environment, by)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make {PAGE} and its pictures from {RESULTS}."
    return regenerate("convlab.bench.seed_results", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
