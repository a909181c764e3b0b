"""Baselines without a GPU: the C++ baseline for real; cuDNN, CUTLASS, CuPy and cuBLAS by stand-ins
that compute on the host what they were told to, so that a wrong descriptor is a wrong answer.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from bench_fakes import Fakes
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import problems

from convlab.ladder import LADDER
from convlab.measuring import baselines, gpu_backend
from convlab.measuring.baselines import (
    System,
    Unsupported,
    compiled,
    cudnn,
    cupy_im2col,
    pytorch,
)
from convlab.measuring.bounds import Checked
from convlab.measuring.harness import measure
from convlab.measuring.systems import BASELINES, baseline_named
from convlab.problems.oracle import Oracle, random_tensors
from convlab.problems.problem import ConvProblem
from convlab.problems.reference import reference
from convlab.problems.workloads import TEACHING
from convlab.support.installing import how_to_add

pytestmark = pytest.mark.same_in_cudasim

FOLDER = Path(baselines.__file__).parent
LOPSIDED = ConvProblem(1, 3, 6, 7, 2, (4, 2), padding="same")
SOME = [TEACHING, LOPSIDED, ConvProblem(3, 4, 5, 9, 8, (3, 5), (1, 2), (2, 0), (1, 2))]
TENSORS = random_tensors(TEACHING, 0, bias=False)[:2]
some_problems = pytest.mark.parametrize("problem", SOME, ids=str)


def checked(baseline, problem, stream=None):
    """Prepare, poison, run and check; and poison again, so that the poison is seen to work."""
    input, weight, _ = random_tensors(problem, 0, bias=False, integers=True)
    prepared = baseline.prepare(problem, input, weight)
    try:
        prepared.poison()
        assert np.isnan(prepared.output()).all()
        prepared.run(stream)
        result = Oracle(problem, input, weight).check(prepared.output())
        prepared.poison()
        assert np.isnan(prepared.output()).all()
    finally:
        prepared.close()
        prepared.close()  # a second time does no harm
    return result


# The list


def test_names_are_keys_and_the_documentation_has_a_row_for_each():
    names = [baseline.name for baseline in BASELINES]
    assert len({one.name for one in (*BASELINES, *LADDER)}) == len(BASELINES) + len(LADDER)
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in names)
    assert [baseline_named(name) for name in names] == list(BASELINES)
    for baseline in BASELINES:
        assert baseline.on_gpu == (baseline.name != "cpp_seven_loops")
        assert baseline.precision == ("tf32" if "tf32" in baseline.name else "fp32")
    page = (Path(__file__).parents[1] / "docs/baselines.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(names)
    with pytest.raises(ValueError, match=r"baseline is 'cudn': .*torch_fp32, .*cpp"):
        baseline_named("cudn")


def test_importing_baselines_imports_none_of_their_libraries():
    code = (
        "import sys\n"
        "from convlab.measuring import systems\n"
        "print(sorted({'torch', 'cupy', 'unfoldNd', 'cutlass_library'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# Why one is absent


@pytest.fixture
def packages(monkeypatch):
    """Make these importable: names to modules that stand in for them, or what importing raises."""
    there: dict[str, Any] = {}

    def imported(name):
        if isinstance(there[name], Exception):
            raise there[name]
        return there[name]

    for module in (baselines, compiled):
        monkeypatch.setattr(module, "find_spec", there.get)
    monkeypatch.setattr(baselines, "import_module", imported)
    return there


@pytest.mark.parametrize(
    ("name", "why", "what"),
    [
        ("torch", pytorch.why_no_torch, "PyTorch"),
        ("cupy", cupy_im2col.why_no_cupy, "CuPy"),
    ],
)
def test_a_library_that_is_absent_broken_or_blind(packages, name, why, what):
    why = why.__wrapped__  # not once a process
    assert why().startswith(f"{what} is not installed: run {how_to_add(name)}")
    packages[name] = OSError("libfoo.so: cannot open")
    assert why() == f"{what} is installed but cannot be imported (OSError: libfoo.so: cannot open)"
    packages[name] = Mock(**{"cuda.is_available.side_effect": [False, True]})
    assert why() == f"{what} is here, but finds no NVIDIA GPU that it can use"
    assert why() is None


def test_without_a_gpu_or_a_compiler_that_is_the_reason(monkeypatch):
    for module in (cudnn, compiled):
        monkeypatch.setattr(module, "unavailable", lambda name: "no GPU")
    monkeypatch.setenv("PATH", "")
    said = {cudnn.BASELINES: "no GPU", compiled.OF_CUTLASS: "no GPU"}
    said[compiled.SEVEN_LOOPS,] = "there is no g++ on the PATH to build it with"
    for found, reason in said.items():
        assert {baseline.why_absent() for baseline in found} == {reason}


def test_cutlass_says_what_is_missing(monkeypatch, packages, tmp_path):
    monkeypatch.delenv("CUTLASS_PATH", raising=False)
    monkeypatch.setattr(compiled, "unavailable", lambda name: None)
    monkeypatch.setattr(compiled, "_capability", lambda: (7, 5))
    assert "capability 8.0" in compiled.why_no_cutlass()
    monkeypatch.setattr(compiled, "_capability", lambda: (9, 0))
    monkeypatch.setattr(compiled, "nvcc", lambda: None)
    assert compiled.why_no_cutlass().startswith("there is no nvcc")
    monkeypatch.setattr(compiled, "nvcc", lambda: "nvcc")
    assert compiled.why_no_cutlass().startswith("its headers are not here: run ")

    include = tmp_path / "source/include"
    (include / "cutlass").mkdir(parents=True)
    (include / "cutlass/cutlass.h").touch()
    packages["cutlass_library"] = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    assert compiled.why_no_cutlass() is None
    assert compiled.headers() == include
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))  # given, so the wheel is not looked at
    assert compiled.headers() is None
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "source"))
    assert compiled.headers() == include


def test_cudnn_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(cudnn, "unavailable", lambda name: None)
    monkeypatch.setattr(cudnn, "library", cudnn.library.__wrapped__)
    monkeypatch.setattr(cudnn, "_load_cublas", lambda: None)
    monkeypatch.setattr(cudnn, "SONAMES", ("libno-such-cudnn.so.9",))
    assert cudnn.why_absent() == f"no cuDNN was found: run {how_to_add('nvidia-cudnn-cu13')}"
    package = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(cudnn, "find_spec", lambda name: package)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libno-such-cudnn.so.9").write_text("no library")
    assert re.match(r".*/lib/libno-such-cudnn.so.9 does not load: ", cudnn.why_absent())


# Building


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that writes down its calls, and copies its source for a library."""
    monkeypatch.delenv("CONVLAB_CACHE", raising=False)  # where somebody's own cache is
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log, script = tmp_path / "log", tmp_path / "compiler"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo compiler 1.0 && exit\necho "$@" >> {log}\n'
        'while [ "$1" != -o ]; do shift; done\n'
        'if grep -qx wrong "$3"; then\n'
        'echo "in file:" >&2; echo "x.cu(3): error: wrong" >&2; exit 1\nfi\n'
        'cp "$3" "$2"\n'
    )
    script.chmod(0o755)
    log.touch()
    return SimpleNamespace(path=str(script), calls=lambda: log.read_text().splitlines())


