"""Advice for what a kernel cannot call: what to do instead of a debugger, log, file or clock."""

from __future__ import annotations

import builtins
import sys
from types import FunctionType, ModuleType

from numba.core.types import Type

from convlab.support.numba_successor import only_successor

_DEBUGGER = "call breakpoint(), at which a simulated kernel stops in Python's debugger"
PRINT = "call print() with numbers and constant strings, or store a number that the host looks at"
_HOST = "do this on the host, before or after the launch"
_CLOCK = "measure on the host, around the launch and cuda.synchronize(), or with events"
RANDOM = "call numba.cuda.random.xoroshiro128p_uniform_float32 or another of that module"
_FILES = "a kernel reads no files and no keyboard: give it what they hold as an array"
_END = "end the thread with return, and let the host decide whether the program ends"
_NAMES = "a kernel is compiled: write out what it computes, or make kernels in a function"
_DEVICE = "a kernel calls device functions: decorate it with @cuda.jit(device=True)"
_TYPE = "it is a type of Numba's own: import it from numba_cuda_mlir.types"

# By the package that the function, its class or the module belongs to.
_OF_PACKAGES = {
    **dict.fromkeys(("pdb", "bdb", "ipdb", "pudb", "pdbpp", "debugpy", "IPython"), _DEBUGGER),
    **dict.fromkeys(("logging", "warnings", "traceback", "loguru", "rich", "pprint"), PRINT),
    **dict.fromkeys(("time", "timeit", "datetime"), _CLOCK),
    **dict.fromkeys(("random", "secrets"), RANDOM),
    **dict.fromkeys(("io", "_io", "pathlib", "shutil", "pickle", "json", "csv"), _FILES),
    **dict.fromkeys(("os", "posix", "nt", "subprocess", "gc", "inspect", "tracemalloc"), _HOST),
    **dict.fromkeys(("threading", "multiprocessing", "concurrent", "asyncio"), _HOST),
    **dict.fromkeys(("_sitebuiltins",), _END),
}
_OF_BUILTINS = {
    **dict.fromkeys(("open", "input"), _FILES),
    **dict.fromkeys(("exec", "eval", "compile", "__import__", "globals", "locals"), _NAMES),
    **dict.fromkeys(("vars", "dir", "id", "setattr", "delattr"), _NAMES),
}
_OF_SYS = {
    **dict.fromkeys(("stdout", "stderr", "__stdout__", "__stderr__"), PRINT),
    "stdin": _FILES,
    "exit": _END,
}
_DEBUGGERS = {"set_trace", "post_mortem", "start_trace"}  # pytest, for one, has another set_trace
_OF_CUDA = {"synchronize": "the barrier of a block is cuda.syncthreads()"}
IMPORT = "import it outside of the kernel"


def advice_for(value: object) -> str:
    """Return what to do instead of calling the value in a kernel; empty if that is not known."""
    name = str(getattr(value, "__name__", ""))
    if isinstance(value, ModuleType):
        return _OF_PACKAGES.get(_package(name), "")
    if getattr(builtins, name, None) is value:
        return _OF_BUILTINS.get(name, "")
    if value is sys.exit:
        return _END
    if name in _DEBUGGERS:
        return _DEBUGGER
    if isinstance(value, Type) and only_successor():
        return _TYPE
    module = str(getattr(value, "__module__", None) or type(value).__module__)
    known = _OF_PACKAGES.get(_package(module)) or _OF_PACKAGES.get(_package(type(value).__module__))
    if known:
        return known
    is_plain = isinstance(value, FunctionType) and _package(module) not in ("numba", "convlab")
    return _DEVICE if is_plain else ""


def advice_for_attribute(module: ModuleType, name: str) -> str:
    """Return what to do instead of calling a module's attribute in a kernel."""
    if module is sys and name in _OF_SYS:
        return _OF_SYS[name]
    if module.__name__ == "numba.cuda":
        is_there = callable(getattr(module, name, None))
        return _OF_CUDA.get(name, f"cuda.{name} is for the host" if is_there else "")
    return advice_for(module) or advice_for(getattr(module, name, None))


def _package(name: str) -> str:
    return name.partition(".")[0]
