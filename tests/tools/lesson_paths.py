"""Fill the tables of docs/lessons.md: both paths, and the length of each lesson.

``python tests/tools/lesson_paths.py`` in a checkout counts words, lines, exercises and faults in
lessons/source, and computes minutes from these counts by the rule of convlab.lessons.paths. With
``--measure`` it first runs the solved notebooks, one after the other, and stores their seconds of
CPU time in docs/results/lessons.json, beside the minutes that a reader estimated. With ``--check``
it writes nothing, and exits 1 if the page differs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import date

import build_notebooks
from papers import read_json
from results_pages import filled

from convlab.lessons.paths import SHORT, Length, length
from convlab.lessons.progress import number_of
from convlab.lessons.source import SOLUTION, Lesson, place, read, sources
from convlab.measuring import table
from convlab.support.installing import CHECKOUT
from convlab.support.whole_files import write_whole

PAGE = CHECKOUT / "docs/lessons.md"
SECONDS = CHECKOUT / "docs/results/lessons.json"
COMMAND = "python tests/tools/lesson_paths.py"


def measure(lessons: Sequence[Lesson]) -> None:
    """Run the solved notebook of each lesson and store its seconds of CPU time, which depend less
    on what else the machine does than seconds of a clock."""
    seconds = {}
    for lesson in lessons:
        notebook = build_notebooks.notebook(lesson, SOLUTION)
        start = _of_children()
        build_notebooks.execute(notebook, place(lesson.name, SOLUTION).parent)
        seconds[lesson.name] = round(_of_children() - start)
        print(f"{lesson.name}: {seconds[lesson.name]} s", flush=True)
    environment = {"command": f"{COMMAND} --measure", "date": date.today().isoformat()}
    estimates = read_json(SECONDS)["estimates"]
    document = {"environment": environment, "estimates": estimates, "seconds": seconds}
    write_whole(SECONDS, (json.dumps(document, indent=1) + "\n").encode())


def _of_children() -> float:
    """Return the seconds of CPU time of all processes that this one has started and that ended."""
    times = os.times()
    return times.children_user + times.children_system


def page(lessons: Sequence[Lesson], text: str) -> str:
    """Return the page with both tables made anew. Raises ``ValueError`` for a page without them."""
    makers = {
        "paths": lambda _: f"\n{paths_table(lessons)}\n",
        "lessons": lambda old: f"\n{lessons_table(lessons, old)}\n",
    }
    for name in makers:
        if f"<!-- {name}:begin -->" not in text:
            raise ValueError(f"{PAGE} has no section {name!r}: it must have one")
    return filled(text, makers)


def paths_table(lessons: Sequence[Lesson]) -> str:
    """Return the table of both paths."""
    short = [lesson for lesson in lessons if lesson.name in SHORT]
    names = ", ".join(f"[{number_of(one)}](../lessons/{one}.ipynb)" for one in SHORT)
    paths = (("short", names, short), ("whole", f"all {len(lessons)}, in order", lessons))
    rows = []
    for name, told, chosen in paths:
        size = length(chosen)
        rows.append((name, told, *_counts(size), f"{size.minutes / 60:.1f}"))
    head = (
        "path", "lessons", "words", "lines to write", "exercises", "faults to find", "hours",
    )  # fmt: skip
    return table(head, rows, left=2)


def lessons_table(lessons: Sequence[Lesson], old: str) -> str:
    """Return the table of all lessons. The words of its second column are those of ``old``; a new
    lesson has none."""
    taught = dict(re.findall(r"^\| \[(\w+)\]\([^)]*\) \| ([^|]*?) \|", old, re.MULTILINE))
    seconds = read_json(SECONDS)["seconds"]
    rows = []
    for lesson in lessons:
        name, size = f"[{lesson.name}](../lessons/{lesson.name}.ipynb)", length([lesson])
        runs = str(seconds.get(lesson.name, "-"))
        rows.append((name, taught.get(lesson.name, ""), *_counts(size), str(size.minutes), runs))
    head = ("lesson", "teaches", "words", "lines", "exercises", "faults", "minutes", "CPU s")
    return table(head, rows, left=2)


def _counts(size: Length) -> tuple[str, str, str, str]:
    return f"{size.words:,}", str(size.lines), str(size.exercises), str(size.hunts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the page's tables, or with ``--check`` only compare them; returns the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--measure", action="store_true", help="run the solved notebooks first")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    options = parser.parse_args(arguments)
    lessons = [read(path) for path in sources()]
    if options.measure:
        measure(lessons)
    text = PAGE.read_text(encoding="utf-8")
    made = page(lessons, text)
    if made == text:
        return 0
    if options.check:
        print(f"{PAGE} differs from lessons/source: run {COMMAND}", file=sys.stderr)
        return 1
    write_whole(PAGE, made.encode())
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
