"""The outcome of a check: as data, in words for a terminal, and as a notebook's card."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
from rich.text import Text

from convlab.checking.common_causes import OF_PROBLEMS, Launched, numbers_in, said, shared
from convlab.ladder import Tile
from convlab.problems.oracle import CheckResult
from convlab.problems.problem import ConvProblem
from convlab.simulation.rules.findings import Finding
from convlab.support.installing import how_to_install
from convlab.tracing import LaunchTrace
from convlab.tracing.views import as_html

SPOILED = "NaN and infinities"
RELU = "ReLU"  # of NaN and infinities too
BESIDE = "NaN beside the windows"
SPOILED_INPUTS = SPOILED, RELU, BESIDE
ADDED, ADDED_TOO = "a residual", "a residual, few channels"
BARRIERS = "threads at barriers"
TRANSFORMS = "transforms: "  # begins the names of counts of the layout transforms
AS_GOOD = 1.10  # times the stage's count that still is as good
WIDTH = 100
MOST_ROWS, MOST_COLUMNS = 12, 48


@dataclass(frozen=True)
class Answer:
    """The kernel's output on one problem, and what is wrong with it.

    ``wrong`` is True where ``output`` is wrong, by [image, channel, row, column]; None if the
    output is right or there is none. ``failed`` says what else is wrong. ``ended`` is True if every
    run came to its end, ``endless`` if a loop did not. ``tile`` is None for stages without tiles,
    and ``blocks`` are those of the main kernel's launch. ``unwritten`` is the first buffer, such as
    the im2win tensor, with elements that no launch wrote.
    """

    name: str
    problem: ConvProblem
    check: CheckResult | None
    failed: str | None = None
    wrong: np.ndarray | None = None
    ended: bool = True
    output: np.ndarray | None = None
    endless: bool = False
    tile: Tile | None = None
    blocks: int = 1
    unwritten: str = ""

    @property
    def ok(self) -> bool:
        """Return whether there is an output, it is right, and nothing else is wrong."""
        return self.check is not None and self.check.ok and self.failed is None

    @property
    def error(self) -> str | None:
        """Return a sentence that says what is wrong; None if nothing is."""
        return None if self.ok else self.failed or str(self.check)

    def work(self) -> tuple[bool, int]:
        """Return how much there is to understand, for sorting answers: the numbers in the problem.

        Answers without an output come last.
        """
        return self.check is None, numbers_in(self.problem)

    def map_of_wrong(self) -> list[str]:
        """The first output channel that is wrong as a picture of characters: x is wrong."""
        if self.wrong is None:
            return []
        planes = self.wrong.any(axis=(2, 3))
        image, channel = np.argwhere(planes)[0].tolist()
        plane = self.wrong[image, channel]
        shown = np.where(plane[:MOST_ROWS, :MOST_COLUMNS], "x", "·")
        head = f"image {image}, channel {channel} of the output; x is wrong, · is right"
        wrong = f"{planes.sum()} of {planes.size} such planes have wrong pixels"
        lines = [f"{head} ({wrong})", *map("".join, shown.tolist())]
        if shown.shape != plane.shape:
            lines.append("(only a part of it)")
        return lines


@dataclass(frozen=True)
class TrafficCount:
    """One count of the kernel beside the stage's. ``unit`` is what is counted, in words."""

    unit: str
    yours: float
    stages: float

    @property
    def ok(self) -> bool:
        """Return whether the count is at most a tenth above the stage's."""
        return self.yours <= AS_GOOD * self.stages

    @property
    def fewer_barriers(self) -> bool:
        """Return whether it counts barriers, and the stage has more."""
        return self.unit.endswith(BARRIERS) and self.yours < self.stages

    @property
    def times(self) -> float:
        """Return the count over the stage's."""
        return self.yours / self.stages if self.stages else float("inf") if self.yours else 1.0

    @property
    def compared(self) -> str:
        """The count compared with the stage's, in words."""
        if self.yours == self.stages:
            return "the same"
        if not self.stages:
            return "the stage has none"
        return f"{self.times:.2f} times" if self.yours else "none"


