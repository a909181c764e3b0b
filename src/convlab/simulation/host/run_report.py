"""The report of a program's launches, with their findings: as text, JSON and SARIF."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from convlab.simulation.rules.findings import Finding, NotSimulated, SimulationError
from convlab.simulation.rules.remedies import REMEDIES, usual_remedy

if TYPE_CHECKING:  # it reads files, with a package that the simulator does not need otherwise
    from convlab.simulation.host.baseline import Baseline

SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass
class Report:
    """The findings of some launches, one for each kind, array and pair of lines.

    ``compiled`` is how many launches ran as machine code, because they take long. ``refused`` has
    the reasons why launches could not be simulated. ``notes`` name kernels that ran
    without Numba's types, and possible mistakes that are not findings. ``raised`` names launches
    that ended with an exception that is not a finding. ``accepted`` is the number of findings that
    a baseline accepts, which are not among the others, and ``vanished`` names those that it accepts
    in vain.
    """

    launches: int = 0
    compiled: int = 0
    refused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    accepted: int = 0
    vanished: list[str] = field(default_factory=list)
    _found: dict[tuple[object, ...], Finding] = field(default_factory=dict)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, one for each kind, pair of lines and array."""
        return tuple(self._found.values())

    def add(self, error: SimulationError) -> None:
        """Keep the findings or the refusal that a launch raised."""
        if isinstance(error, NotSimulated):
            self.refused.append(str(error))
        self._keep(error.findings)

    def merge(self, other: Report) -> None:
        """Add the launches and findings of another report, without its notes."""
        self.launches += other.launches
        self.accepted += other.accepted
        self.refused += other.refused
        self.raised += other.raised
        self._keep(other.findings)

    def accept(self, baseline: Baseline) -> None:
        """Leave out the findings that a baseline accepts, and count them."""
        new = {key: one for key, one in self._found.items() if not baseline.accepts(one)}
        self.accepted += len(self._found) - len(new)
        self._found = new

    def _keep(self, findings: Iterable[Finding]) -> None:
        for one in findings:
            place = (one.file, one.line), _other_place(one)
            key = one.kind, one.kernel, place, one.array, one.past_end
            known = self._found.get(key)
            self._found[key] = (
                one if known is None else replace(known, count=known.count + one.count)
            )

    def note(self, what: str) -> None:
        """Keep a note, once."""
        if what not in self.notes:
            self.notes.append(what)

    def take(self, allowed: Collection[str] = ()) -> Report:
        """Return what was kept since the last call, and all notes, without findings of ``allowed``
        kinds. Raises ``ValueError`` for an unknown kind."""
        if unknown := sorted(set(allowed) - set(REMEDIES)):
            raise ValueError(
                f"cuda_allow has {unknown[0]!r}: a kind is one of {', '.join(REMEDIES)}"
            )
        found = {key: one for key, one in self._found.items() if one.kind not in allowed}
        taken = replace(self, _found=found)
        self.launches = self.compiled = 0
        self.refused, self.raised, self._found = [], [], {}
        return taken

    def lines(self) -> Iterator[str]:
        """Yield a line for each finding and each launch that was refused. A finding's line begins
        with its file and line as editors read them."""
        for finding in self.findings:
            yield f"{shown(finding.file)}:{finding.line}: {finding}"
        yield from dict.fromkeys(self.refused)

    def summary(self) -> str:
        """Return the numbers of findings and launches, in one line."""
        launches = _counted(self.launches, "launch", "launches")
        if not (self.launches or self.findings or self.refused):
            return "no kernel was launched, so nothing was checked"
        found = "nothing found"
        if self.findings:
            found = _counted(len(self.findings), "finding", "findings")
        said = [f"{found} in {launches}"]
        if self.accepted:
            said.append(f"{self.accepted} accepted")
        if self.compiled:
            said.append(f"{self.compiled} compiled")
        if self.refused:
            said.append(f"{len(self.refused)} refused")
        if self.raised:
            said.append(f"{len(self.raised)} ended with an exception")
        return ", ".join(said)

    def as_json(self) -> dict[str, object]:
        """Return what ``--json`` writes; docs/json.md describes it."""
        return {
            "ok": not self.findings and not self.refused,
            "launches": self.launches,
            "compiled": self.compiled,
            "findings": [asdict(finding) | {"text": str(finding)} for finding in self.findings],
            "refused": self.refused,
            "raised": self.raised,
            "accepted": self.accepted,
            "vanished": self.vanished,
            "notes": self.notes,
        }

    def as_sarif(self, version: str) -> dict[str, object]:
        """Return SARIF 2.1.0, which forges and editors show beside the lines. ``version`` is
        convlab's."""
        kinds = sorted({finding.kind for finding in self.findings})
        rules = [{"id": _rule(kind), "help": {"text": usual_remedy(kind)}} for kind in kinds]
        driver = {"name": "convlab", "version": version, "rules": rules}
        results = [
            {
                "ruleId": _rule(finding.kind),
                "level": "error",
                "message": {"text": str(finding)},
                "locations": _locations((finding.file, finding.line)),
                "relatedLocations": _locations(_other_place(finding)),
            }
            for finding in self.findings
        ]
        refused = [{"level": "error", "message": {"text": why}} for why in self.refused]
        invocation = {"executionSuccessful": not refused, "toolExecutionNotifications": refused}
        run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
        return {"$schema": SARIF, "version": "2.1.0", "runs": [run]}


def shown(file: str) -> str:
    """Return a path as people see it: relative, if it is below the current folder."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _rule(kind: str) -> str:
    return kind.replace(" ", "-")


def _other_place(finding: Finding) -> tuple[str, int] | None:
    """Return the file and line of a finding's second access; None if they are the first one's."""
    file, line = finding.other_file or finding.file, finding.other_line or finding.line
    return None if (file, line) == (finding.file, finding.line) else (file, line)


def _locations(place: tuple[str, int] | None) -> list[dict[str, object]]:
    if place is None:
        return []
    file, line = place
    path = Path(os.path.abspath(file))
    uri = shown(str(path))
    uri = path.as_uri() if uri == str(path) else Path(uri).as_posix()
    where = {"artifactLocation": {"uri": uri}, "region": {"startLine": line}}
    return [{"physicalLocation": where}]
