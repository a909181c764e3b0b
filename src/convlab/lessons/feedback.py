"""Feedback of an exercise's check: the result, the reason, and a hint, in plain words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from convlab.checking.outcome import TRANSFORMS
from convlab.lessons.pictures import Picture

PASSED, UNFILLED, BROKEN, ANSWER, COUNTS = "passed", "unfilled", "broken", "answer", "counts"
DOES_NOT_COMPILE, INPUT = "does not compile", "input changed"
REFUSED = "refused by Numba"  # which needs no compiler to be known
MISSING_INDEX = "missing index"
NOT_CALLED = "not called"
# The first that is among the reasons counts.
HEADLINES = {
    REFUSED: "Not yet: the kernel has Python that Numba cannot compile for a GPU.",
    MISSING_INDEX: "Not yet: an index is missing.",
    NOT_CALLED: "Not yet: a function is named and not called.",
    BROKEN: "Not yet: your code did not run to its end.",
    ANSWER: "Not yet: the answer is wrong.",
    INPUT: "Not yet: the kernel writes to its input.",
    DOES_NOT_COMPILE: "Not yet: Numba cannot compile the kernel for a GPU.",
}
# What is counted, and what too high a count means.
MEMORY, BARRIERS, ONE_THREAD, ONE_ELEMENT = "memory", "barriers", "one thread", "one element"
SEVERAL_WRITERS = "several writers"
TOO_MUCH = {
    SEVERAL_WRITERS: "several threads write the same element",
    MEMORY: "the kernel causes more memory traffic than it should",
    BARRIERS: "its threads wait at more barriers than they should",
    ONE_THREAD: "one thread does work that many could share",
    ONE_ELEMENT: "threads queue up to add to one element",
}
ON_A_GPU = "Not yet: the answer is right here, but it may be wrong on a GPU."
NO_ANSWER = "Not yet: the simulator found a mistake, and the answer is not known to be right."
UNORDERED = ("shared race", "global race", "copy in flight", "barrier divergence")
GREEN, RED, GREY = "#2e9e4f", "#d1503f", "#8b929a"
AS_FEW = 1.25  # a count may be this many times the target's


class Line(NamedTuple):
    """A line of the learner's cell that a mistake names, or of a function that the cell calls."""

    number: int
    code: str
    library: str = ""  # the file's name if the line is convlab's own
    cell: str = ""  # "this cell", or another cell of the notebook by its number
    calls: str = ""  # the function of another cell or file that the line calls, if that matters

    def __str__(self) -> str:
        place = self.library or self.cell
        said = f"line {self.number} of {place}" if place else f"line {self.number}"
        if self.library:
            return f"{said} (a given part, not yours)"
        return f"{said}, which calls {self.calls}" if self.calls else said


@dataclass(frozen=True)
class Mistake:
    """One mistake. ``reason`` is one of this module's words, or the kind of a finding of the
    simulator, such as ``shared race``."""

    reason: str
    what: str
    lines: tuple[Line, ...] = ()
    advice: str = ""

    @property
    def cause(self) -> Any:
        """A key that mistakes of one cause share: one missing barrier may cause several races."""
        return self.reason if self.reason in UNORDERED else (self.reason, self.lines)


@dataclass(frozen=True)
class Row:
    """A count beside the target's. ``ok`` is true if the count is low enough, at most ``allowed``
    times the target; ``kind`` is a key of ``TOO_MUCH``."""

    unit: str
    yours: float
    target: float
    ok: bool
    kind: str = MEMORY
    allowed: float = 1.0

    @property
    def most(self) -> int:
        """The largest count that is allowed."""
        return math.floor(self.allowed * self.target)

    @property
    def mark(self) -> str:
        """'too many' or 'too few', or nothing if the count is right."""
        return "" if self.ok else "too many" if self.yours > self.target else "too few"


