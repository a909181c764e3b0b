"""Compiling before the first call: all kernels of several convolutions, in several processes.

Numba types and lowers a kernel in Python, one thread at a time, so threads do not help. The
processes are new ones of :mod:`convlab.running.compile_worker`, not forks: this one may hold a
CUDA context and threads, and its main module need not be safe to import. They hand the machine
code over and keep it on disk.
"""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread

from convlab.ladder.stage import Kernel
from convlab.running.compile_worker import CompileResult, CompileTask, Wanted, compiled
from convlab.running.engines import Engine
from convlab.running.engines.absent import GpuFacts
from convlab.running.engines.kernel_identity import compiler_libraries
from convlab.running.engines.kernels import is_ready, key_of, take_over
from convlab.support.progress import duration, say
from convlab.support.values import counted

# The compilers' libraries are those that the arguments name, if they are loaded before any import.
START = (
    "import ctypes, sys; [ctypes.CDLL(library) for library in sys.argv[1:]]; "
    "from convlab.running.compile_worker import main; main()"
)
# On a core of about 2023: a kernel, each device function that it names, a new process.
KERNEL_SECONDS, FUNCTION_SECONDS, START_SECONDS = 0.5, 0.4, 2.0
SAID_SECONDS = 2.0  # between two lines of progress, at least


@dataclass(frozen=True)
class _Kernel:
    """A kernel that is not compiled yet, for this name and in about so many seconds."""

    task: CompileTask
    name: str
    seconds: float


def compile_ahead(wanted: Iterable[Wanted], engine: Engine, processes: int | None = None) -> int:
    """Compile the kernels that these convolutions need on the engine's GPU and that neither this
    process nor the cache on disk has; return how many there were. Says on standard error how long
    it will take, and how far it is.

    ``processes`` is by default the number of cores that this process may use, shared with others
    of the same ``torchrun``. Ctrl-C ends the processes at once, and keeps what they have compiled.
    Raises ``RuntimeError`` with the first error of a kernel that could not be compiled, after the
    others.
    """
    if (facts := GpuFacts.of(engine)) is None:
        return 0  # a simulator compiles nothing
    kernels = sorted(_missing(wanted, engine, facts), key=lambda kernel: -kernel.seconds)
    if not kernels:
        return 0
    first = _local_rank() * len(kernels) // _local_processes()
    _compile(kernels[first:] + kernels[:first], processes or _usual_processes())
    return len(kernels)


def _missing(wanted: Iterable[Wanted], engine: Engine, facts: GpuFacts) -> list[_Kernel]:
    """Return the kernels to compile, each once. One without a key is its plan's to compile: no
    other process could hand it over."""
    found: dict[str, _Kernel] = {}
    for one in dict.fromkeys(wanted):
        program = one.program(engine)
        for number, launch in enumerate(program.kernels):
            key = key_of(launch, program, facts.capability)
            if key is None or key in found or is_ready(key):
                continue
            task = CompileTask(one, number, key, facts)
            found[key] = _Kernel(task, launch.name, _seconds_of(launch.kernel))
    return list(found.values())


def _seconds_of(kernel: Kernel) -> float:
    """Return about how long a kernel takes: most of it goes by its device functions."""
    values = (cell.cell_contents for cell in kernel.py_func.__closure__ or ())
    functions = sum(hasattr(value, "py_func") for value in values)
    return KERNEL_SECONDS + functions * FUNCTION_SECONDS


# How many processes.


def _local_processes() -> int:
    """Return how many processes ``torchrun`` started on this machine."""
    return max(1, _number("LOCAL_WORLD_SIZE", 1))


def _local_rank() -> int:
    """Return the number of this process among them: each begins with other kernels, and finds
    those of the others on disk."""
    return min(max(0, _number("LOCAL_RANK", 0)), _local_processes() - 1)


def _number(variable: str, usual: int) -> int:
    given = os.environ.get(variable, "")
    return int(given) if given.isascii() and given.isdecimal() and len(given) < 7 else usual


def _usual_processes() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // _local_processes())


# The work.


def _compile(kernels: Sequence[_Kernel], processes: int) -> None:
    """Compile the kernels and take them over. Raises ``RuntimeError`` for one that cannot be."""
    processes = min(processes, len(kernels))
    alone = processes == 1 or not sys.executable
    seconds = sum(kernel.seconds for kernel in kernels) / (1 if alone else processes)
    seconds = max(seconds, kernels[0].seconds) + (0 if alone else START_SECONDS)
    where = "" if alone else f" in {processes} processes"
    say(
        f"compiling {counted(len(kernels), 'kernel')}{where}: about "
        f"{duration(math.ceil(seconds))}; Ctrl-C ends it and keeps those that are compiled"
    )
    errors: list[str] = []
    begun = said = time.monotonic()
    whole, done = sum(kernel.seconds for kernel in kernels), 0.0
    answers = _alone(kernels) if alone else _together(kernels, processes)
    for number, (kernel, answer) in enumerate(answers, start=1):
        if answer.cubin is not None:
            take_over(kernel.task.key, answer.cubin)
        else:
            errors.append(f"{kernel.name} could not be compiled: {answer.error}")
        done += kernel.seconds
        now = time.monotonic()
        if number < len(kernels) and now - said > SAID_SECONDS:
            said, left = now, (now - begun) * (whole - done) / done
            say(
                f"compiling {number + 1} of {len(kernels)} kernels: about "
                f"{duration(math.ceil(left))} left"
            )
    say(f"compiled {counted(len(kernels), 'kernel')} in {duration(time.monotonic() - begun)}")
    if errors:
        raise RuntimeError(errors[0])


Answers = Iterator[tuple[_Kernel, CompileResult]]


def _alone(kernels: Sequence[_Kernel]) -> Answers:
    """Yield each kernel when this process has compiled it."""
    for kernel in kernels:
        yield kernel, compiled(kernel.task)


def _together(kernels: Sequence[_Kernel], processes: int) -> Answers:
    """Yield each kernel when one of so many new processes has compiled it."""
    waiting: SimpleQueue[_Kernel] = SimpleQueue()
    for kernel in kernels:
        waiting.put(kernel)
    done: SimpleQueue[tuple[_Kernel, CompileResult]] = SimpleQueue()
    with _workers(processes) as workers:
        for worker in workers:
            Thread(target=_hand_out, args=(worker, waiting, done), daemon=True).start()
        for _ in kernels:
            yield done.get()


def _hand_out(
    worker: subprocess.Popen[bytes],
    waiting: SimpleQueue[_Kernel],
    done: SimpleQueue[tuple[_Kernel, CompileResult]],
) -> None:
    """Give a process one kernel after the other. If it ends, this thread fails those that are left
    to it."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    with suppress(Empty):
        while True:
            kernel = waiting.get_nowait()
            try:
                pickle.dump(kernel.task, worker.stdin)
                worker.stdin.flush()
                answer: CompileResult = pickle.load(worker.stdout)
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):
                answer = CompileResult(None, f"its process ended with exit code {worker.wait()}")
            done.put((kernel, answer))


@contextmanager
def _workers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start so many processes, and end them, whatever happens meanwhile."""
    # What this process can import, the others can; they have no use for a GPU.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    libraries: tuple[str, ...] = ()
    with suppress(OSError, ImportError):  # without compilers each kernel has its own error
        libraries = compiler_libraries()
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            workers.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-c", START, *libraries],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,  # Ctrl-C in a terminal goes to this process alone
                )
            )
        yield workers
    finally:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