@dataclass(frozen=True)
class CompiledKernel:
    """The compiler's result for a kernel.

    ``error`` says in one sentence why Numba does not compile the kernel; ``float64`` holds its
    float64 instructions if the stage has none.
    """

    error: str | None = None
    float64: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """The result of a check. ``counts`` are empty for a wrong answer: they would mean nothing.
    ``planned`` is the number of problems on which a right kernel is tried, and ``launches`` are the
    traces that are counted. ``found_on`` has the answer of the first problem that shows each of the
    findings."""

    kernel: str
    stage: str
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    counts: tuple[TrafficCount, ...]
    machine: CompiledKernel | None = None
    planned: int = 0
    launches: tuple[LaunchTrace, ...] = field(default=(), repr=False, compare=False)
    found_on: tuple[Answer, ...] = field(default=(), repr=False, compare=False)

    @property
    def wrong(self) -> list[Answer]:
        """The answers that are not right."""
        return [answer for answer in self.answers if not answer.ok]

    @property
    def telling(self) -> Answer | None:
        """The wrong answer that shows the mistake best: on ordinary numbers where there is one, and
        on the simplest problem."""
        ordinary = [answer for answer in self.wrong if answer.name not in SPOILED_INPUTS]
        return min(ordinary or self.wrong, key=Answer.work, default=None)

    @property
    def shared(self) -> str:
        """A sentence about what the problems with wrong outputs share and the others have not;
        empty if that is nothing, or if the kernel did not run to its end on some of them."""
        ordinary = [one for one in self.answers if one.name not in SPOILED_INPUTS]
        if any(one.check is None for one in ordinary):
            return ""
        wrong, right = (
            [Launched(one.problem, one.tile, one.blocks) for one in ordinary if one.ok == ok]
            for ok in (False, True)
        )
        return said(shared(wrong, right, OF_PROBLEMS), len(wrong), "problems")

    @property
    def advice(self) -> str | None:
        """An explanation of a NaN in the output, and of one that is missing where that is the only
        mistake."""
        spoiled = bool(self.wrong) and {one.name for one in self.wrong} <= {*SPOILED_INPUTS}
        shown = self.telling.check if self.telling is not None and not spoiled else None
        if shown is not None and np.isnan(shown.got or 0):
            if self.telling is not None and self.telling.unwritten:
                name = self.telling.unwritten
                return (
                    f"the array {name} is filled with NaN before the launches, and some of its "
                    "elements are still NaN after them: no thread has written these elements"
                )
            return (
                "the output is NaN before the launch: nothing was written there, or a sum took "
                "memory that nothing was written to"
            )
        check = self.wrong[0].check if spoiled else None
        if check is None or check.expected is None:
            return None
        if not np.isnan(check.expected):
            return (
                "some inputs or weights are NaN or infinite here, and so is a product with 0: the "
                "kernel multiplies numbers that do not belong to this sum, by zeros that hide them "
                "elsewhere"
                if np.isnan(check.got or 0)
                else None
            )
        return (
            "padding is zeros that are multiplied, and 0 times infinity is NaN: a kernel that "
            "skips padding differs only here"
        )

    @property
    def compile_error(self) -> str | None:
        """The reason why Numba does not compile the kernel; None if it does, or was not asked."""
        return self.machine.error if self.machine else None

    @property
    def float64(self) -> tuple[str, ...]:
        """The float64 instructions of the kernel's machine code; empty if the stage's kernel has
        some too."""
        return self.machine.float64 if self.machine else ()

    @property
    def ok(self) -> bool:
        """Return whether all answers are right, without findings, and the kernel compiles."""
        return not self.wrong and not self.findings and self.compile_error is None

    @property
    def frugal(self) -> bool:
        """Return whether no count is more than 1.1 times the stage's."""
        return all(count.ok for count in self.counts)

    @property
    def as_good(self) -> bool:
        """Return whether it is right, has at most 1.1 times the stage's counts, and no float64."""
        return self.ok and self.frugal and not self.float64

    def as_json(self) -> dict[str, object]:
        """Return the document of ``convlab check --json``."""
        return {
            "kernel": self.kernel,
            "stage": self.stage,
            "ok": self.ok,
            "as_good": self.as_good,
            "answers": [
                {"name": a.name, "problem": str(a.problem), "ok": a.ok, "error": a.error}
                for a in self.answers
            ],
            "findings": [asdict(finding) | {"text": str(finding)} for finding in self.findings],
            "compiled": None if self.machine is None else self.compile_error is None,
            "compile_error": self.compile_error,
            "float64": list(self.float64),
            "counts": [asdict(count) | {"ok": count.ok} for count in self.counts],
        }

    @property
    def conclusion(self) -> str:
        """The result in one sentence."""
        if self.wrong:
            of = f"of {len(self.answers)} problems"
            without = sum(answer.check is None for answer in self.wrong)
            none = f"it does not run to its end on {without} {of}"
            if without == len(self.wrong):
                return f"Not yet: {none}, so there is no answer."
            wrong = f"the answer is wrong on {len(self.wrong) - without} {of}"
            return f"Not yet: {wrong}{f', and {none}' if without else ''}."
        here = "the answers came out right here, but"
        if self.compile_error is not None:
            return f"Not yet: {here} Numba cannot compile the kernel."
        if self.findings:
            return f"Not yet: {here} a GPU runs threads in another order, and the kernel is wrong."
        if self.float64:
            more = "" if self.frugal else " and asks more of memory"
            return f"Right. It computes in float64{more}, which {self.stage} does not, though."
        fewer = any(count.fewer_barriers for count in self.counts)
        also = f" It has fewer barriers than {self.stage}." if fewer else ""
        if not self.frugal:
            return f"Right. It asks more of memory than {self.stage}, though.{also}"
        return f"Right, and it asks no more of memory than {self.stage}.{also}"

    def as_text(self, width: int = WIDTH) -> Text:
        """The check for a terminal; lines that are too long hang below their text."""
        text = Text()
        for line, style in self._lines():
            indent = " " * (len(line) - len(re.sub(r"^ *((ok|WRONG|slow) +)?", "", line)))
            before = "\n" if "bold" in style and text else ""  # a line between the parts
            wrapped = textwrap.fill(
                line, width, subsequent_indent=indent, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip
            text.append(f"{before}{wrapped}\n", style)
        text.right_crop()
        return text

    def __str__(self) -> str:
        return self.as_text().plain

    def _repr_html_(self) -> str:
        colour = "#2e7d32" if self.ok else "#c62828"
        return as_html(self.as_text(), f"border-left:4px solid {colour};padding:.2em 1em")

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Lines and their styles."""
        yield f"{self.kernel} as {self.stage}", "bold"
        yield "1. Does it give the right answer?", "bold"
        for answer in self.answers:
            mark, style = ("ok   ", "green") if answer.ok else ("WRONG", "red")
            yield f"   {mark}  {answer.name}: {answer.problem}", style
        if (worst := self.telling) is not None:
            yield f"   {worst.name}: {worst.error}", "red"
            if self.shared:
                yield f"   {self.shared}", "red"
            if self.advice:
                yield f"   {self.advice}", "red"
            yield from ((f"   {row}", "") for row in worst.map_of_wrong())
        yield "2. Would it on a GPU too?", "bold"
        ended = all(answer.ended for answer in self.answers)
        yield from ((f"   {finding}", "red") for finding in self.findings)
        if not ended and not self.findings:
            yield "   it did not run to its end", "red"
        elif not self.findings:
            yield "   ok     no race, no access out of bounds, nothing uninitialised", "green"
        if ended:
            yield self._compiled()
        yield "3. What does it ask of memory?", "bold"
        long = max((len(count.unit) for count in self.counts), default=0)
        head = f"{'':{long}} {'yours':>11} {self.stage.split('_')[0]:>11}"
        yield f"   {head if self.counts else 'counted once it is right'}", "dim"
        for count in self.counts:
            numbers = f" {count.yours:11,.0f} {count.stages:11,.0f}"
            style = "green" if count.ok else "yellow"
            yield f"   {count.unit:{long}}{numbers}  {count.compared}", style
        yield self.conclusion, "bold green" if self.ok else "bold red"

    def _compiled(self) -> tuple[str, str]:
        if self.machine is None:
            install = how_to_install("lint", "make gate")
            said = "not compiled here: whether Numba takes it is not known"
            return f"   {said} ({install} installs the compilers)", "dim"
        if self.compile_error is not None:
            return f"   WRONG  Numba does not compile it: {self.compile_error}", "red"
        if self.float64:
            return f"   slow   it computes in float64: {', '.join(self.float64)}", "yellow"
        return "   ok     Numba compiles it for a GPU", "green"