def test_a_library_is_built_once_and_anew_when_something_changed(compiler, tmp_path):
    source, header = tmp_path / "x.cu", tmp_path / "version.h"
    source.write_text("right")
    header.write_text("1")
    library = compiled.built(source, compiler.path, ["-O3"], [header])
    assert library.read_text() == "right"
    assert library.parent == tmp_path / "cache/convlab"
    assert compiled.built(source, compiler.path, ["-O3"], [header]) == library
    assert len(compiler.calls()) == 1
    compiled.built(source, compiler.path, ["-O2"], [header])
    for file in (source, header):
        file.write_text("changed")
        compiled.built(source, compiler.path, ["-O3"], [header])
    assert len(compiler.calls()) == len([*library.parent.iterdir()]) == 4


def test_what_cannot_be_built_says_why_and_leaves_nothing(compiler, tmp_path):
    source = tmp_path / "x.cu"
    source.write_text("wrong")
    with pytest.raises(Unsupported, match=r"x.cu: x.cu\(3\): error: wrong$"):
        compiled.built(source, compiler.path, [])
    assert list((tmp_path / "cache/convlab").iterdir()) == []
    (tmp_path / "cache/convlab").rmdir()
    (tmp_path / "cache/convlab").write_text("a file where the folder should be")
    source.write_text("right")
    with pytest.raises(Unsupported, match=r"could not be built in .*cache/convlab"):
        compiled.built(source, compiler.path, [])


