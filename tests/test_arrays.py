"""Convolutions of any library's arrays: PyTorch's own samples, kinds and layouts."""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda.core import config
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

import convlab
from convlab import ConvProblem
from convlab.problems.arrays import extent
from convlab.problems.oracle import check_output, random_tensors
from convlab.running.engines import ENGINE_NAMES, unavailable

# Else JAX takes three quarters of a GPU's memory in each of several test processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

FUNCTIONS = {"conv1d": convlab.conv1d, "conv2d": convlab.conv2d, "conv3d": convlab.conv3d}
PROBLEM = ConvProblem(2, 4, 5, 6, 6, (3, 2), (1, 2), 1, groups=2)
SETTINGS: dict[str, Any] = {"stride": (1, 2), "padding": 1, "groups": 2}
HAS_GPU = unavailable("gpu") is None


def assert_within_bound(torch: Any, name: str, result: Any, tensors: list[Any], settings: Any):
    """Compare with PyTorch's sum in float64, by the bound of float32 sums."""
    doubles = [None if one is None else one.double() for one in tensors]
    function = getattr(torch.nn.functional, name)
    expected = function(*doubles, **settings)
    sizes = function(*(None if one is None else one.abs() for one in doubles), **settings)
    terms = math.prod(tensors[1].shape[1:]) + 1
    assert result.shape == expected.shape
    assert ((result - expected).abs() <= terms * 2**-24 * 1.001 * sizes).all()


