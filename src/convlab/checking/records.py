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
    """How the kernel did on one problem. ``wrong`` says where, as [image, channel, row, column]:
    True where the output is; None where it is right, or nothing came out. ``failed`` says what else
    is wrong; ``ended`` that no run broke off."""

    name: str
    problem: ConvProblem
    check: CheckResult | None
    failed: str | None = None
    wrong: np.ndarray | None = None
    ended: bool = True

    @property
    def ok(self) -> bool:
        """Whether an output came out, is right, and nothing else is wrong."""
        return self.check is not None and self.check.ok and self.failed is None

    @property
    def error(self) -> str | None:
        """What is wrong, in one sentence; None when nothing is."""
        return None if self.ok else self.failed or str(self.check)

    def part_wrong(self) -> float:
        """0 to 1; 2 where nothing came out."""
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
    """``error`` is why Numba does not compile it, in one sentence; ``float64`` the instructions on
    float64, where the stage has none."""

    error: str | None = None
    float64: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """What was found. ``counts`` are empty where the answer is wrong: they would mean nothing."""

    kernel: str
    stage: str
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    counts: tuple[Count, ...]
    machine: Machine | None = None

    @property
    def telling(self) -> Answer | None:
        """Of the wrong answers the one that shows most: with the smallest part wrong."""
        wrong = [answer for answer in self.answers if not answer.ok]
        return min(wrong, key=Answer.part_wrong, default=None)

    @property
    def advice(self) -> str | None:
        """Where NaN alone is missing: why."""
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
        """Right everywhere, nothing found, and nothing that Numba refuses to compile."""
        right = all(answer.ok for answer in self.answers) and not self.findings
        return right and (self.machine is None or self.machine.error is None)

    @property
    def as_good(self) -> bool:
        """And it asks no more of memory than the stage, but for ten percent, nor for float64."""
        return self.ok and all(count.ok for count in self.counts) and not self.float64

    @property
    def float64(self) -> tuple[str, ...]:
        """Its machine code's instructions on float64, where the stage's has none."""
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