OURS = {
    "N": "N_i", "H": "H_i", "W": "W_i", "C": "C_i", "K": "C_o", "R": "H_f", "S": "W_f",
    "P": "H_o", "Q": "W_o", "pad_h": "p_h", "pad_w": "p_w", "stride_h": "s_h", "stride_w": "s_w",
    "dilation_h": "d_h", "dilation_w": "d_w",
}  # fmt: skip


@pytest.mark.parametrize("which", ["LOOPS", "CUTLASS"])
def test_both_sides_agree_on_the_order_of_sizes(which):
    text = getattr(compiled, which).read_text(encoding="utf-8")
    (fields,) = re.findall(r"struct Sizes \{.*?\bint ([^;]*);", text, re.DOTALL)
    names = map(str.strip, fields.split(","))
    assert getattr(compiled, f"{which}_SIZES") == " ".join(OURS.get(name, name) for name in names)
    assert [*compiled.sizes_of(LOPSIDED, "p_w H_f C_i")] == [0, 4, 3]


# Rehearsals


@pytest.mark.parametrize(
    ("absent", "error", "done"),
    [
        (None, None, "run output algorithm close"),
        ("it is not installed", None, ""),
        (None, Unsupported("not this"), "run close"),  # that is no mishap
        (None, RuntimeError("broken"), "run close"),
    ],
)
def test_a_rehearsal_does_what_a_row_does_and_frees_everything(absent, error, done):
    prepared = Mock()
    prepared.run.side_effect = error
    type(prepared).algorithm = property(lambda self: self("algorithm"))
    prepare = Mock(return_value=prepared)
    broken = pytest.raises(RuntimeError) if type(error) is RuntimeError else nullcontext()
    with broken:
        System("a", "b", "c", lambda: absent, prepare).make_ready(TEACHING)
    assert [name or of[0] for name, of, _ in prepared.mock_calls] == done.split()
    for problem, input, weight in (call.args for call in prepare.call_args_list):
        assert (input.shape, weight.shape) == (problem.input_shape, problem.weight_shape)


# The C++ baseline


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_tests(tmp_path_factory):
    """Tests build into a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@given(problem=problems(max_macs=5000), seed=st.integers(0, 2**16), integers=st.booleans())
@settings(max_examples=50)
def test_the_baseline_on_any_problem(problem, seed, integers):
    input, weight, _ = random_tensors(problem, seed, bias=False, integers=integers)
    prepared = compiled.SEVEN_LOOPS.prepare(problem, input, weight)
    prepared.run(None)
    result = Oracle(problem, input, weight).check(prepared.output())
    assert result.ok, str(result)
    assert re.match(r"g\+\+ .*\d+\.\d+.* -O3, one thread$", prepared.algorithm)


# The GPU's memory, on the host


class HostArray:
    def __init__(self, array):
        self.array, self.size = array, array.size
        self.__cuda_array_interface__ = {"data": (array.ctypes.data, False)}


@pytest.fixture
def gpu(monkeypatch):
    """An engine whose device memory is the host's."""
    from cuda.bindings import driver

    def memset(address, value, count):
        at(address, (count,)).view(np.uint32)[:] = value
        return (driver.CUresult.CUDA_SUCCESS,)

    made = SimpleNamespace(
        device="a GPU", free=2**40, free_bytes=lambda: made.free, synchronize=lambda: None,
        empty=lambda shape, dtype="float32": HostArray(np.zeros(shape, dtype)),
        to_device=lambda host, dtype="float32": HostArray(np.array(host, dtype, order="C")),
        to_host=lambda array, dtype="float32": array.array.copy(),
    )  # fmt: skip
    monkeypatch.setattr(baselines, "choose", lambda name: made)
    monkeypatch.setattr(driver, "cuMemsetD32", memset)
    return made


def at(address, shape):
    """The float32 numbers that lie there."""
    count = int(np.prod(shape))
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address)).reshape(shape)


# cuDNN


