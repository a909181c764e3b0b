"""Two paths through the lessons, the length of a lesson, and where a learner stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from convlab.lessons import progress
from convlab.lessons.progress import number_of
from convlab.lessons.source import REGION, Lesson, copies
from convlab.support.values import counted

# From NumPy to im2win: threads, small kernels, the direct convolution, implicit GEMM, im2win.
SHORT = (
    "00_start_here", "00b_small_kernels", "01_direct", "04_implicit_gemm", "10_im2win",
)  # fmt: skip
# Fitted to the minutes that a reader estimated for six lessons: docs/results/lessons.json.
WORDS_A_MINUTE = 85  # of reading, with the code and the pictures between the words
MINUTES_A_TASK = 5  # to understand an exercise, or to find a fault; with tips and tries
MINUTES_A_LINE = 2  # to write a line


@dataclass(frozen=True)
class Length:
    """The length of a lesson, or of several: words to read, lines of code to write, exercises, and
    kernels whose faults are to be found."""

    words: int
    lines: int
    exercises: int = 0
    hunts: int = 0

    @property
    def minutes(self) -> int:
        """About how many minutes they take, in steps of five."""
        minutes = self.words / WORDS_A_MINUTE + self.lines * MINUTES_A_LINE
        minutes += (self.exercises + self.hunts) * MINUTES_A_TASK
        return max(5, 5 * round(minutes / 5))


def length(lessons: Iterable[Lesson]) -> Length:
    """Return the length of lessons together: the words of their texts, without addresses of links,
    and the lines of code in their solutions."""
    words = lines = exercises = hunts = 0
    for lesson in lessons:
        for cell in lesson.cells:
            if cell.type == "markdown":
                words += len(re.sub(r"<[^>]*>|\]\([^)]*\)", " ", cell.text).split())
        for exercise in lesson.exercises():
            hunts += exercise.role == "hunt"
            exercises += exercise.role != "hunt"
            for region in REGION.finditer(exercise.text):
                inside = map(str.strip, region["inside"].splitlines())
                lines += sum(bool(line) and not line.startswith("#") for line in inside)
    return Length(words, lines, exercises, hunts)


def place_of(lesson: Lesson, whole: Sequence[str]) -> str:
    """Return the line below a lesson's title: its places on both paths, the next lesson, and its
    length. ``whole`` names all lessons, in order."""
    paths = {"the short path": SHORT, "the whole path": whole}
    places: list[str] = []
    following: dict[str, list[str]] = {}  # links to the next lessons, with the paths of each
    for name, path in paths.items():
        if lesson.name in path:
            number = path.index(lesson.name) + 1
            places.append(f"lesson {number} of {len(path)} on {name}")
            if number < len(path):
                after = path[number]
                link = f"[{number_of(after)}]({after}.ipynb)"
                following.setdefault(link, []).append(name)
    size = length([lesson])
    said = f"*{' and '.join(places).capitalize()} ([both](../docs/lessons.md#two-paths))"
    if following:
        links = [
            link if len(on) == len(places) else f"{link} on {' and '.join(on)}"
            for link, on in following.items()
        ]
        said += f"; next: {', '.join(links)}"
    return (
        f"{said}. {size.words:,} words to read, {counted(size.lines, 'line')} to write, "
        f"{counted(size.hunts, 'faulty kernel')} to mend: about {size.minutes} minutes.*"
    )


def status_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of ``convlab lessons FOLDER --status``. Raises ``OSError`` or ``ValueError``
    for a ``progress.json`` that cannot be read or is another program's."""
    state = progress.read(folder)
    return [
        progress.row(path.stem, json.loads(text), state)
        for path, text in copies(folder)
        if path.parent == folder
    ]


@dataclass(frozen=True)
class Status:
    """A learner's progress in a folder. In a notebook it is a sentence that unfolds to a table."""

    sentence: str
    rows: Sequence[dict[str, Any]] = ()

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{escape(self.sentence)}</p>"
        lines = "".join(
            f"<tr>{''.join(f'<{kind}>{escape(str(cell))}</{kind}>' for cell in cells)}</tr>"
            for kind, cells in [("th", self.rows[0]), *(("td", row.values()) for row in self.rows)]
        )
        summary = f"<summary>{escape(self.sentence)}</summary>"
        return f"<details>{summary}<table>{lines}</table></details>"


def status(lesson: str, folder: Path = Path()) -> Status:
    """Return a learner's progress, of ``lesson`` and of the paths, as ``convlab lessons --status``
    counts it. Raises ``ValueError`` for an unknown lesson."""
    if not (folder / progress.FILE).is_file():
        return Status(
            "Progress is not counted in this folder. `convlab lessons FOLDER`, in a terminal, "
            "copies the lessons to FOLDER, where each check that passes is counted."
        )
    try:
        rows = status_rows(folder)
    except (OSError, ValueError) as error:
        return Status(f"Progress cannot be shown: {error}.")
    names = [row["lesson"] for row in rows]
    if lesson not in names:
        raise ValueError(f"lesson is {lesson!r}: it must be one of {', '.join(names)}")

    def passed(chosen: Sequence[str]) -> str:
        mine = [row for row in rows if row["lesson"] in chosen]
        return f"{sum(row['passed'] for row in mine)} of {sum(row['checks'] for row in mine)}"

    return Status(
        f"Checks passed: {passed([lesson])} in this lesson, {passed(SHORT)} on the short path, "
        f"{passed(names)} in all.",
        rows,
    )