@dataclass(frozen=True)
class Feedback:
    """The result of a check, which a notebook shows. ``right`` lists the parts that are right,
    ``notes`` what could be better though the check passes, and ``todo`` the parts that are not
    filled in. A notebook's output ``display_id`` is replaced by the feedback: it says how far the
    check was. ``compared_with`` names what counts are compared with; the target is what a good
    kernel needs."""

    headline: str
    mistakes: tuple[Mistake, ...] = ()
    right: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    picture: Picture | None = field(default=None, repr=False)
    todo: tuple[str, ...] = ()
    display_id: str = field(default="", repr=False, compare=False)
    compared_with: str = "target"

    @property
    def passed(self) -> bool:
        """True if there is no mistake and nothing to do."""
        return not self.mistakes and not self.todo

    @property
    def result(self) -> str:
        """``passed``, or the first mistake's reason."""
        if self.todo and not self.mistakes:
            return UNFILLED
        return self.mistakes[0].reason if self.mistakes else PASSED

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons of all mistakes, each once; empty if the check passed."""
        reasons = [mistake.reason for mistake in self.mistakes]
        return tuple(dict.fromkeys([*reasons, UNFILLED] if self.todo else reasons))

    def __str__(self) -> str:
        text = [self.headline, *(f"  ok     {what}" for what in self.right)]
        text += [f"  todo   {what}" for what in self.todo]
        text += [f"  note   {what}" for what in self.notes]
        for mistake in self.mistakes:
            mark = "todo " if mistake.reason == UNFILLED else "WRONG"
            text.append(f"  {mark}  {mistake.what}")
            text += [f"         {line}: {line.code}" for line in mistake.lines]
            if mistake.advice:
                text.append(f"         {mistake.advice}")
        columns = self._columns()
        if self.rows:
            text.append(f"         {'':28}{''.join(f'{column:>10}' for column in columns)}")
        for row in self.rows:
            numbers = "".join(f"{number:10,.0f}" for number in self._numbers(row))
            text.append(f"         {row.unit:28}{numbers}  {row.mark}".rstrip())
        return "\n".join(text)

    def _columns(self) -> tuple[str, ...]:
        """Return the columns of the counts. What is allowed is told if a count is above its target:
        the target is the count of a good kernel, and more than that may be allowed."""
        above = any(row.yours > row.target for row in self.rows)
        columns = ("yours", self.compared_with)
        return (*columns, "allowed") if above else columns

    def _numbers(self, row: Row) -> tuple[float, ...]:
        return (row.yours, row.target, row.most)[: len(self._columns())]

    def as_html(self) -> str:
        """Return a card of HTML without script, whose colours suit light and dark pages."""
        colour = GREEN if self.passed else GREY if self.result == UNFILLED else RED
        items = [f"✔ {escape(what)}" for what in self.right]
        items += [f"… {escape(what)}" for what in self.todo]
        items += [f"⚠ {escape(what)}" for what in self.notes]
        for mistake in self.mistakes:
            item = [escape(mistake.what)]
            item += [f"{line}: <code>{escape(line.code)}</code>" for line in mistake.lines]
            if mistake.advice:
                item.append(f"<i>{escape(mistake.advice)}</i>")
            mark = "" if mistake.reason == UNFILLED else "✘ "
            items.append(mark + "<br>".join(item))
        inside = f"<p><b>{escape(self.headline)}</b></p>"
        if items:
            listed = "".join(f"<li>{item}</li>" for item in items)
            inside += f'<ul style="list-style:none;padding-left:.5em">{listed}</ul>'
        if self.rows:
            number = '<{0} style="text-align:right;padding:.1em .6em">{1}</{0}>'.format
            titles = "".join(number("th", column) for column in self._columns())
            head = f"<th></th>{titles}<th></th>"
            lines = [
                f"<td>{escape(row.unit)}</td>"
                + "".join(number("td", f"{one:,.0f}") for one in self._numbers(row))
                + f"<td>{row.mark}</td>"
                for row in self.rows
            ]
            inside += f"<table>{''.join(f'<tr>{line}</tr>' for line in (head, *lines))}</table>"
        return f'<div style="border-left:4px solid {colour};padding:.1em 1em">{inside}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        card = {"text/html": self.as_html(), "text/plain": str(self)}
        if self.display_id:
            display(card, raw=True, display_id=self.display_id, update=True)
        else:
            display(card, raw=True)
        if self.picture is not None:
            display(self.picture)


class Hint(NamedTuple):
    """A hint for counts of a kind that are too high: advice, and the lines that cause most."""

    advice: str = ""
    lines: tuple[Line, ...] = ()


NO_HINTS: Mapping[str, Hint] = {}


def row_of(
    unit: str, yours: float, target: float, at_most: float = AS_FEW, kind: str = MEMORY
) -> Row:
    """Return the row of a count that may be ``at_most`` times the target."""
    return Row(unit, yours, target, yours <= at_most * target, kind, at_most)


def checked_by_counts(
    right: Sequence[str], rows: Sequence[Row], hints: Mapping[str, Hint] = NO_HINTS,
    notes: Sequence[str] = (), compared_with: str = "target",
) -> Feedback:  # fmt: skip
    """Return the feedback on a right kernel: passed, or which kinds of counts are too high.

    ``hints`` are by kind; ``compared_with`` names what the rows are compared with.
    """
    rows = tuple(row for row in rows if row.yours or row.target)
    if all(row.ok for row in rows):
        more = ": right, with no more memory traffic than it should have." if rows else "."
        if any(row.yours > row.target for row in rows):
            more = ": right, and no count is above what is allowed."
        return Feedback(
            f"Passed{more}", (), tuple(right), rows, tuple(notes), compared_with=compared_with
        )
    kinds = [kind for kind in TOO_MUCH if any(row.kind == kind and not row.ok for row in rows)]
    mistakes = []
    for kind in kinds:
        told = _too_many([row for row in rows if not row.ok and row.kind == kind])
        hint = hints.get(kind, Hint())
        mistakes.append(Mistake(COUNTS, told, hint.lines, hint.advice))
    why = ", and ".join(TOO_MUCH[kind] for kind in kinds)
    begin = "The numbers are right here" if SEVERAL_WRITERS in kinds else "Right"
    headline = f"{begin}, but not there yet: {why}."
    return Feedback(
        headline, tuple(mistakes), tuple(right), rows, tuple(notes), compared_with=compared_with
    )


def _too_many(rows: Sequence[Row]) -> str:
    """Return the sentences about counts that are too high, those of the layout transforms apart."""
    sentences = []
    for begin in ("", TRANSFORMS):
        told = ", ".join(
            f"{row.unit.removeprefix(TRANSFORMS)} ({row.yours:,.0f}, {_allowed(row)})"
            for row in rows
            if row.unit.startswith(TRANSFORMS) == bool(begin)
        )
        if told:
            sentences.append(
                f"In the layout transforms: too many {told}." if begin else f"Too many {told}."
            )
    return " ".join(sentences)


def _allowed(row: Row) -> str:
    """Return the words that say how many are allowed."""
    are = "is" if row.most == 1 else "are"
    return f"and {row.most:,} {are} allowed" if row.most else "and none is allowed"


# Reasons in the order in which they are told, because others may follow from the first. Findings of
# the simulator come between the two; of a warp's product the wrong answer says more.
FIRST = (REFUSED, MISSING_INDEX, NOT_CALLED, BROKEN)
LAST = (ANSWER, "inactive lane", INPUT, DOES_NOT_COMPILE)


def with_mistakes(
    mistakes: Iterable[Mistake], right: Sequence[str] = (), picture: Picture | None = None
) -> Feedback:
    """Return the feedback of mistakes, the causes first; ``right`` lists what is right."""

    def order(one: Mistake) -> int:
        reasons = [*FIRST, "", *LAST]
        return reasons.index(one.reason if one.reason in reasons else "")

    found = tuple(sorted(mistakes, key=order))
    reasons = {one.reason for one in found}
    told = next((HEADLINES[reason] for reason in HEADLINES if reason in reasons), None)
    headline = told or (ON_A_GPU if right else NO_ANSWER)
    return Feedback(headline, found, tuple(right), picture=picture)
