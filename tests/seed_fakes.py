"""Laboratories without a GPU for the benchmarks of the seeds' figures: what answers to each name is
a fake of :mod:`bench_fakes`, right unless it is told otherwise."""

from __future__ import annotations

from dataclasses import replace

from bench_fakes import Fakes, Timing

SLOW = {"without_microkernel": 120.0, "without_vectorized": 15.0, "without_prefetch": 12.0}
SPREAD: dict[str, float] = {}  # in percent, where runs do not settle
HOW: dict[str, str] = {}  # by system: which fake it is, if not the right one


class Named(Fakes):
    """Any name is a system that computes rightly, in its own time."""

    def system_named(self, name):
        how = HOW.get(name, "right")
        system = super().system_named(how)
        kind = "stage" if name.startswith(("s0", "s1", "without")) else "baseline"
        self.current, self.name = how, name
        return replace(system, name=name, kind=kind)

    def compile(self, name, problem):
        assert name.startswith(("s0", "s1", "without"))

    def time(self, prepared, on_gpu):
        super().time(prepared, on_gpu)
        return Timing(SLOW.get(self.name, 10.0), SPREAD.get(self.name, 0.5))
