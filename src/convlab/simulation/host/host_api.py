"""The host's side of ``numba.cuda``, without a GPU.

Most of it is Numba's own simulator. This module adds what that lacks, so that programs need no
change: ``vectorize``, ``guvectorize`` and ``reduce`` as kernels, options of ``jit``, facts about
the device, names such as ``threadIdx`` to import. Its arrays are in ``device_arrays``.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Never
from unittest.mock import patch

import numba
import numpy as np
from numba.core import errors as core_errors
from numba.cuda import cache_hints, cg, intrinsics, libdevice, stubs, vectorizers
from numba.cuda import simulator as numbas
from numba.cuda.core import config, errors
from numba.cuda.cudadrv.error import CudaSupportError, NvrtcError
from numba.cuda.errors import KernelRuntimeError
from numba.cuda.kernels.reduction import Reduce
from numba.cuda.memory_management import rtsys
from numba.cuda.misc.special import literal_unroll
from numba.cuda.simulator.args import In, InOut, Out
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray
from numba.cuda.simulator.cudadrv.devices import FakeCUDAContext, FakeCUDADevice
from numba.cuda.simulator.kernel import FakeCUDAKernel
from numba.cuda.typing.templates import Signature

from convlab.simulation.host.device_arrays import (
    Copies,
    UnifiedArray,
    as_cuda_array,
    is_cuda_array,
)
from convlab.simulation.host.not_simulated import (
    CLASSES,
    FUNCTIONS,
    OF_A_CONTEXT,
    OF_DEVICEARRAY,
    RefusedName,
    classes,
    functions,
    refused_value,
)
from convlab.simulation.host.stream_order import DEFAULT
from convlab.simulation.host.streams import Event, Stream, Streams
from convlab.simulation.language.compilations import keep_declared
from convlab.simulation.language.numbas_types import check_kernel, load_compiler
from convlab.simulation.language.python_body import Unknown
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import Declared, declared
from convlab.simulation.memory.unwritten_arrays import UnwrittenArrays
from convlab.support.numba_successor import only_successor, packages_of_cuda
from convlab.support.values import shown

# The names that are Numba's simulator's own.
_NUMBAS = (
    *("runtime", "close", "list_devices", "gpus"),
    *("current_context", "require_context", "defer_cleanup", "is_float16_supported"),
)
# Facts that a program may read of the device; few SMs, because programs start blocks for each.
_DEVICE: dict[str, object] = {
    "name": "convlab's strict simulator",
    "id": 0,
    "compute_capability": (9, 0),
    **{"supports_bfloat16": True, "supports_float16": True, "supports_fp8": False},
    **dict.fromkeys(("PCI_DOMAIN_ID", "PCI_BUS_ID", "PCI_DEVICE_ID"), 0),
    **dict.fromkeys(("KERNEL_EXEC_TIMEOUT", "TCC_DRIVER", "INTEGRATED", "COMPUTE_MODE"), 0),
    "SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": 2,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 32,
    "WARP_SIZE": 32,
    "MULTIPROCESSOR_COUNT": 4,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_THREADS_PER_MULTI_PROCESSOR": 2048,
    "MAX_SHARED_MEMORY_PER_BLOCK": 48 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "MAX_REGISTERS_PER_BLOCK": 65536,
    "TOTAL_CONSTANT_MEMORY": 64 << 10,
    **{"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "ASYNC_ENGINE_COUNT": 3},
    **dict.fromkeys(("CONCURRENT_KERNELS", "COOPERATIVE_LAUNCH", "MANAGED_MEMORY"), 1),
    **dict.fromkeys(("CAN_MAP_HOST_MEMORY", "UNIFIED_ADDRESSING"), 1),
    **{"MAX_BLOCK_DIM_X": 1024, "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64},
    **{"MAX_GRID_DIM_X": 2**31 - 1, "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535},
}
_HINTS = {"In": In, "Out": Out, "InOut": InOut}
_MEMORY = 16 << 30  # bytes of the device
MemoryInfo = namedtuple("MemoryInfo", ["free", "total"])
_Allocations = namedtuple("_Allocations", ["alloc", "free", "mi_alloc", "mi_free"])
_MLIR = "numba_cuda_mlir"  # the compiler that follows numba-cuda; it has the same ``cuda``


class _Stub:
    """A placeholder for a function of ``numba.cuda.bf16``, which Numba's simulator lacks."""

    def __init__(self, name: str) -> None:
        self.__name__, self.__module__ = name, "numba.cuda.bf16"

    def __call__(self, *values: object) -> Never:
        raise TypeError(f"{self.__name__} is called outside of a kernel")


