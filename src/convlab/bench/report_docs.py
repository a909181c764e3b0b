"""The documentation's results: ``python -m convlab.bench.report_docs``.

Reads ``docs/results/bench_h200.json``, which ``convlab bench`` wrote, and rewrites docs/results.md,
its pictures, the table between README.md's markers and the comparison in docs/baselines.md; where
there is no such file yet it says so and shows no number. ``--check`` rewrites nothing and exits 1
where a file differs from what the results give. Further runs, ``bench_h200_again.json`` and
``bench_h200_third.json``, are compared with the first; of all that are there docs/baselines.md has
what ordinary calls took.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from convlab.bench import analysis, baselines_before, palette, report, report_plots
from convlab.bench.generated import RUNS, WHOLE_RUNS, filled, holding, not_yet, regenerate
from convlab.bench.report_document import Block, Heading, as_markdown, picture_files
from convlab.bench.report_why import counted, known_stages
from convlab.bench.results import Results, open_results

README, PAGE, BASELINES, IMAGES = "README.md", "docs/results.md", "docs/baselines.md", "docs/images"
FIRST, *OTHERS = RUNS
MARKERS = {README: "bench", PAGE: "bench", BASELINES: "before"}
PICTURES = "bench-"
DRAWING = (report_plots, palette)
COMMAND = f"convlab bench --json {FIRST}"


def generated(root: Path) -> dict[Path, str]:
    """Every file that shows the results, and what it has to hold.

    Raises ``ValueError`` saying what is missing or is no result.
    """
    results = _open(root / FIRST)
    runs = {file: _open(root / file) for file in OTHERS}
    others = [other for other in runs.values() if other is not None]
    whole = [other for file in RUNS[1:WHOLE_RUNS] if (other := runs[file]) is not None]
    shown = [name for name in MARKERS if _has_marker(root, name)]
    if results is None:
        return {
            root / name: filled(root / name, {MARKERS[name]: lambda _: not_yet(COMMAND)})
            for name in shown
        }
    why = list(counted(known_stages(results.names("stage"))))
    blocks = report.blocks(results, whole, why)
    pages = {
        README: as_markdown("", readme_blocks(results)),
        PAGE: as_markdown("", _deeper(blocks), f"images/{PICTURES}"),
        BASELINES: baselines_before.section(results, others),
    }
    files = {
        root / name: filled(root / name, {MARKERS[name]: holding(pages[name])}) for name in shown
    }
    data = _fingerprint(json.dumps(results.as_json()["rows"]))
    drawn_by = _fingerprint("".join(Path(str(one.__file__)).read_text("utf-8") for one in DRAWING))
    for name, text in picture_files(blocks, PICTURES).items():
        picture = f"{text}<!-- rows {data}, drawn by {drawn_by} -->\n"
        files[root / IMAGES / name] = _kept(root / IMAGES / name, picture)
    return files


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _kept(file: Path, new: str) -> str:
    """The picture that is there, where it shows the same rows in the same words by the same code:
    another version of matplotlib lays them out another way."""
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    return old if same_but_for_layout(old, new) else new


def readme_blocks(results: Results) -> list[Block]:
    """README's table: the best stage in float32 over s01 and over the fastest baselines, layer by
    layer."""
    best = analysis.best_stage(results)
    if best is None:
        return []
    first = [one for one in analysis.stages(results) if one.name == analysis.BASELINE]
    return [report.speedup_table(results, best, [*first, *analysis.fastest(results)])]


def _deeper(blocks: Sequence[Block]) -> list[Block]:
    """What is below the page's own title and words."""
    return [block for block in blocks if not isinstance(block, Heading) or block.text]


def _open(file: Path) -> Results | None:
    return open_results(file) if file.is_file() else None


def _has_marker(root: Path, name: str) -> bool:
    """The pages get their markers when there is something to show."""
    page, begin = root / name, f"<!-- {MARKERS[name]}:begin -->"
    return page.is_file() and begin in page.read_text(encoding="utf-8")


def same_but_for_layout(one: str, other: str) -> bool:
    """Whether two pictures are of the same rows, drawn by the same code, and say the same words."""
    told = r"<text[^>]*>([^<]*)</text>|<!-- (rows [^>]*) -->"
    said = [re.findall(told, text) for text in (one, other)]
    return said[0] == said[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make {PAGE}, its pictures, the tables of {README} and {BASELINES} from {FIRST}."
    return regenerate("convlab.bench.report_docs", about, generated, arguments)


if __name__ == "__main__":
    sys.exit(main())
