"""What a check found, as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from convlab.oracle import CheckResult
from convlab.problem import ConvProblem
from convlab.simulation.findings import Finding

SPOILED = "NaN and infinities"
AS_GOOD = 1.10  # times the stage's count that still is as good


@dataclass(frozen=True)
class Answer:
    """How the kernel did on one problem. ``wrong`` is True where the output is wrong, by [image,
    channel, row, column]; None if the output is right or there is none. ``failed`` says what else
    is wrong; ``ended`` that every run came to its end."""

    name: str
    problem: ConvProblem
    check: CheckResult | None
    failed: str | None = None
    wrong: np.ndarray | None = None
    ended: bool = True

    @property
    def ok(self) -> bool:
        """Whether there is an output, it is right, and nothing else is wrong."""
        return self.check is not None and self.check.ok and self.failed is None

    @property
    def error(self) -> str | None:
        """What is wrong, in one sentence; None when nothing is."""
        return None if self.ok else self.failed or str(self.check)

    def part_wrong(self) -> float:
        """The wrong part of the output, 0 to 1; 2 if there is none."""
        if self.check is None:
            return 2.0
        return 0.0 if self.wrong is None else float(self.wrong.mean())


@dataclass(frozen=True)
class Count:
    """One count of the kernel beside the stage's. ``unit`` is what is counted, in words."""

    unit: str
    yours: float
    stages: float

    @property
    def ok(self) -> bool:
        """Whether it is no more than a tenth above the stage's."""
        return self.yours <= AS_GOOD * self.stages

    @property
    def times(self) -> float:
        """How many times the stage's."""
        return self.yours / self.stages if self.stages else float("inf") if self.yours else 1.0


@dataclass(frozen=True)
class Machine:
    """What the compiler says: ``error`` is why Numba does not compile the kernel, in one sentence;
    ``float64`` holds its float64 instructions if the stage has none."""

    error: str | None = None
    float64: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """The result of a check. ``counts`` are empty for a wrong answer: they would mean nothing."""

    kernel: str
    stage: str
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    counts: tuple[Count, ...]
    machine: Machine | None = None

    @property
    def telling(self) -> Answer | None:
        """The wrong answer with the smallest wrong part, which shows the mistake best."""
        wrong = [answer for answer in self.answers if not answer.ok]
        return min(wrong, key=Answer.part_wrong, default=None)

    @property
    def advice(self) -> str | None:
        """An explanation if the only mistake is a missing NaN."""
        wrong = [answer for answer in self.answers if not answer.ok]
        check = wrong[0].check if [answer.name for answer in wrong] == [SPOILED] else None
        if check is None or check.expected is None or not np.isnan(check.expected):
            return None
        return (
            "padding is zeros that are multiplied, and 0 times infinity is NaN: a kernel that "
            "skips padding differs only here"
        )

    @property
    def ok(self) -> bool:
        """Whether every answer is right, no finding was made, and Numba compiles the kernel."""
        right = all(answer.ok for answer in self.answers) and not self.findings
        return right and (self.machine is None or self.machine.error is None)

    @property
    def as_good(self) -> bool:
        """Whether it is right, has at most 1.1 times the stage's counts, and no float64."""
        return self.ok and all(count.ok for count in self.counts) and not self.float64

    @property
    def float64(self) -> tuple[str, ...]:
        """The float64 instructions of its machine code, if the stage's has none."""
        return self.machine.float64 if self.machine else ()

    def as_json(self) -> dict[str, Any]:
        """What ``convlab check --json`` writes."""
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
            "compiled": None if self.machine is None else self.machine.error is None,
            "compile_error": self.machine.error if self.machine else None,
            "float64": list(self.float64),
            "counts": [asdict(count) | {"ok": count.ok} for count in self.counts],
        }
