"""A backend without a GPU: systems that go wrong in every way there is, and a clock that says
what it is told. Processes of the benchmark open it by name: ``bench_fakes:Fakes``."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from threading import Thread
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np

from convlab.measuring import pool
from convlab.measuring.baselines import System, Unsupported
from convlab.measuring.harness import serve
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.problems.workloads import paper_layer
from convlab.support.dask_workers import DaskWorkers

GIB = 2**30
# No Machine here: it needs the stages, whose import a process of fakes need not wait for.
MACHINE = {
    "device": "a fake GPU", "fp32_flops": 60e12, "tf32_flops": 400e12,
    "memory_bytes_per_second": 4e12, "l2_bytes": 0, "multiprocessors": 100,
}  # fmt: skip
ENVIRONMENT = {
    "command": "convlab",
    "date": "2026-11-21T12:00:00+00:00",
    "compiler": "numba-cuda",
    "python": "3.12.3",
    "packages": {"convlab": "0.1.0", "numpy": "2.4.6", "torch": None},
    "gpu": {"name": "a fake GPU", "driver": "580", "cuda": "13.0"},
    "clocks_mhz": {"sm": 1980, "memory": 3200, "max_sm": 1980},
}


def small_layer(layer: str, batch: int) -> ConvProblem:
    """A layer of the paper with few channels, which NumPy convolves at once."""
    return replace(paper_layer(layer, batch), in_channels=32, out_channels=16)


@dataclass(frozen=True)
class Timing:
    median_ms: float = 10.0
    spread_percent: float = 0.5
    repeats: int = 20


class Fake:
    """A prepared convolution that NumPy does; what it does wrong is handed in."""

    algorithm: str | None = "numpy"
    capturable = True
    workspace_bytes: int | None = 12345

    def __init__(self, problem, input, weight, place, spoil=None):
        self.right = reference(problem, input, weight).astype(np.float32)
        self.out = np.zeros_like(self.right)
        self.spoil, self.runs, self.place = spoil, 0, place
        place.taken += GIB

    def run(self, stream):
        self.runs += 1
        written = self.spoil(self.right.copy(), self.runs) if self.spoil else self.right.copy()
        if written is not None:
            self.out = written

    def poison(self):
        self.out = np.full_like(self.right, np.nan)

    def output(self):
        return self.out

    def close(self):
        self.place.taken = 0


def one_wrong(output, run):
    output[0, 0, 0, 0] += 1
    return output


def skips_one(output, run):
    output[-1, -1, -1, -1] = np.nan
    return output


def noisy(size):
    def spoil(output, run):
        errors = np.random.default_rng(run).standard_normal(output.shape)
        return (output + size * np.sqrt((output**2).mean()) * errors).astype(np.float32)

    return spoil


class OutOfMemoryError(RuntimeError):
    """Called as PyTorch's is."""


