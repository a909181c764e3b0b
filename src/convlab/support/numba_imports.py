"""Lets numba-cuda 0.30 be imported where it does not expect to be.

Three of its modules, and those of numba-cuda-mlir 0.6 that come from them, stop or warn

- with NumPy 2.5, which has no ``row_stack`` any more (numba-cuda#907) and warns of times without a
  unit, which ``numba.cuda.np`` names when it is first needed for compiling;
- on a computer without CUDA's runtime library, and on Windows, where ``numba.cuda`` asks for that
  library's version in vain (numba-cuda#923).

While one of these modules is imported, and no longer, they find what they look for. ``convlab``
calls :func:`prepare` before it imports anything else, so that it does not matter who imports them:
convlab, or a program that runs on the strict simulator.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from convlab.support import numba_successor


@contextmanager
def _row_stack() -> Iterator[None]:
    """Inside, NumPy has ``row_stack``: a function of its own, because ``vstack`` itself has got
    code for a GPU already."""
    import numpy as np

    if hasattr(np, "row_stack"):
        yield
        return

    def row_stack(tup: Any) -> Any:
        return np.vstack(tup)

    names = vars(np)
    names["row_stack"] = row_stack
    try:
        yield
    finally:
        del names["row_stack"]


@contextmanager
def _times_without_unit() -> Iterator[None]:
    """Inside, NumPy does not warn of ``timedelta64("nat")``, which is in no program's hands."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The 'generic' unit", DeprecationWarning)
        yield


@contextmanager
def _runtime_version() -> Iterator[None]:
    """Inside, the version of a runtime library that is not there is 0, for which Numba leaves some
    debug information away."""
    from cuda.bindings import runtime

    asked = runtime.getLocalRuntimeVersion

    def version() -> tuple[Any, int]:
        try:
            found: tuple[Any, int] = asked()
        except (RuntimeError, NotImplementedError, OSError):
            return None, 0
        return found

    runtime.getLocalRuntimeVersion = version
    try:
        yield
    finally:
        runtime.getLocalRuntimeVersion = asked


_NEEDED: dict[str, Callable[[], AbstractContextManager[None]]] = {
    f"{package}.{module}": needed
    for package in ("numba.cuda", "numba_cuda_mlir.numba_cuda")
    for module, needed in {
        "np.arrayobj": _row_stack,
        "np.npdatetime_helpers": _times_without_unit,
        "debuginfo": _runtime_version,
    }.items()
}


class _Finder(MetaPathFinder):
    """Finds these modules as the other finders do, and executes each within what it needs."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (needed := _NEEDED.get(name)) is None:
            return None
        others = (one for one in sys.meta_path if one is not self and hasattr(one, "find_spec"))
        spec = next(filter(None, (one.find_spec(name, path, target) for one in others)), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader  # this module's own: no other import changes
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with needed():
                    execute(module)

            loader.exec_module = exec_module
        return spec


def prepare() -> None:
    """Let these modules be imported, from now on, and numba-cuda-mlir stand in for numba-cuda where
    that is missing."""
    numba_successor.prepare()
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