def _jit(
    func_or_sig: object = None, device: bool = False, **options: Any
) -> FakeCUDAKernel | Callable[[object], FakeCUDAKernel]:
    """Decorate as ``cuda.jit`` does. The options ``debug``, ``fastmath`` and ``extensions`` matter
    here."""
    if options.get("boundscheck"):
        raise NotImplementedError("bounds checking is not supported for CUDA")  # Numba's words

    def kernel(decorated: Any) -> FakeCUDAKernel:
        function: FunctionType = getattr(decorated, "py_func", decorated)
        debug = bool(options.get("debug")) and not options.get("fastmath")
        given = {"extensions": options.get("extensions", ()), "debug": debug}
        made = FakeCUDAKernel(function, device, **given)
        made.declared, made.jit_options = signatures, options
        if not device:
            check_types(function, signatures or [])
        if signatures is not None:
            owner = function if device else made
            keep_declared(owner, function, [arguments for arguments, _ in signatures])
        return made

    signatures = declared(func_or_sig)
    if func_or_sig is None or signatures is not None:
        return kernel
    return kernel(func_or_sig)


class TypingError(core_errors.TypingError, errors.TypingError):  # type: ignore[misc]
    """The ``TypingError`` of Numba and of numba-cuda, whose compiler raises either of the two."""


def check_types(function: FunctionType, signatures: Declared) -> None:
    """Raise ``TypingError`` if Numba refuses a kernel with declared types, as ``jit`` does, which
    compiles such a kernel at once."""
    for arguments, _ in signatures:
        try:
            check_kernel(function, arguments)
        except Untyped:
            continue
        except Refused as refused:
            raise TypingError(f"Numba refuses {function.__name__}: {refused}") from None


def _declare_device(name: str, signature: object, *linked: object, **options: object) -> Unknown:
    return Unknown(f"{name} is C or PTX that a kernel is linked with, which is not simulated")


def _core_of_ufunc(
    self: vectorizers.CUDAVectorize, signature: Signature
) -> tuple[object, numba.types.Type]:
    """Return the device function of a ``vectorize``, and its type. Numba infers the type for a CPU
    if the signature has none."""
    returns = signature.return_type
    if returns is None:
        compiled = numba.njit(self.pyfunc)
        compiled.compile(tuple(numba.from_dtype(np.dtype(str(kind))) for kind in signature.args))
        returns = compiled.nopython_signatures[0].return_type
    keep_declared(self.pyfunc, self.pyfunc, [])  # compiled here for the signature
    return _jit(self.pyfunc, device=True), returns


def _current_device() -> FakeCUDADevice:
    return numbas.gpus[0].device


def _select_device(device_id: int = 0) -> FakeCUDADevice:
    """Return the only device, as ``cuda.select_device`` does."""
    if device_id != 0:
        raise RefusedName(
            f"convlab simulates one device, number 0: device_id is {shown(device_id)}"
        )
    return _current_device()


def _detect() -> bool:
    """Print the devices, as ``cuda.detect`` does, and return that there is one."""
    device = _current_device()
    print(f"Found 1 CUDA devices\nid 0    {device.name:>20} {'[SUPPORTED]':>40}")
    print("Summary:\n\t1/1 devices are supported")
    return True


def _of_interface(
    desc: dict[str, object], owner: object = None, sync: bool = True
) -> FakeCUDAArray:
    """Return a device array as ``cuda.from_cuda_array_interface`` does."""
    return as_cuda_array(SimpleNamespace(__cuda_array_interface__=desc), sync)


def _fact(self: FakeCUDADevice, name: str) -> Never:
    """Refuse an attribute of a device, which CUDA may have."""
    from cuda.bindings.driver import CUdevice_attribute  # the driver itself need not be there

    if hasattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"):
        raise refused_value(f"the device's {name}")
    raise AttributeError(f"a device has no {name}")


def _identity(self: FakeCUDADevice) -> dict[str, int]:
    return {"pci_domain_id": 0, "pci_bus_id": 0, "pci_device_id": 0}


