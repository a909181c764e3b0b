"""Workers of a Dask scheduler, for work that is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass

from convlab.support.installing import how_to_install
from convlab.support.values import shown

RETRIES = 2  # of a task whose worker was lost
ANSWER_SECONDS = 10


@dataclass(frozen=True)
class DaskWorkers:
    """The workers as an executor, and how many there were when they were asked for."""

    executor: Executor
    count: int


@contextmanager
def dask_workers(address: str, *, one_thread: bool = False) -> Iterator[DaskWorkers]:
    """Yield the workers of the scheduler at that address, such as ``tcp://host:8786``.

    They must have the same code, and with ``one_thread`` each a single thread, so that it does one
    task at a time. Raises ``ValueError`` where there is no scheduler, no worker, a worker with more
    threads, or no ``distributed`` to reach them by.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        install = how_to_install("dask")
        raise ValueError(f"a Dask scheduler is reached by distributed: run {install}") from None
    try:
        client = Client(address, timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ValueError(f"no Dask scheduler answers at {shown(address)}: {error}") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=ANSWER_SECONDS)
        except TimeoutError:
            raise ValueError(f"the Dask scheduler at {shown(address)} has no workers") from None
        threads_of = client.nthreads()
        for worker, threads in threads_of.items() if one_thread else ():
            if threads != 1:
                raise ValueError(
                    f"worker {worker} has {threads} threads: start it with --nthreads 1, to "
                    "measure alone"
                )
        executor: Executor = client.get_executor(retries=RETRIES, pure=False)
        yield DaskWorkers(executor, len(threads_of))
