"""The documentation's tables and pictures: ``python -m convlab.bench.pages`` (``make results``).

Reads docs/results and fills the marked sections of README.md and the pages that show them. A page
without a section's markers is left as it is. ``--check`` writes nothing and exits 1 where a file
differs from what the results give.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from convlab.bench import analysis, papers, report, report_plots, sanitizers, size_tables
from convlab.bench.documents import RESULTS, Maker, filled, read_json, sections_of, source
from convlab.bench.ladder_page import full_tables, sample_section, short_table
from convlab.bench.ladder_picture import picture
from convlab.bench.ladder_results import Results as LadderResults
from convlab.bench.report_document import Block, Table, as_markdown, picture_files
from convlab.bench.results import Results, open_results

BENCH = f"{RESULTS}/bench_h200.json"
HEADLINE = "ladder_conv9_h200"  # the results that README.md shows
PICTURE, IMAGES, PICTURES = "docs/images/ladder.svg", "docs/images", "bench-"
# Files of results that one function shows, by the marker of their section.
SHOWN = {
    "sizes": ("sizes_h200.json", "python -m convlab.bench.experiments sizes", size_tables.show),
    "sanitizers": ("sanitizers_h200.json", "make sanitize", sanitizers.show),
}


def generated(root: Path) -> dict[Path, str]:
    """Every file that shows results, and what it has to hold.

    Raises ``ValueError`` saying which file is missing or is no result.
    """
    every = [LadderResults.read(file) for file in sorted((root / RESULTS).glob("ladder_*.json"))]
    every.sort(key=lambda results: results.name != HEADLINE)  # that one first
    if not every or every[0].name != HEADLINE:
        raise ValueError(f"there is no {RESULTS}/{HEADLINE}.json: convlab ladder --json writes it")
    bench = open_results(root / BENCH)
    blocks = report.page_blocks(bench)
    shown: dict[str, Maker] = {name: partial(_shown, root, name) for name in SHOWN}
    shown |= {
        "ladder": lambda _: f"\n{full_tables(every)}\n",
        "sample": sample_section,
        "bench": lambda _: f"\n{as_markdown('', blocks, f'images/{PICTURES}')}\n",
        "papers": lambda _: f"\n{papers.show_claims(root)}\n",
    }
    readme: dict[str, Maker] = {
        "ladder": lambda _: f"\n{short_table(every[0])}\n",
        "bench": lambda _: f"\n{as_markdown('', [_speedups(bench)])}\n",
    }
    files = {root / PICTURE: picture(every[0])} | _pictures(root, bench, blocks)
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        files |= _page(page, readme if page.name == "README.md" and page.parent == root else shown)
    return files


def _page(page: Path, makers: Mapping[str, Maker]) -> dict[Path, str]:
    text = page.read_text(encoding="utf-8")
    if not set(makers) & set(sections_of(text)):
        return {}
    try:
        return {page: filled(text, makers)}
    except ValueError as error:
        raise ValueError(f"{page}: {error}") from error


def _speedups(results: Results) -> Table:
    """The best stage in fp32 over s01 and over the fastest baselines, layer by layer."""
    best = analysis.best_stage(results)
    first = [one for one in analysis.stages(results) if one.name == analysis.BASELINE]
    assert best is not None
    return report.speedup_table(results, best, [*first, *analysis.fastest(results)])


def _shown(root: Path, name: str, _: str) -> str:
    file, command, show = SHOWN[name]
    document = read_json(root / RESULTS / file)
    try:
        text = show(document)
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{RESULTS}/{file} is no result of {command}: {error!r}") from error
    return f"\n{text}\n{source(file, document.get('environment'), command)}\n"


def _pictures(root: Path, bench: Results, blocks: Sequence[Block]) -> dict[Path, str]:
    """The report's pictures. A picture is kept where it shows the same rows in the same words by
    the same code, because every version of matplotlib lays it out in another way."""
    code = Path(str(report_plots.__file__)).read_text(encoding="utf-8")
    mark = f"<!-- rows {_hash(json.dumps(bench.as_json()['rows']))}, drawn by {_hash(code)} -->"
    files = {}
    for name, text in picture_files(blocks, PICTURES).items():
        file, new = root / IMAGES / name, f"{text}{mark}\n"
        old = file.read_text(encoding="utf-8") if file.is_file() else ""
        files[file] = old if same_but_for_layout(old, new) else new
    return files


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def same_but_for_layout(one: str, other: str) -> bool:
    """Whether two pictures are of the same rows, drawn by the same code, and say the same words."""
    told = r"<text[^>]*>([^<]*)</text>|<!-- (rows [^>]*) -->"
    return re.findall(told, one) == re.findall(told, other)


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m convlab.bench.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    parser.add_argument("--root", type=Path, default=Path(), help="convlab's source folder")
    chosen = parser.parse_args(arguments)
    try:
        files = generated(chosen.root)
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    stale = [
        file
        for file, text in files.items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    for file in stale:
        if chosen.check:
            print(f"{file} is not what {RESULTS} gives: run make results", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file], encoding="utf-8", newline="\n")
            print(f"wrote {file}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