class FakeCudnn:
    """cuDNN's functions as its API reference has them, on the host. Descriptors hold what they
    were set to; ``made`` are those not destroyed yet."""

    def __init__(self, workspace=20, refuses=0, at_run=0):
        self.made: dict[int, list[int]] = {}
        self.workspace, self.refuses, self.at_run = workspace, refuses, at_run
        self.asked: list[int] = []
        self.streams: list[int | None] = []

    def __getattr__(self, name):
        if name.startswith("cudnnCreate"):
            return self._create
        if name.startswith("cudnnDestroy"):
            return lambda made: self.made.pop(made.value) and 0
        if re.fullmatch(r"cudnnSet(\w+[24]dDescriptor|ConvolutionMathType)", name):
            return self._set
        raise AttributeError(name)

    def _create(self, reference):
        reference._obj.value = number = len(self.made) + 1001
        self.made[number] = []
        return 0

    def _set(self, made, *numbers):
        self.made[made.value] += numbers  # the math type comes last
        return 0

    def cudnnSetStream(self, handle, stream):
        self.streams.append(stream.value)
        return 0

    def cudnnGetErrorString(self, status):
        return f"CUDNN_STATUS_{status}".encode()

    def cudnnGetLastErrorString(self, text, size):
        text.value = b"no engine\nfits"

    def _problem(self, x, w, convolution, y):
        x, w, c, y = (self.made[made.value] for made in (x, w, convolution, y))
        nchw, float32, cross_correlation, fma = 0, 0, 1, 3
        assert x[:2] == y[:2] == [nchw, float32]
        assert w[:2] == [float32, nchw]  # a filter's are the other way round
        assert c[6:] == [cross_correlation, float32, fma]
        pad, stride, dilation = c[:2], c[2:4], c[4:6]
        problem = ConvProblem(*x[2:], w[2], w[4:], stride, pad, dilation)
        assert tuple(y[2:]) == problem.output_shape
        return problem

    def cudnnGetConvolutionForwardWorkspaceSize(self, handle, x, w, c, y, algorithm, size):
        self._problem(x, w, c, y)
        self.asked.append(algorithm)
        size._obj.value = self.workspace
        return self.refuses

    def cudnnConvolutionForward(
        self, handle, alpha, xd, input, wd, weight, c, algorithm, space, size, beta, yd, output
    ):
        problem = self._problem(xd, wd, c, yd)
        assert (alpha._obj.value, beta._obj.value) == (1, 0)
        self.asked.append(algorithm)
        self.given_workspace = (space, size)
        x, w = at(input, problem.input_shape), at(weight, problem.weight_shape)
        at(output, problem.output_shape)[:] = reference(problem, x, w)
        return self.at_run


@pytest.fixture
def fake_cudnn(monkeypatch, gpu):
    def install(**settings):
        fake = FakeCudnn(**settings)
        monkeypatch.setattr(cudnn, "library", lambda: fake)
        return fake

    return install


@some_problems
@pytest.mark.parametrize("baseline", cudnn.BASELINES, ids=lambda baseline: baseline.name)
def test_cudnn_is_told_the_problem_and_the_algorithm(fake_cudnn, baseline, problem):
    fake = fake_cudnn()
    if problem is LOPSIDED:
        with pytest.raises(Unsupported, match="cuDNN pads both ends of an axis alike"):
            checked(baseline, problem)
    else:
        assert checked(baseline, problem, stream=77).ok
        assert set(fake.asked) == {cudnn.BASELINES.index(baseline)}
        assert fake.streams[-1] == 77
    assert not fake.made  # everything was given back


def test_cudnn_gets_the_workspace_it_asks_for(fake_cudnn):
    for wanted in (0, 4097):
        fake = fake_cudnn(workspace=wanted)
        prepared = cudnn.BASELINES[0].prepare(TEACHING, *TENSORS)
        address, size = fake.given_workspace
        assert prepared.workspace_bytes == size == wanted
        assert (address is None) == (wanted == 0)
        prepared.close()
        with pytest.raises(RuntimeError, match="cudnn_implicit_gemm has been closed"):
            prepared.run(None)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"refuses": 3000}, Unsupported, r"WorkspaceSize: CUDNN_STATUS_3000 \(no engine fits\)"),
        ({"refuses": 9}, Unsupported, "CUDNN_STATUS_9"),
        ({"refuses": 2000}, RuntimeError, "CUDNN_STATUS_2000"),
        ({"at_run": 3007}, Unsupported, "cudnnConvolutionForward: CUDNN_STATUS_3007"),
        ({"at_run": 5000}, RuntimeError, "cudnnConvolutionForward: CUDNN_STATUS_5000"),
        ({"workspace": 2**41}, MemoryError, "workspace .* needs 2048.0 GiB, but 1024.0 GiB are"),
    ],
)
def test_what_cudnn_refuses_is_said_and_nothing_is_kept(fake_cudnn, settings, error, says):
    fake = fake_cudnn(**settings)
    with pytest.raises(error, match=says) as caught:
        cudnn.BASELINES[0].prepare(TEACHING, *TENSORS)
    assert caught.type is error
    assert not fake.made