# In the order of a run; what spoils the output, else None: the clock or the GPU's load is wrong.
SPOILED: dict[str, Any] = {
    "right": None,
    "wrong": one_wrong,
    "stage_wrong": one_wrong,
    "writes_nothing": lambda output, run: None,
    "skips_one": skips_one,
    "wrong_later": lambda output, run: one_wrong(output, run) if run > 3 else output,
    "tf32": noisy(3e-4),
    "tf32_too_wrong": noisy(0.02),
    "any": noisy(4.5e-5),
    "crash": lambda output, run: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda output, run: time.sleep(600),
    "sticky": Mock(side_effect=RuntimeError("CUDA driver: CUDA_ERROR_ILLEGAL_ADDRESS")),
    "oom": Mock(side_effect=OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")),
    "oom_host": Mock(side_effect=MemoryError("stage i01's workspace needs 9 GiB")),
    "oom_driver": Mock(side_effect=RuntimeError("CUDA driver: CUDA_ERROR_OUT_OF_MEMORY")),
    "unsupported": Mock(side_effect=Unsupported("CUDNN_STATUS_NOT_SUPPORTED for this filter")),
} | dict.fromkeys(
    ("absent", "above_roofline", "above_bandwidth", "unsteady", "steady_at_last",
     "steady_in_turn_2", "busy", "throttled", "host")
)  # fmt: skip
TIMES = {
    "above_roofline": Timing(1e-6),
    "above_bandwidth": Timing(5e-6),
    "unsteady": Timing(spread_percent=45.0),
    "host": Timing(900.0, 3.0, 3),
}


class Fakes:
    """The backend."""

    def __init__(self, allowed=None):
        self.allowed, self.taken, self.current = allowed, 0, ""
        self.timed = self.looks = self.turns = 0

    def facts(self):
        return {"machine": MACHINE, "environment": ENVIRONMENT}

    def system_named(self, name):
        self.current, self.timed, self.looks = name, 0, 0
        self.turns += name == "steady_in_turn_2"
        spoil, stage = SPOILED[name], name in ("right", "crash", "stage_wrong")

        def compile(problem):
            if name == "crash":
                os.kill(os.getpid(), signal.SIGKILL)

        return System(
            name, f"a fake: {name}", "convlab" if stage else "fakes",
            lambda: "its library is not installed" if name == "absent" else None,
            lambda *tensors: Fake(*tensors, self, spoil),
            kind="stage" if stage else "baseline",
            precision="tf32" if name.startswith("tf32") else "fp32",
            method="any" if name == "any" else "gemm",
            on_gpu=name != "host",
            compile=None if name in ("unsupported", "tf32") else compile,  # these are rehearsed
        )  # fmt: skip

    def free_bytes(self):
        return 100 * GIB - self.taken

    def synchronize(self):
        pass

    def time(self, prepared, on_gpu):
        self.timed += 1
        prepared.run(1)
        prepared.poison()
        prepared.run(1)
        turn_2 = self.current == "steady_in_turn_2" and self.turns == 1
        if turn_2 or (self.current == "steady_at_last" and self.timed < 3):
            return Timing(spread_percent=60.0)
        return TIMES.get(self.current, Timing())

    def time_called(self, prepared):
        prepared.run(1)
        return replace(TIMES.get(self.current, Timing()), median_ms=12.0)

    def look(self):
        self.looks += 1
        clock = 1000 if self.current == "throttled" and self.looks % 2 == 0 else 1980
        return lambda: SimpleNamespace(sm=clock, max_sm=1980)

    def others(self):
        return lambda: 2 if self.current == "busy" else 0


class InThread(pool.Worker):
    """A worker without a process, for what is not about processes: quick to start."""

    def __init__(self, backend, log):
        self.number = id(self)
        self._connection, theirs = Pipe()
        self._thread = Thread(target=serve, args=(backend, theirs), daemon=True)
        self._thread.start()

    def end(self):
        self.dismiss()
        self._thread.join()


def system(name, /, **changed):
    return replace(Fakes().system_named(name), **changed)


def pretend_gpu(monkeypatch, backend):
    """A GPU that is idle; workers are threads with that backend, layers are small."""
    from convlab.measuring import gpu_backend

    monkeypatch.setattr("convlab.running.engines.unavailable", lambda name: None)
    monkeypatch.setattr("convlab.running.engines._made", {"gpu": object()})
    monkeypatch.setattr(pool, "BACKEND", backend)
    monkeypatch.setattr(pool, "Worker", InThread)
    monkeypatch.setattr("convlab.measuring.cases.paper_layer", small_layer)
    monkeypatch.setattr(gpu_backend, "current_gpu", lambda: "GPU-1")
    monkeypatch.setattr(gpu_backend, "look", lambda gpu: gpu_backend.Look())
    monkeypatch.setattr(gpu_backend, "processes", lambda gpu: ())


def interrupt_at(monkeypatch, number):
    """Ctrl-C at the row of that number; returns what is measured, by name."""
    measure, calls = pool.WorkerPool.measure, []

    def interrupted(self, chosen, check):
        calls.append(chosen.name)
        if len(calls) == number:
            raise KeyboardInterrupt
        return measure(self, chosen, check)

    monkeypatch.setattr(pool.WorkerPool, "measure", interrupted)
    return calls


def pretend_workers(monkeypatch, count=2):
    """So many threads in the place of a scheduler's workers; returns the addresses asked for."""
    asked = []

    @contextmanager
    def dask_workers(address, *, one_thread):
        assert one_thread  # so that each measures alone
        asked.append(address)
        with ThreadPoolExecutor(count) as threads:
            yield DaskWorkers(threads, count)

    monkeypatch.setattr("convlab.support.dask_workers.dask_workers", dask_workers)
    return asked
