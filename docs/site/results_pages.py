"""Make the documentation's tables and pictures from the stored results: ``make results``.

The command reads docs/results and fills the marked sections of README.md and of the pages in docs.
With ``--check`` it writes nothing, and exits 1 if a file differs from the one that it would write.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import ladder_results
import papers
from gpu_tables import gpu_section
from ladder_results import HEADLINE, ladder_picture, ladder_section, ladder_table
from papers import RESULTS
from results_tables import SECTIONS, compilers_table, read_ladder

from convlab.ladder import short_name, stages_of
from convlab.measuring import analysis, plots, report
from convlab.measuring.results import Results, open_results

BENCH = f"{RESULTS}/bench_h200.json"
PICTURE, PICTURES = "docs/images/ladder.svg", "bench-"
Maker = Callable[[str], str]


def generated() -> dict[Path, str]:
    """Return the content of every file that shows results.

    Raises ``ValueError`` naming a file that is missing or is not a result.
    """
    root = papers.ROOT
    headline = root / RESULTS / f"{HEADLINE}.json"
    if not headline.is_file():
        raise ValueError(f"there is no {headline}: convlab ladder --json writes it")
    ladder = read_ladder(headline)
    bench = open_results(root / BENCH)
    brief = report.make(bench, title="", pictures=f"images/{PICTURES}", brief=True)
    shown: dict[str, Maker] = {
        "sample": sample_section,
        "ladder": lambda _: f"\n{ladder_section(ladder)}\n",
        "bench": lambda _: f"\n{brief.markdown}\n",
        "papers": lambda _: f"\n{papers.show_claims()}\n",
        "gpus": gpu_section,
        "compilers": lambda _: f"\n{compilers_table()}\n",
    }
    shown |= {name: partial(_section, section) for name, section in SECTIONS.items()}
    readme: dict[str, Maker] = {
        "ladder": lambda _: f"\n{ladder_table(ladder)}\n",
        "bench": lambda _: f"\n{_speedups(bench)}\n",
    }
    drawn = {root / "docs" / name: (text, root / BENCH) for name, text in brief.pictures.items()}
    drawn[root / PICTURE] = ladder_picture(ladder), headline
    files = {file: _kept(file, *of_it) for file, of_it in drawn.items()}
    pages = *sorted((root / "docs").glob("*.md")), *sorted((root / "docs/notes").glob("*.md"))
    for page in (root / "README.md", *pages):
        makers = readme if page == root / "README.md" else shown
        try:
            text = filled(page.read_text(encoding="utf-8"), makers)
        except ValueError as error:
            raise ValueError(f"{page}: {error}") from error
        in_notes = page.parent.name == "notes"
        files[page] = text.replace("](results/", "](../results/") if in_notes else text
    return files


def _section(section: papers.Section, _: str) -> str:
    return f"\n{papers.show_one(section)}\n"


def filled(text: str, makers: Mapping[str, Maker]) -> str:
    """Return the text with each known section (``<!-- NAME:begin -->`` to ``<!-- NAME:end -->``)
    made anew. A maker gets the section's present text. Sections that the text lacks are skipped.

    Raises ``ValueError`` for a section that begins more than once or does not end.
    """
    for name, make in makers.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if begin.strip() not in text and end not in text:
            continue
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"section {name!r} must begin and end once, each on its own line")
        head, rest = text.split(begin)
        old, tail = rest.split(end)
        text = f"{head}{begin}{make(old)}{end}{tail}"
    return text


def _speedups(results: Results) -> str:
    """Return the table of the best fp32 stage over m01 and over the fastest baselines."""
    best = analysis.best_stage(results)
    assert best is not None
    return report.speedup_table(best, [*analysis.first(results), *analysis.fastest(results)])


# The sample of the command in docs/ladder.md: the main route and the tensor cores.

SHOWN = tuple(
    short_name(one.name) for route in ("main", "tensor_cores") for one in stages_of(route)
)


def sample(json_file: Path | None = None) -> str:
    """Return the ladder's output for SHOWN without a GPU, 80 columns wide.

    Its JSON goes to ``json_file``, if one is given.
    """
    more = [] if json_file is None else ["--json", str(json_file)]
    for name in SHOWN:
        more += ["--stage", name]
    code = "from convlab.commands.cli import main; main()"
    output = subprocess.run(
        [sys.executable, "-c", code, "ladder", "--engine", "simulator", *more],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def same_but_for_rounding(one: str, other: str) -> bool:
    """Return True if two samples differ only in the last digit of an error / bound.

    NumPy sums the reference in another order on another CPU.
    """
    # A library may compute with other rounding on another CPU; its work is not counted.
    texts = (re.sub(r"OK {6} *[\d.e-]+(?= +-)", "LIBRARY", text) for text in (one, other))
    pieces = [re.split(r"(?<=OK {6} )( *[\d.e-]+)", text) for text in texts]
    if pieces[0][::2] != pieces[1][::2]:
        return False
    errors = zip(*(map(float, part[1::2]) for part in pieces), strict=True)
    return all(abs(a - b) <= 0.011 * max(a, b) for a, b in errors)


def sample_section(stored: str) -> str:
    """Return the stored section if it still shows the ladder's output, otherwise a new one."""
    new = f"```text\n{sample()}```\n"
    return stored if same_but_for_rounding(stored, new) else new


# Pictures.


def _kept(file: Path, text: str, rows: Path) -> str:
    """Return the stored picture if it shows the same rows and words, drawn by the same code.

    Otherwise return the new picture. Each version of matplotlib has another layout.
    """
    told = papers.read_json(rows)
    code = "".join(map(inspect.getsource, (plots, ladder_results)))
    hashes = (
        hashlib.sha256(one.encode()).hexdigest()[:12]
        for one in (json.dumps(told.get("rows", told)), code)
    )
    new = f"{text}<!-- rows {', drawn by '.join(hashes)} -->\n"
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    return old if same_but_for_layout(old, new) else new


def same_but_for_layout(one: str, other: str) -> bool:
    """Return True if two pictures show the same rows and words and were drawn by the same code."""
    told = r"<text[^>]*>([^<]*)</text>|<!-- (rows [^>]*) -->"
    return re.findall(told, one) == re.findall(told, other)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the files anew, or with ``--check`` only compare them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    chosen = parser.parse_args(arguments)
    try:
        files = generated()
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
            print(f"{file} differs from {RESULTS}: run make results", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file], encoding="utf-8", newline="\n")
            print(f"wrote {file}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