# CUTLASS


class FakeCutlass:
    """The library that cutlass_conv.cu makes, with three tiles: two that can, one that cannot."""

    def __init__(self):
        self.ran: list[tuple[int, Any]] = []

    def convlab_choices(self):
        return 3

    def convlab_name(self, tile):
        return f"tile {tile}".encode()

    def convlab_can_run(self, tile, sizes):
        filter_is_large = sizes[5] > 32
        return b"Error Not Supported" if tile == 0 or filter_is_large else None

    def convlab_run(self, tile, sizes, input, weight, output, stream):
        self.ran.append((tile, stream))
        (N, H, W, C, K, R, S, P, Q, *rest) = sizes
        pad, stride, dilation = rest[:2], rest[2:4], rest[4:6]
        x = at(input, (N, H, W, C)).transpose(0, 3, 1, 2)
        w = at(weight, (K, R, S, C)).transpose(0, 3, 1, 2)
        ends = [
            (o - 1) * s + (f - 1) * d + 1 - size - p
            for o, s, f, d, size, p in zip(
                (P, Q), stride, (R, S), dilation, (H, W), pad, strict=True
            )
        ]  # what follows the input, less than nothing where the last window ends before it does
        padding = [(p, max(0, end)) for p, end in zip(pad, ends, strict=True)]
        problem = ConvProblem(N, C, H, W, K, (R, S), stride, padding, dilation)
        at(output, (N, P, Q, K))[:] = reference(problem, x, w).transpose(0, 2, 3, 1)


@pytest.fixture
def fake_cutlass(monkeypatch, gpu):
    def measure(start, **more):
        start(SimpleNamespace(handle=0))
        return SimpleNamespace(median_ms={1: 2.0, 2: 1.0}[fake.ran[-1][0]])

    fake = FakeCutlass()
    monkeypatch.setattr(compiled, "library", lambda variant: fake)
    monkeypatch.setattr(compiled.timer, "measure", measure)
    return fake


@some_problems
@pytest.mark.parametrize("baseline", compiled.OF_CUTLASS, ids=lambda baseline: baseline.name)
def test_cutlass_is_told_the_problem_and_gets_channels_last(fake_cutlass, baseline, problem):
    assert checked(baseline, problem, stream=77).ok
    assert fake_cutlass.ran == [(1, 0), (2, 0), (2, 77)]  # both were tried, the faster one kept


def test_cutlass_names_its_tile_and_what_it_cannot_do(fake_cutlass):
    assert compiled.OF_CUTLASS[1].prepare(TEACHING, *TENSORS).algorithm == "tile 2"
    large = ConvProblem(1, 1, 40, 40, 1, 33)
    input, weight, _ = random_tensors(large, 0, bias=False)
    with pytest.raises(Unsupported, match="each of its 3 kernels: Error Not Supported"):
        compiled.OF_CUTLASS[1].prepare(large, input, weight)


def test_cutlass_s_variants_are_built_side_by_side(monkeypatch):
    barrier = Barrier(len(compiled.VARIANTS), timeout=20)
    monkeypatch.setattr(compiled, "library", lambda variant: (variant.name, barrier.wait())[0])
    started = [baseline.compile(TEACHING) for baseline in compiled.OF_CUTLASS]
    assert [one.result() for one in started] == [baseline.name for baseline in compiled.OF_CUTLASS]