def _from_identity(identity: dict[str, int]) -> FakeCUDADevice:
    """Return the device with the identity that ``get_device_identity`` returned."""
    device = _current_device()
    if identity != device.get_device_identity():
        raise RuntimeError(f"No device of {identity} is found.")  # Numba's words
    return device


_DEVICE_METHODS: dict[str, object] = {
    **dict.fromkeys(("reset", "release_primary_context"), lambda self: None),
    "get_primary_context": lambda self: numbas.current_context(),
    "get_device_identity": _identity,
    "from_identity": staticmethod(_from_identity),
    "__getattr__": _fact,
}


def _of_a_context(streams: Streams) -> dict[str, Any]:
    """Return the methods of the device's context, which is also the device ``cuda.gpus[0]``."""
    default = partial(Stream, streams, DEFAULT)
    streams_of = {
        "create_stream": lambda self: streams.stream(),
        "create_external_stream": lambda self, ptr: streams.external_stream(ptr),
        "create_event": lambda self, timing=True: Event(streams, timing),
    }
    streams_of["get_per_thread_default_stream"] = lambda self: streams.per_thread_stream()
    for name in "get_default_stream", "get_legacy_default_stream":
        streams_of[name] = lambda self: default()
    return {
        **functions("context", OF_A_CONTEXT),
        **streams_of,
        "compute_capability": (9, 0),
        "get_memory_info": lambda self: MemoryInfo(_MEMORY, _MEMORY),
        "synchronize": lambda self: streams.host_waits(),
        "can_access_peer": lambda self, peer_context: False,
        "defer_cleanup": lambda self: nullcontext(),
        **dict.fromkeys(("push", "pop", "prepare_for_use"), lambda self: None),
        "__getattr__": lambda self, name: getattr(self._device, name),
    }


def _of_driver_modules() -> Iterator[tuple[ModuleType, dict[str, Any]]]:
    """Yield modules of ``numba.cuda`` with the names that they get: classes and exceptions that
    programs import."""
    arrays, errors_, driver = (
        import_module(f"numba.cuda.cudadrv.{name}") for name in ("devicearray", "error", "driver")
    )
    unified = {"MappedNDArray": UnifiedArray, "ManagedNDArray": UnifiedArray}
    refused = classes("numba.cuda.cudadrv.devicearray", OF_DEVICEARRAY)
    yield arrays, {"DeviceNDArray": FakeCUDAArray, **unified, **refused}
    # A simulation inside another one finds those of the outer one.
    yield errors_, {name: getattr(errors_, name, ours) for name, ours in _ERRORS.items()}
    yield driver, {"Stream": Stream, "Event": Event, **classes("cuda", CLASSES)}
    yield import_module("numba.cuda.args"), _HINTS


_ERRORS: dict[str, type[Exception]] = {
    name: type(name, (base,), {"__module__": "numba.cuda.cudadrv.error"})
    for base, names in {
        Exception: ("CudaDriverError", "CudaRuntimeError", "NvvmError"),
        ImportError: ("NvvmSupportError", "NvrtcSupportError"),
        NvrtcError: ("NvrtcCompilationError", "NvrtcBuiltinOperationFailure"),
        Warning: ("NvvmWarning",),
        RuntimeError: ("CCSupportError",),
    }.items()
    for name in names
}


def _broadcast(self: object, array: FakeCUDAArray, shape: int | tuple[int, ...]) -> FakeCUDAArray:
    """Return a device array repeated along axes that it lacks."""
    shape = shape if isinstance(shape, tuple) else (shape,)
    return FakeCUDAArray(np.broadcast_to(array._ary, shape))


