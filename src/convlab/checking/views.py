"""A check in words: for a terminal and as a notebook's card."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from html import escape
from textwrap import wrap

import numpy as np
from rich.console import Console, ConsoleOptions, Group
from rich.text import Text

from convlab.checking.records import Answer, Check, Count

MARKS = {False: "·", True: "x"}
NOT_COMPILED = (
    "not compiled here: whether Numba takes it is not known (make gate installs the compilers)"
)
MOST_ROWS, MOST_COLUMNS = 12, 48


class Hanging:
    """A line that wraps with a hanging indent, below its text."""

    def __init__(self, line: str, style: str) -> None:
        self.line, self.style = line, style
        margin = re.match(r" *(?:(?:ok|WRONG|slow) +)?", line)
        self.indent = len(margin[0]) if margin else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        lines = wrap(
            self.line, options.max_width, subsequent_indent=" " * self.indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        yield Text("\n".join(lines), self.style)


def as_lines(check: Check) -> Group:
    """The check for a terminal."""
    return Group(*(Hanging(line, style) for line, style in _lines(check)))


def as_text(check: Check) -> str:
    """The same without colours."""
    file = io.StringIO()
    Console(file=file, width=100, color_system=None).print(as_lines(check), end="")
    return file.getvalue()


def conclusion(check: Check) -> str:
    """The result in one sentence."""
    if not all(answer.ok for answer in check.answers):
        wrong = sum(not answer.ok for answer in check.answers)
        return f"Not yet: the answer is wrong on {wrong} of {len(check.answers)} problems."
    if check.machine is not None and check.machine.error is not None:
        return "Not yet: the answers came out right here, but Numba cannot compile the kernel."
    if check.findings:
        return (
            "Not yet: the answers came out right here, but a GPU runs threads in another order, "
            "and the kernel is wrong."
        )
    if check.float64:
        more = "" if all(count.ok for count in check.counts) else " and asks more of memory"
        return f"Right. It computes in float64{more}, which {check.stage} does not, though."
    if not check.as_good:
        return f"Right. It asks more of memory than {check.stage}, though."
    return f"Right, and it asks no more of memory than {check.stage}."


def _lines(check: Check) -> Iterator[tuple[str, str]]:
    yield f"{check.kernel} as {check.stage}", "bold"
    yield "", ""
    yield "1. Does it give the right answer?", "bold"
    for answer in check.answers:
        yield (
            f"   {'ok   ' if answer.ok else 'WRONG'}  {answer.name}: {answer.problem}",
            ("green" if answer.ok else "red"),
        )
    worst = check.telling
    if worst is not None:
        yield "", ""
        yield f"   {worst.name}: {worst.error}", "red"
        if check.advice:
            yield f"   {check.advice}", "red"
        yield from ((f"   {row}", "") for row in map_of_wrong(worst))
    yield "", ""
    yield "2. Would it on a GPU too?", "bold"
    if check.findings:
        yield from ((f"   {finding}", "red") for finding in check.findings)
    elif not all(answer.ended for answer in check.answers):
        yield "   it did not run to its end", "red"
    else:
        yield "   ok     no race, no access out of bounds, nothing uninitialised", "green"
    if all(answer.ended for answer in check.answers):
        yield _compiled(check)
    yield "", ""
    yield "3. What does it ask of memory?", "bold"
    if not check.counts:
        yield "   counted once it is right", "dim"
    else:
        yield f"   {'':26}{'yours':>12}{check.stage.split('_')[0]:>12}", "dim"
    for count in check.counts:
        yield (
            f"   {count.unit:26}{count.yours:12,.0f}{count.stages:12,.0f}  {_compared(count)}",
            "green" if count.ok else "yellow",
        )
    yield "", ""
    yield conclusion(check), "bold green" if check.ok else "bold red"


def _compiled(check: Check) -> tuple[str, str]:
    if check.machine is None:
        return f"   {NOT_COMPILED}", "dim"
    if check.machine.error is not None:
        return f"   WRONG  Numba does not compile it: {check.machine.error}", "red"
    if check.float64:
        return f"   slow   it computes in float64: {', '.join(check.float64)}", "yellow"
    return "   ok     Numba compiles it for a GPU", "green"


def _compared(count: Count) -> str:
    if count.yours == count.stages:
        return "the same"
    if not count.stages:
        return "the stage has none"
    if not count.yours:
        return "none"
    return f"{count.times:.2f} times"


def map_of_wrong(answer: Answer) -> list[str]:
    """The first output channel that is wrong as a picture of characters: x is wrong."""
    if answer.wrong is None:
        return []
    image, channel = map(int, np.argwhere(answer.wrong.any(axis=(2, 3)))[0])
    plane = answer.wrong[image, channel]
    rows = [
        "".join(MARKS[bool(pixel)] for pixel in row[:MOST_COLUMNS]) for row in plane[:MOST_ROWS]
    ]
    if plane.shape[0] > MOST_ROWS or plane.shape[1] > MOST_COLUMNS:
        rows.append("(only a part of it)")
    wrong = int(answer.wrong.any(axis=(2, 3)).sum())
    planes = answer.wrong.shape[0] * answer.wrong.shape[1]
    head = f"image {image}, channel {channel} of the output; x is wrong, · is right"
    return [f"{head} ({wrong} of {planes} such planes have wrong pixels)", *rows]


def card(check: Check) -> str:
    """The check as HTML for a notebook: no script, colours that suit light and dark pages."""
    colour = "#2e7d32" if check.ok else "#c62828"
    answers = "".join(
        f"<li>{'✔' if answer.ok else '✘'} {escape(answer.name)} "
        f"<small>{escape(str(answer.problem))}</small></li>"
        for answer in check.answers
    )
    worst = check.telling
    wrong = ""
    if worst is not None:
        rows = "\n".join(map_of_wrong(worst))
        wrong = f"<p>{escape(worst.name)}: {escape(worst.error or '')}</p>"
        wrong += f"<p>{escape(check.advice)}</p>" if check.advice else ""
        wrong += f"<pre>{escape(rows)}</pre>" if rows else ""
    findings = "".join(f"<li>{escape(str(finding))}</li>" for finding in check.findings)
    counts = "".join(
        f"<tr><td>{escape(count.unit)}</td><td>{count.yours:,.0f}</td>"
        f"<td>{count.stages:,.0f}</td><td>{_compared(count)}</td></tr>"
        for count in check.counts
    )
    heads = "".join(f"<th>{name}</th>" for name in ("", "yours", escape(check.stage), ""))
    table = f"<table><tr>{heads}</tr>{counts}</table>"
    return (
        f'<div style="border-left:4px solid {colour};padding:.2em 1em">'
        f"<p><b>{escape(conclusion(check))}</b></p>"
        f"<details{'' if check.ok else ' open'}><summary>The answer</summary><ul>{answers}</ul>"
        f"{wrong}</details>"
        + (f"<p>Would it run on a GPU?</p><ul>{findings}</ul>" if findings else "")
        + f"<p>{escape(_compiled(check)[0].strip())}</p>"
        + (table if counts else "")
        + "</div>"
    )
