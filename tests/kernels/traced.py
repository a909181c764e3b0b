"""Traces that the viewer's tests show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numba import cuda, float32, float64

from convlab import Trace, trace, trace_stage
from convlab.ladder import stage_named
from convlab.problems.workloads import TEACHING
from convlab.tracing.traffic_recorder import MOST_REQUESTS
from kernels import textbook


@cuda.jit
def awkward(a, b):
    """</script><script>alert("&lt;")</script> <!-- <b>&amp;</b>"""
    i = cuda.grid(1)
    if i < a.size and True:  # </style> & "quotes" 'too' <!--{trace}-->
        b[i] = a[i]


@cuda.jit
def wide(a, b):
    """Loads and stores of 8 bytes, pairs of lanes that want the same, and a shift of 4 bytes."""
    before = cuda.shared.array(3, float32)
    staged = cuda.shared.array(64, float64)
    t = cuda.threadIdx.x
    if t < 3:
        before[t] = t
    staged[t] = a[t]
    cuda.syncthreads()
    b[t] = staged[t // 2] + staged[t ^ 1] + staged[(5 * t) % 64] + before[t % 3]


def awkward_trace() -> Trace:
    """A trace full of what would end a script or open a tag."""
    made = trace(awkward, 1, 32, np.arange(32.0), np.zeros(32))
    return Trace('<awkward> & "co"', made.launches, {"idea": "</script> & <i>"})


def with_most_requests(made: Trace) -> Trace:
    """The trace of its main launch with as many requests as are ever kept."""
    launch = made.main
    requests = [launch.requests[i % len(launch.requests)] for i in range(MOST_REQUESTS)]
    return Trace("large", (replace(launch, requests=tuple(requests)),))


def of_all_kinds() -> list[Trace]:
    """Stages, textbook kernels, wide accesses, arrays that begin inside a sector."""
    numbers = np.arange(200, dtype=np.float32)
    return [
        *(trace_stage(name, TEACHING, stage_named(name).tiny_tile) for name in ("m03", "m11")),
        *(trace(c.kernel, c.grid, c.block, *c.arguments()) for c in textbook.CASES),
        trace(wide, 1, 64, np.arange(64.0), np.zeros(64)),
        trace(textbook.copy, 2, 64, numbers[3:103], numbers[101:]),
    ]