def _names(streams: Streams) -> dict[str, Any]:
    """Return the names that ``numba.cuda`` gets."""
    event = partial(Event, streams)
    default = partial(Stream, streams, DEFAULT)
    given = {name: getattr(numbas, name) for name in _NUMBAS}
    given |= functions("cuda", FUNCTIONS) | classes("cuda", CLASSES)
    if not (config.ENABLE_CUDASIM or only_successor()):  # these compilers need no GPU
        compilers = "compile", "compile_all", "compile_ptx"
        given |= {name: getattr(numba.cuda, name) for name in compilers}
    for module in stubs, intrinsics, cache_hints:
        for name, value in vars(module).items():
            own = str(getattr(value, "__module__", "")).startswith(module.__name__)
            if own and not name.startswith("_") and getattr(numba.cuda, name, None) is None:
                given[name] = value
    return given | {
        **{"jit": _jit, "declare_device": _declare_device, "reduce": Reduce, "Reduce": Reduce},
        **{"external_stream": streams.external_stream, "literal_unroll": literal_unroll},
        **{"select_device": _select_device, "detect": _detect, "MemoryInfo": MemoryInfo},
        **{"CudaSupportError": CudaSupportError, "KernelRuntimeError": KernelRuntimeError},
        **{"from_cuda_array_interface": _of_interface, **_HINTS},
        **{"cg": cg, "libdevice": libdevice, "event": event, "Event": event},
        **{"stream": streams.stream, "synchronize": streams.host_waits, "default_stream": default},
        "legacy_default_stream": default,
        "per_thread_default_stream": streams.per_thread_stream,
        **{"is_cuda_array": is_cuda_array, "as_cuda_array": as_cuda_array},
        "profiling": nullcontext,
        **{"profile_start": lambda: None, "profile_stop": lambda: None},
        **{"is_available": lambda: True, "cuda_error": lambda: None},
        **{"get_current_device": _current_device, "is_supported_version": lambda: True},
        **{"is_bfloat16_supported": lambda: True, "is_fp8_supported": lambda: False},
        "event_elapsed_time": lambda start, end: start.elapsed_time(end),
    }


@contextmanager
def _as_mlir() -> Iterator[None]:
    """Inside, ``numba_cuda_mlir`` is another name. What is imported meanwhile stays imported, as
    registries of Numba's are only once."""
    if only_successor():  # the two are one already
        yield
        return
    package: Any = ModuleType(_MLIR)  # gets attributes
    # `find_spec`, by which programs ask if it is installed, raises for a module without one.
    package.__spec__ = ModuleSpec(_MLIR, loader=None, is_package=True)
    package.cuda = package.numba_cuda = numba.cuda
    package.types, package.__path__ = numba.cuda.types, []
    modules = {_MLIR: package, f"{_MLIR}.types": numba.cuda.types}
    for name, module in [*sys.modules.items()]:
        if name == "numba.cuda" or name.startswith("numba.cuda."):
            for alias in "cuda", "numba_cuda":
                modules[f"{_MLIR}.{alias}{name.removeprefix('numba.cuda')}"] = module
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


@contextmanager
def host_api(streams: Streams, unwritten: UnwrittenArrays) -> Iterator[None]:
    """Inside, ``numba.cuda`` needs no GPU, and ``numba_cuda_mlir`` is another name for it."""
    load_compiler()
    copies = Copies(streams, unwritten)
    broadcasts = dict.fromkeys(("_broadcast_scalar_input", "_broadcast_add_axis"), _broadcast)
    statistics = dict.fromkeys(("memsys_enable_stats", "memsys_disable_stats"), lambda: None)
    halves = {"bfloat16": _Stub("bfloat16"), "nv_bfloat16": _Stub("bfloat16"), "__getattr__": _Stub}
    with ExitStack() as stack:
        for name in ("numba.cuda.bf16", "numba.cuda._internal.cuda_bf16"):
            module = sys.modules.get(name)
            if module is not None and not hasattr(module, "htrunc"):  # of Numba's simulator
                stack.enter_context(patch.dict(vars(module), halves))
        names_of_cuda = _names(streams) | copies.functions()
        for target, names in (
            *((package, names_of_cuda) for package in packages_of_cuda()),
            (FakeCUDADevice, _DEVICE | _DEVICE_METHODS),
            (FakeCUDAContext, _of_a_context(streams)),
            *_of_driver_modules(),
            (
                FakeCUDAArray,
                {"__cuda_array_interface__": property(copies.interface), **copies.methods()},
            ),
            (rtsys, {"get_allocation_stats": lambda: _Allocations(0, 0, 0, 0), **statistics}),
            (vectorizers.CUDAVectorize, {"_compile_core": _core_of_ufunc}),
            (vectorizers.CUDAUFuncMechanism, {"broadcast_device": _broadcast}),
            (vectorizers.CUDAGeneralizedUFunc, broadcasts),
            (Reduce, {"_cache": {}}),
        ):
            stack.enter_context(patch.multiple(target, create=True, **names))
        stack.enter_context(_as_mlir())
        yield
