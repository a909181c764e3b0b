"""Every baseline that is here, on a real GPU, on a stream and replayed from a graph."""

from __future__ import annotations

import numpy as np
import pytest

from convlab.measuring.baselines import Unsupported
from convlab.measuring.gpu_backend import copy_bytes_per_second, sgemm_tflops
from convlab.measuring.systems import BASELINES
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.workloads import paper_layer
from convlab.running.engines import unavailable

if (reason := unavailable("gpu")) is not None:
    pytest.skip(f"needs a GPU: {reason}", allow_module_level=True)

pytestmark = pytest.mark.gpu

HERE = [baseline for baseline in BASELINES if baseline.why_absent() is None]
PROBLEMS = [
    ConvProblem(2, 5, 33, 29, 7, (3, 5), stride=2, padding=1, dilation=2),
    ConvProblem(2, 8, 17, 15, 12, 4, padding="same"),
    paper_layer("conv5", 3),
    paper_layer("conv12", 3),
]
# Relative to the whole output's norm: TF32 rounds factors to 2**-11, Winograd's transforms amplify.
ALLOWED = {"tf32": 1e-3, "winograd": 5e-3}


def error(oracle, output):
    return float(np.linalg.norm(output - oracle.expected) / np.linalg.norm(oracle.expected))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("baseline", HERE, ids=lambda baseline: baseline.name)
def test_a_baseline_is_right_on_a_stream_and_replayed(baseline, problem):
    from cuda.bindings import driver
    from numba import cuda

    from convlab.measuring.timer import captured

    input, weight, _ = random_tensors(problem, 0, bias=False)
    oracle = Oracle(problem, input, weight)
    allowed = ALLOWED.get(baseline.precision, ALLOWED.get(baseline.method, 1e-5))
    try:
        prepared = baseline.prepare(problem, input, weight)
    except Unsupported:
        if baseline.family != "cudnn":  # the others take all of these
            raise
        return
    stream = cuda.stream()
    try:
        for chosen in (None, int(stream.handle)):
            prepared.poison()
            prepared.run(chosen)
            assert error(oracle, prepared.output()) <= allowed
        if prepared.capturable:
            with captured(lambda own: prepared.run(int(own.handle)), stream) as graph:
                prepared.poison()
                driver.cuGraphLaunch(graph, int(stream.handle))
                assert error(oracle, prepared.output()) <= allowed
        assert prepared.workspace_bytes is not None
        assert prepared.algorithm
    finally:
        prepared.close()


def test_the_ceilings_are_those_of_a_gpu():
    assert sgemm_tflops(2048) > 1
    assert copy_bytes_per_second(2**26) > 1e11
