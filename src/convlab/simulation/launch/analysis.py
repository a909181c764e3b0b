"""Holds the log of a launch to the rules, piece by piece, and counts memory traffic."""

from __future__ import annotations

from itertools import chain

from convlab.simulation.launch.launch_rules import LaunchRules
from convlab.simulation.launch.recorder import RecordedLaunch, Recorder
from convlab.simulation.launch.simulated_gpu import SimulatedGpu
from convlab.simulation.memory.touched import Touched
from convlab.simulation.rules.conflicts import few_of_each_line
from convlab.simulation.rules.dynamic_memory import DynamicMemory
from convlab.simulation.rules.memory_traffic import Counts, requests_of
from convlab.simulation.rules.reports import Reports

LONG = 60_000  # entries of the log that are looked at together


class LogAnalysis:
    """The rules of a launch, and those who count its memory traffic. Without ``reports`` there are
    no strict checks; ``touched`` collects the bytes of the arguments that the launch reads and
    writes."""

    def __init__(
        self,
        launch: RecordedLaunch,
        gpu: SimulatedGpu,
        rules: LaunchRules,
        reports: Reports | None,
        counts: Counts | None,
        recorder: Recorder | None,
        touched: Touched | None,
    ) -> None:
        self._launch, self._log = launch, launch.log
        self._gpu, self._race = gpu, rules.race
        self._shuffles, self._dynamic_memory = rules.shuffles, DynamicMemory()
        self._reports, self._counts, self._recorder = reports, counts, recorder
        self._touched = touched

    @property
    def is_due(self) -> bool:
        """Return whether the log is long enough to be looked at."""
        return len(self._log.addresses) > LONG

    def look(self, whole: bool) -> None:
        """Count and check what the log holds, and empty it. It is ``whole`` if the last block has
        ended; else that has only come to a barrier."""
        log = self._log
        if (self._counts is not None or self._recorder is not None) and log.addresses:
            self._count()
        if self._reports is not None:
            self._check(self._reports, whole)
        if self._touched is not None:
            self._touched.look(log.columns(), self._gpu.memory.arrays())
        log.clear()

    def finish(self) -> None:
        """Check the rest of the log, and what blocks did to each other."""
        self.look(whole=True)
        if self._reports is not None:
            for conflict in self._race.finish(self._log):
                self._reports.conflict(conflict, self._log)

    def _count(self) -> None:
        loads_of = {} if self._recorder is None else self._recorder.loads_of
        requests = requests_of(self._log, self._launch.sites, loads_of)
        if self._counts is not None:
            self._counts.add(requests)
        if self._recorder is not None:
            self._recorder.look(self._launch, requests)

    def _check(self, reports: Reports, whole: bool) -> None:
        log = self._log
        conflicts = chain(
            self._gpu.copies.look(log, whole),
            self._gpu.tensor_cores.look(log, whole),
            self._race.analyse(log, whole),
        )
        for conflict in few_of_each_line(conflicts):
            reports.conflict(conflict, log)
        self._gpu.hopper.look(log, whole)
        for aliased in self._dynamic_memory.look(log, whole):
            reports.aliased(aliased)
        self._shuffles.look(log.columns())
