"""Workers of a Dask scheduler, for work that is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

from convlab.support.installing import how_to_install
from convlab.support.values import shown

RETRIES = 2  # of a task whose worker was lost
ANSWER_SECONDS = 10


@contextmanager
def dask_workers(address: str) -> Iterator[Executor]:
    """Yield the workers of the scheduler at that address, such as ``tcp://host:8786``, as an
    executor. They must have the same code. Raises ``ValueError`` where there is no scheduler, or
    no ``distributed`` to reach it by."""
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
        executor: Executor = client.get_executor(retries=RETRIES, pure=False)
        yield executor