def test_cutlass_is_built_for_the_gpu_that_is_here(monkeypatch, compiler, tmp_path):
    monkeypatch.setattr(compiled, "nvcc", lambda: compiler.path)
    monkeypatch.setattr(compiled, "headers", lambda: tmp_path)
    (tmp_path / "cutlass").mkdir()
    (tmp_path / "cutlass/version.h").write_text("4.2")
    monkeypatch.setattr(compiled, "_capability", lambda: (9, 0))
    for variant in compiled.VARIANTS:
        with pytest.raises(OSError, match=r"cutlass_conv-.*\.so"):  # the copy is no library
            compiled.library(variant)
    chosen = (("kAnalytic", 0), ("kOptimized", 0), ("kOptimized", 1))
    for call, (iterator, tf32) in zip(compiler.calls(), chosen, strict=True):
        options = f"-DCONVLAB_ITERATOR={iterator} -DCONVLAB_TF32={tf32}"
        assert f"-arch=sm_90 -I{tmp_path} {options}" in call


# CuPy and cuBLAS


@pytest.fixture
def fake_cupy(monkeypatch, gpu):
    """NumPy under CuPy's name: what CuPy has of it is named alike."""
    streams = []

    def from_external(stream):
        return nullcontext(streams.append(stream.__cuda_stream__()))

    module = ModuleType("cupy")
    module.__getattr__ = lambda name: getattr(np, name)
    module.asarray = lambda of_numba: of_numba.array
    module.cuda = SimpleNamespace(Stream=SimpleNamespace(from_external=from_external))
    module.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    monkeypatch.setitem(sys.modules, "cupy", module)
    return streams


@some_problems
def test_cupy_and_cpp_give_the_same(fake_cupy, problem):
    assert checked(compiled.SEVEN_LOOPS, problem).ok
    assert checked(cupy_im2col.BY_CUPY, problem, stream=77).ok
    assert fake_cupy == [(0, 0), (0, 77)]


def test_cupy_needs_the_memory_that_it_says(fake_cupy, gpu):
    needs = cupy_im2col.BY_CUPY.prepare(TEACHING, *TENSORS).workspace_bytes
    p = TEACHING
    assert needs == 4 * (p.K * p.N + p.N_i * p.C_i * (p.H_i + 2) * (p.W_i + 2))
    gpu.free = needs - 1
    with pytest.raises(MemoryError, match="its im2col matrix needs"):
        cupy_im2col.BY_CUPY.prepare(TEACHING, *TENSORS)


@pytest.mark.parametrize("name", ["cudnn_implicit_gemm", "cutlass_analytic", "cupy_im2col"])
def test_too_little_memory_is_a_row_of_that_state(fake_cudnn, fake_cutlass, fake_cupy, gpu, name):
    fake_cudnn()
    baseline = replace(baseline_named(name), why_absent=lambda: None)
    gpu.free = 100
    outcome = measure(baseline, TEACHING, TENSORS, Fakes(), lambda output: Checked("fp32", 0.0))
    assert outcome.state == "out of memory"
    assert "but 100 bytes are all there is on a GPU" in outcome.reason
    assert outcome.healthy


class FakeCublas:
    wrong = 0.0

    def __getattr__(self, name):
        return lambda *arguments: 0

    def cublasSgemm_v2(self, handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        assert (ta, tb, alpha._obj.value, beta._obj.value) == (0, 0, 1, 0)
        # Column-major: what lies there row by row is the transpose.
        left, right = at(a.value, (k, lda)).T, at(b.value, (n, ldb)).T
        at(c.value, (n, ldc)).T[:] = left @ right + self.wrong
        return 0


def test_the_ceilings_are_rates(monkeypatch, gpu):
    from cuda.bindings import driver

    def measure(start, as_graph=True):
        start(SimpleNamespace(handle=0))
        return SimpleNamespace(median_ms=2.0 if as_graph else 0.5)

    def copy(target, source, nbytes, stream):
        assert nbytes == 4000
        return (driver.CUresult.CUDA_SUCCESS,)

    cublas = FakeCublas()
    monkeypatch.setattr(gpu_backend, "choose", lambda name: gpu)
    monkeypatch.setattr(gpu_backend, "_cublas", lambda: cublas)
    monkeypatch.setattr(driver, "cuMemcpyDtoDAsync", copy)
    monkeypatch.setattr(gpu_backend.timer, "measure", measure)
    assert gpu_backend.sgemm_tflops(100) == pytest.approx(2 * 100**3 / 2e-3 / 1e12)
    assert gpu_backend.copy_bytes_per_second(4000) == pytest.approx(8000 / 0.5e-3)
    for cublas.wrong in (1.0, np.nan):
        with pytest.raises(RuntimeError, match="cuBLAS's product is wrong at"):
            gpu_backend.sgemm_tflops(100)
