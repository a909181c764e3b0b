"""Results as a GPU would give them, made up: times that follow from how fast each system is here
said to be, on all twelve layers."""

from __future__ import annotations

from bench_fakes import ENVIRONMENT

from convlab.measuring.baselines import System
from convlab.measuring.cases import BenchCase, row_of
from convlab.measuring.harness import MeasuringOutcome
from convlab.measuring.results import Results, tensor_bytes
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import STAGE_FAMILY
from convlab.problems.workloads import LAYER_NAMES, paper_layer

H200_LIKE = Machine(
    "a GPU that was made up", 66.9e12, 535e12, 4.9e12, 60 * 2**20, 132, 51.2, 4.2e12
)
# Name, kind, family, method, precision, its speed in TFLOP/s, and MiB of workspace.
SYSTEMS = (
    ("m01_direct", "stage", STAGE_FAMILY, "direct", "fp32", 4.1, 0),
    ("i04_im2col_blas", "stage", STAGE_FAMILY, "gemm", "fp32", 19.0, 900),
    ("m05_microkernel", "stage", STAGE_FAMILY, "gemm", "fp32", 13.0, 0),
    ("m08_double_buffer", "stage", STAGE_FAMILY, "gemm", "fp32", 25.0, 0),
    ("m11_warp_tiling", "stage", STAGE_FAMILY, "gemm", "fp32", 30.0, 250),
    ("torch_fp32", "baseline", "pytorch", "any", "fp32", 38.0, None),
    ("torch_tf32", "baseline", "pytorch", "any", "tf32", 100.0, None),
    ("cudnn_implicit_precomp_gemm", "baseline", "cudnn", "gemm", "fp32", 36.0, 1),
    ("cudnn_gemm", "baseline", "cudnn", "gemm", "fp32", 20.0, 1500),
    ("cudnn_fft", "baseline", "cudnn", "fft", "fp32", 60.0, 4000),
)


def system(name: str, kind: str, family: str, method: str, precision: str) -> System:
    words, nothing = f"{name} in words", lambda *_: None
    return System(name, words, family, nothing, nothing, kind, precision, method)


def sample(
    *, batch: int = 128, identity: str = "one", slower: float = 1.0, layers=LAYER_NAMES
) -> Results:
    """A whole run; one baseline is absent everywhere and one is not supported on large strides."""
    results = Results(H200_LIKE, dict(ENVIRONMENT), identity, commands=["convlab bench"])
    for name in layers:
        problem = paper_layer(name, batch)
        for number, (*about, speed, mib) in enumerate(SYSTEMS):
            chosen = system(*about)
            wobble = 1 + 0.25 * ((int(name[4:]) * 7 + number * 3) % 5 - 2) / 2
            time_ms = max(problem.flops / speed / wobble, 0.25 * problem.least_bytes) / 1e9
            smaller = 2**20 // 2 ** (number % 3)
            outcome = MeasuringOutcome(
                "measured", None, slower * time_ms, 0.4 + number / 4, 20, "fp32", 0.02,
                None if mib is None else mib * smaller,
                tensor_bytes(problem) + (mib or 100) * smaller + 2**21,
            )  # fmt: skip
            if chosen.method == "fft" and problem.s_h > 1:
                outcome = MeasuringOutcome().without_number("unsupported", "strides are not for it")
            case = BenchCase(name, problem, chosen)
            results.add(row_of(case, outcome, H200_LIKE, identity, 1.0), chosen)
        absent = system("cupy_fp32", "baseline", "cupy", "any", "fp32")
        outcome = MeasuringOutcome().without_number("absent", "CuPy is not installed")
        results.add(
            row_of(BenchCase(name, problem, absent), outcome, H200_LIKE, identity, 0.0), absent
        )
    return results
