"""A test suite on the strict simulator: the findings of its tests, of one process or of several."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path

from convlab.simulation.host.baseline import AcceptedFinding, Baseline
from convlab.simulation.host.run_report import Report
from convlab.simulation.rules.findings import Finding, SimulationError
from convlab.support import files, whole_files
from convlab.support.version import __version__


@dataclass
class ToldFindings:
    """The findings of a part of a suite, as one process tells them to another one."""

    findings: list[Finding]
    refused: list[str]
    notes: list[str]
    seen: list[AcceptedFinding]
    partial: bool


@dataclass
class StrictSuite:
    """The findings of a suite's tests. ``report`` receives those of each launch; a test takes them
    into ``whole``, which has those that have failed tests. ``partial`` if not all tests ran."""

    report: Report
    baseline: Baseline | None = None
    sarif_file: Path | None = None
    whole: Report = field(default_factory=Report)
    partial: bool = False
    folder: Path = field(default_factory=Path.cwd)  # a test may change the current one

    def check_files(self) -> None:
        """Raise ``ValueError`` about a file that could not be written in the end."""
        written = {"--cuda-sarif": self.sarif_file}
        if self.baseline is not None and self.baseline.updates:
            written["--cuda-baseline"] = self.baseline.path
        for option, path in written.items():
            if path is not None:
                whole_files.check_writable(option, path)

    def take(self, allowed: Collection[str]) -> str:
        """Return the findings since the last call, in lines, without the accepted ones and without
        those of ``allowed`` kinds."""
        taken = self.report.take(allowed)
        if self.baseline is not None:
            taken.accept(self.baseline)
        self.whole.merge(taken)
        return "\n".join(taken.lines())

    def accepts(self, error: BaseException) -> bool:
        """Return whether an exception is that of a launch which accepted findings have ended."""
        if self.baseline is None or not isinstance(error, SimulationError) or not error.findings:
            return False
        return all(map(self.baseline.accepts, error.findings))

    def told(self) -> object:
        """Return the findings so far in types that JSON has, for :meth:`hear`."""
        seen = [] if self.baseline is None else [*self.baseline.seen]
        whole = self.whole
        told = ToldFindings(
            findings=[*whole.findings],
            refused=whole.refused,
            notes=self.report.notes,
            seen=seen,
            partial=self.partial,
        )
        return files.strict(asdict(told))

    def hear(self, told: object) -> None:
        """Add the findings that another process has :meth:`told`."""
        other = files.record(told, ToldFindings)
        self.whole.add(SimulationError("", tuple(other.findings)))
        self.whole.refused += other.refused
        for note in other.notes:
            self.report.note(note)
        if self.baseline is not None:
            self.baseline.seen.update(other.seen)
        self.partial |= other.partial

    def write(self) -> None:
        """Write the files that are asked for. Raises ``OSError`` where one cannot be written."""
        if self.sarif_file is not None:
            text = json.dumps(self.whole.as_sarif(__version__), indent=2) + "\n"
            whole_files.write_whole(self.folder / self.sarif_file, text.encode())
        if self.baseline is not None and self.baseline.updates:
            # Tests that did not run may have findings, so what they had stays accepted.
            self.baseline.write(self.baseline.accepted if self.partial else ())

    def lines(self) -> list[str]:
        """Return what is to be said in the end: the notes, and what the baseline says."""
        said = [*self.report.notes]
        if self.baseline is None:
            return said
        if self.baseline.updates:
            return [*said, self.baseline.said_of_update()]
        return said if self.partial else [*said, *self.baseline.lines()]
