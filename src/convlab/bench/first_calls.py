"""How long a first call takes: ``python -m convlab.bench.first_calls ROW ...``, for rows of
:mod:`convlab.bench.unfold_table`.

Each row's computation is called once, in turn, in this process, between two CUDA events, as source
002's profiler did around each operation: loading kernels, making library handles and choosing an
algorithm count. The last line printed is ``{row: {"ms": ...}}``, or ``{"reason": ...}``, in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from convlab.bench.unfold_table import LINES, PROBLEM, computation, row_system
from convlab.oracle import random_tensors


def measure(names: Sequence[str], timed: Callable[[Callable[[], Any]], float]) -> dict[str, Any]:
    """Every row's first call in milliseconds, by the clock ``timed``; the reason where it has
    none."""
    found: dict[str, Any] = {}
    for name in names:
        absent = row_system(name).why_absent()
        if absent is not None:
            found[name] = {"reason": absent}
            continue
        found[name] = {"ms": timed(computation(LINES[name], PROBLEM, *_tensors()))}
    return found


def _tensors() -> list[Any]:
    import torch

    input, weight, _ = random_tensors(PROBLEM, 0, bias=False)
    return [torch.from_numpy(array).cuda() for array in (input, weight)]


def by_events(call: Callable[[], Any]) -> float:
    """Milliseconds between two events around one call."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    with torch.no_grad():
        begin.record()
        call()
        end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1:], by_events)))
