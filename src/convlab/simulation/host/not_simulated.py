"""Names of ``numba.cuda`` outside kernels that the strict simulator lacks, with their refusals.

A function, a method or a class exists and refuses to be called, so that ``hasattr`` is true as on a
GPU and ``isinstance`` works. A value, such as a fact about the device, has no replacement: reading
it raises an ``AttributeError`` too, so that ``hasattr`` is false and ``getattr`` returns its
default. ``test_surface.py`` compares these names, and those that
``host_api`` simulates, with those of the installed numba-cuda.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Never

from convlab.simulation.rules.findings import NotSimulated


class RefusedName(NotSimulated):
    """A program uses a name of ``numba.cuda`` that the simulator lacks, outside of a kernel."""


class RefusedValue(RefusedName, AttributeError):
    """A program reads a value that the simulator lacks."""


_COMPILED = (
    "nothing is compiled here; call it outside of the simulator, in a process without "
    "NUMBA_ENABLE_CUDASIM"
)
_INTERNAL = "it belongs to Numba's compiler; leave it out"
_MEMORY = "arrays are in NumPy's memory here; leave it out, or use cuda.device_array"
_PROCESSES = "device memory belongs to one process here; copy the array to the host and send that"
_ONE_DEVICE = "there is one device, whose context is always current; leave it out"

# Functions of ``numba.cuda``, and what to do instead.
FUNCTIONS = {
    **dict.fromkeys(("compile", "compile_all", "compile_ptx"), _COMPILED),
    **dict.fromkeys(("compile_for_current_device", "compile_ptx_for_current_device"), _COMPILED),
    "open_ipc_array": _PROCESSES,
    "prepare_shape_strides_dtype": "it belongs to Numba's arrays; use cuda.device_array",
    "set_memory_manager": _MEMORY,
}
CLASSES = {
    **dict.fromkeys(("BaseCUDAMemoryManager", "HostOnlyCUDAMemoryManager"), _MEMORY),
    **dict.fromkeys(("MemoryPointer", "MappedMemory", "PinnedMemory"), _MEMORY),
    **dict.fromkeys(("GetIpcHandleMixin", "IpcHandle"), _PROCESSES),
}
# Methods of a kernel.
OF_A_KERNEL = {
    **dict.fromkeys(("inspect_asm", "inspect_llvm", "inspect_types", "inspect_cfg"), _COMPILED),
    **dict.fromkeys(("inspect_sass", "inspect_sass_cfg", "inspect_lto_ptx"), _COMPILED),
    **dict.fromkeys(("inspect_disasm_cfg", "get_regs_per_thread"), _COMPILED),
    **dict.fromkeys(("get_const_mem_size", "get_local_mem_per_thread"), _COMPILED),
    **dict.fromkeys(("get_shared_mem_per_block", "get_max_threads_per_block"), _COMPILED),
    **dict.fromkeys(("compile_device", "add_overload", "get_overload", "dump"), _INTERNAL),
    **dict.fromkeys(("fold_argument_types", "get_annotation_info", "typeof_pyval"), _INTERNAL),
    **dict.fromkeys(("get_call_template", "get_compile_result"), _INTERNAL),
    **dict.fromkeys(("get_function_type", "get_metadata"), _INTERNAL),
}
VALUES_OF_A_KERNEL = {
    **dict.fromkeys(("signatures", "nopython_signatures", "stats"), _COMPILED),
    "targetdescr": _INTERNAL,
}
# Methods of ``kernel.overloads[signature]``.
OF_AN_OVERLOAD = {
    **dict.fromkeys(("inspect_asm", "inspect_llvm", "inspect_types"), _COMPILED),
    **dict.fromkeys(("inspect_sass", "inspect_sass_cfg", "inspect_lto_ptx"), _COMPILED),
    **dict.fromkeys(("bind", "initialize_once", "maybe_link_nrt"), _INTERNAL),
    "launch": "write kernel[grid, block](...)",
}
VALUES_OF_AN_OVERLOAD = {
    **dict.fromkeys(("regs_per_thread", "const_mem_size", "local_mem_per_thread"), _COMPILED),
    **dict.fromkeys(("shared_mem_per_block", "max_threads_per_block", "library"), _COMPILED),
    **dict.fromkeys(("argument_types", "type_annotation"), _COMPILED),
    **dict.fromkeys(("NRT_functions", "codegen"), _INTERNAL),
}
OF_A_CONTEXT = {
    **dict.fromkeys(("create_module_image", "create_module_ptx", "unload_module"), _COMPILED),
    "get_active_blocks_per_multiprocessor": _COMPILED,
    "get_max_potential_block_size": _COMPILED,
    **dict.fromkeys(("get_ipc_handle", "open_ipc_handle"), _PROCESSES),
    **dict.fromkeys(("memallocmanaged", "mempin"), _MEMORY),
    "enable_peer_access": _ONE_DEVICE,
}
OF_AN_ARRAY = {
    "get_ipc_handle": _PROCESSES,
    **dict.fromkeys(("as_cuda_arg", "device_ctypes_pointer", "device_setup"), _MEMORY),
}
OF_DEVICEARRAY = {"DeviceRecord": _MEMORY, "IpcArrayHandle": _PROCESSES}
_OF_THE_DEVICE = "the simulated device has few facts; read it on a GPU, or give getattr a default"


def sentence(name: str, instead: str) -> str:
    """Return the message of a refusal."""
    return f"convlab does not simulate {name}: {instead}"


def _function(name: str, instead: str) -> Callable[..., Never]:
    def refuse(*_: object, **__: object) -> Never:
        raise RefusedName(sentence(name, instead))

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


def _class(name: str, instead: str) -> type:
    """Return a class without instances; a class derived from it has none either."""
    return type(name.rpartition(".")[2], (), {"__init__": _function(name, instead)})


def refused_value(name: str, instead: str = _OF_THE_DEVICE) -> RefusedValue:
    """Return the error of reading a value."""
    return RefusedValue(sentence(name, instead))


def functions(owner: str, names: Mapping[str, str]) -> dict[str, Callable[..., Never]]:
    """Return functions that refuse, by name. ``owner`` is the prefix of the name in messages."""
    return {name: _function(f"{owner}.{name}", instead) for name, instead in names.items()}


def classes(owner: str, names: Mapping[str, str]) -> dict[str, type]:
    """Return classes that refuse to make an instance, by name."""
    return {name: _class(f"{owner}.{name}", instead) for name, instead in names.items()}


def values(owner: str, names: Mapping[str, str]) -> dict[str, property]:
    """Return properties that refuse to be read, by name."""

    def value(name: str, instead: str) -> property:
        def read(_: object) -> Never:
            raise refused_value(f"{owner}.{name}", instead)

        return property(read)

    return {name: value(name, instead) for name, instead in names.items()}
