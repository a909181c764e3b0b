"""What a check of an exercise says: the result, why, and what to look at, in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from convlab.lessons.pictures import Picture

PASSED, UNFILLED, BROKEN, ANSWER, COUNTS = "passed", "unfilled", "broken", "answer", "counts"
GREEN, RED, GREY = "#2e9e4f", "#d1503f", "#8b929a"


@dataclass(frozen=True)
class Line:
    """A line of the learner's cell that something is said about."""

    number: int
    code: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. ``reason`` is a word for it: one of this module's, or the kind of
    a finding of the simulator, such as ``shared race``."""

    reason: str
    what: str
    lines: tuple[Line, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class Row:
    """A count beside the target's. ``ok`` is whether it is as few."""

    unit: str
    yours: float
    target: float
    ok: bool

    @property
    def mark(self) -> str:
        """What is wrong with it, in two words."""
        return "" if self.ok else "too many" if self.yours > self.target else "too few"


@dataclass(frozen=True)
class Feedback:
    """The result of a check, which a notebook shows. ``result`` is ``passed`` or the first
    problem's reason; ``right`` says what is right already."""

    title: str
    headline: str
    problems: tuple[Problem, ...] = ()
    right: tuple[str, ...] = ()
    rows: tuple[Row, ...] = ()
    picture: Picture | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def result(self) -> str:
        """``passed``, or the first problem's reason."""
        return self.problems[0].reason if self.problems else PASSED

    @property
    def reasons(self) -> tuple[str, ...]:
        """Everything that is wrong, in words of one or two; empty where it passed."""
        return tuple(dict.fromkeys(problem.reason for problem in self.problems))

    def __str__(self) -> str:
        return "\n".join(self._text())

    def _text(self) -> Iterator[str]:
        yield self.headline
        for what in self.right:
            yield f"  ok     {what}"
        for problem in self.problems:
            yield f"  {'todo ' if problem.reason == UNFILLED else 'WRONG'}  {problem.what}"
            for line in problem.lines:
                yield f"         line {line.number}: {line.code}"
            if problem.advice:
                yield f"         {problem.advice}"
        if self.rows:
            yield f"         {'':28}{'yours':>10}{'target':>10}"
        for row in self.rows:
            mark = f"  {row.mark}".rstrip()
            yield f"         {row.unit:28}{row.yours:10,.0f}{row.target:10,.0f}{mark}"

    def as_html(self) -> str:
        """A card without script, whose colours suit light and dark pages."""
        colour = GREEN if self.passed else GREY if self.result == UNFILLED else RED
        parts = [f"<p><b>{escape(self.headline)}</b></p>"]
        items = [f"<li>✔ {escape(what)}</li>" for what in self.right]
        for problem in self.problems:
            lines = "".join(
                f"<br>line {line.number}: <code>{escape(line.code)}</code>"
                for line in problem.lines
            )
            advice = f"<br><i>{escape(problem.advice)}</i>" if problem.advice else ""
            mark = "" if problem.reason == UNFILLED else "✘ "
            items.append(f"<li>{mark}{escape(problem.what)}{lines}{advice}</li>")
        if items:
            parts.append(f'<ul style="list-style:none;padding-left:.5em">{"".join(items)}</ul>')
        if self.rows:
            number = '<td style="text-align:right;padding:.1em .6em">'
            cells = "".join(
                f"<tr><td>{escape(row.unit)}</td>{number}{row.yours:,.0f}</td>"
                f"{number}{row.target:,.0f}</td><td>{row.mark}</td></tr>"
                for row in self.rows
            )
            named = number.replace("td", "th")
            head = f"<tr><th></th>{named}yours</th>{named}target</th><th></th></tr>"
            parts.append(f"<table>{head}{cells}</table>")
        inside = "".join(parts)
        return f'<div style="border-left:4px solid {colour};padding:.1em 1em">{inside}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self.as_html(), "text/plain": str(self)}, raw=True)
        if self.picture is not None:
            display(self.picture)


def graded(feedback: Feedback) -> Feedback:
    """The same; but where nbgrader grades, which says so in the environment, not passing raises
    ``AssertionError``, because that is what nbgrader counts."""
    if os.environ.get("NBGRADER_EXECUTION") == "autograde" and not feedback.passed:
        raise AssertionError(str(feedback))
    return feedback