@pytest.mark.filterwarnings("ignore:Using padding='same'", "ignore:Casting complex values")
@pytest.mark.parametrize("stage", ["auto", "m02"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pytorchs_own_samples(name, stage):
    torch = pytest.importorskip("torch")
    pytest.importorskip("array_api_compat")
    samples = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    (op,) = (op for op in samples.op_db if op.name == f"nn.functional.{name}")
    tried = 0
    for sample in op.sample_inputs("cpu", torch.float32):
        result = FUNCTIONS[name](sample.input, *sample.args, **sample.kwargs, stage=stage)
        assert type(result) is torch.Tensor
        tensors = [sample.input, *sample.args]
        assert_within_bound(torch, name, result, tensors, sample.kwargs)
        tried += 1
    for error in op.error_inputs("cpu"):
        sample = error.sample_input
        with pytest.raises((TypeError, ValueError), match=": "):
            FUNCTIONS[name](sample.input, *sample.args, **sample.kwargs, stage=stage)
        input, *others = (tensor.float() for tensor in (sample.input, *sample.args))
        try:  # wrong for more than its dtype?
            op(input, *others, **sample.kwargs)
        except RuntimeError:
            with pytest.raises(ValueError, match=r"must|needs"):
                FUNCTIONS[name](input, *others, **sample.kwargs, stage=stage)
        tried += 1
    assert tried >= 20


def is_misaligned(array: np.ndarray) -> bool:
    return bool(array.size and array.ctypes.data % 16)


def of_numba(array: np.ndarray) -> Any:
    if config.ENABLE_CUDASIM:
        return FakeCUDAArray(array)
    if is_misaligned(array):
        made = cuda.device_array(array.size + 1, array.dtype)[1:].reshape(array.shape)
    else:
        made = cuda.device_array(array.shape, array.dtype, array.strides)
    if array.size:
        made[:] = np.ascontiguousarray(array)
    return made


def of_torch(device: str, array: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU for PyTorch")
    tensor = torch.from_numpy(array)
    if is_misaligned(array):
        made = torch.empty(tensor.numel() + 1, device=device)[1:].view(tensor.shape)
    else:
        made = torch.empty_strided(tensor.shape, tensor.stride(), device=device)
    return made.copy_(tensor)


def of_cupy(array: np.ndarray) -> Any:
    cupy = pytest.importorskip("cupy")
    if is_misaligned(array):
        made = cupy.empty(array.size + 1, array.dtype)[1:].reshape(array.shape)
    else:
        room = cupy.empty(extent(array)[1] - extent(array)[0], np.int8)
        made = cupy.ndarray(array.shape, array.dtype, room.data, array.strides)
    made[...] = cupy.asarray(array)
    return made


def of_jax(device: str, array: np.ndarray) -> Any:
    jax = pytest.importorskip("jax")
    try:
        return jax.device_put(array, jax.devices(device)[0])
    except RuntimeError:
        pytest.skip(f"there is no {device} for JAX")


KINDS = {
    "NumPy": lambda array: array,
    "Numba": of_numba,
    "CuPy": of_cupy,
    "PyTorch, CPU": lambda array: of_torch("cpu", array),
    "PyTorch, GPU": lambda array: of_torch("cuda", array),
    "JAX, CPU": lambda array: of_jax("cpu", array),
    "JAX, GPU": lambda array: of_jax("gpu", array),
}


def misaligned(array: np.ndarray) -> np.ndarray:
    """One float32 behind where an allocation begins."""
    return np.concatenate([[np.float32(0)], array.ravel()])[1:].reshape(array.shape)


LAYOUTS = {
    "contiguous": np.ascontiguousarray,
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "channels-last": lambda array: np.moveaxis(
        np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1
    ),
    "misaligned": misaligned,
    "0-sized": lambda array: array[:0],
}


def host(array: Any) -> np.ndarray:
    for read in ("copy_to_host", "cpu", "get"):
        if hasattr(array, read):
            array = getattr(array, read)()
    return np.asarray(array)


def unusable(kind: str) -> str | None:
    if kind == "Numba":
        usable = HAS_GPU or config.ENABLE_CUDASIM
        return None if usable else "Numba device arrays need a GPU or NUMBA_ENABLE_CUDASIM=1"
    library = {"CuPy": "cupy", "PyTorch": "torch", "JAX": "jax"}.get(kind.split(",")[0], "numpy")
    return None if find_spec(library) else f"{library} is not installed"


def cells() -> list[Any]:
    """Kind, engine and layout; what this machine lacks is skipped once, not in every cell."""
    lacking = {kind: unusable(kind) for kind in KINDS}
    lacking |= {engine: unavailable(engine) for engine in ENGINE_NAMES}
    return [
        pytest.param(name, name, "", marks=pytest.mark.skip(reason), id=name)
        for name, reason in lacking.items()
        if reason is not None
    ] + [
        pytest.param(kind, engine, layout, id=f"{kind}-{engine}-{layout}")
        for kind, engine, layout in product(KINDS, ENGINE_NAMES, LAYOUTS)
        if lacking[kind] is None and lacking[engine] is None
    ]


@pytest.mark.parametrize(("kind", "engine", "layout"), cells())
def test_every_kind_on_every_engine_in_every_layout(kind, engine, layout):
    input, weight, bias = random_tensors(PROBLEM, 3)
    laid = LAYOUTS[layout](input)
    given = KINDS[kind](laid), KINDS[kind](weight), KINDS[kind](bias)
    result = convlab.conv2d(*given, **SETTINGS, engine=engine)
    assert type(result) is type(given[0])
    assert getattr(result, "device", None) == getattr(given[0], "device", None)
    np.testing.assert_array_equal(host(given[0]), laid)
    if not laid.size:
        assert tuple(result.shape) == (0, *PROBLEM.output_shape[1:])
        return
    assert check_output(PROBLEM, host(result), input, weight, bias).ok
    if not kind.startswith("JAX"):
        out = KINDS[kind](LAYOUTS[layout](np.zeros(PROBLEM.output_shape, np.float32)))
        assert convlab.conv2d(*given, **SETTINGS, engine=engine, out=out) is out
        assert check_output(PROBLEM, host(out), input, weight, bias).ok


def test_a_tensor_that_requires_a_gradient_says_what_to_do():
    torch = pytest.importorskip("torch")
    pytest.importorskip("array_api_compat")
    layer = torch.nn.Conv2d(2, 3, 3, padding=1)
    images = torch.randn(1, 2, 4, 4)
    with pytest.raises(TypeError, match=r"weight requires a gradient: .* give weight.detach\(\)"):
        convlab.conv2d(images, layer.weight, layer.bias, padding=1)
    with torch.no_grad():
        result = convlab.conv2d(images, layer.weight, layer.bias, padding=1)
        torch.testing.assert_close(result, layer(images))


def test_what_no_library_holds_is_refused_by_name():
    torch = pytest.importorskip("torch")
    pytest.importorskip("array_api_compat")
    images, filters = torch.ones(1, 2, 4, 4), torch.ones(3, 2, 3, 3)
    for input, weight, what in (
        (images, filters.numpy(), "weight is of NumPy on the host: it must be of input's PyTorch"),
        (images.half(), filters, "input has dtype float16: it must be float32"),
        (images.to("meta"), filters, "input is on meta: it must be on 'cpu' or 'cuda'"),
        (images.to_sparse(), filters, "input has layout torch.sparse_coo: it must be"),
    ):
        with pytest.raises(TypeError, match=what):
            convlab.conv2d(input, weight)


def test_a_tracer_of_jax_is_refused():
    jax = pytest.importorskip("jax")
    pytest.importorskip("array_api_compat")
    images, filters = jax.numpy.ones((1, 2, 4, 4)), jax.numpy.ones((3, 2, 3, 3))
    with pytest.raises(TypeError, match=r"is a tracer: .* outside of jax.jit"):
        jax.jit(convlab.conv2d)(images, filters)
    with pytest.raises(TypeError, match="out is a JAX array, which nothing can write to"):
        convlab.conv2d(images, filters, out=jax.numpy.ones((1, 3, 2, 2)))
