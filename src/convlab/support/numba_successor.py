"""Lets numba-cuda-mlir stand in for numba-cuda where only the successor is installed.

convlab takes Numba's types and compiler from ``numba.cuda``, which numba-cuda provides. Its
successor numba-cuda-mlir has the same modules in two packages of its own: ``numba_cuda_mlir.cuda``
has what is changed, and ``numba_cuda_mlir.numba_cuda`` the rest. Where numba-cuda is missing,
``numba.cuda`` and the modules below it become other names for these. So convlab, and programs that
import either package, find one ``cuda``.

The successor has no simulator. ``numba.cuda.simulator`` is Numba's own, which numba-cuda's comes
from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

_NAMES = "numba.cuda", "numba_cuda_mlir.cuda"  # of one package
_ROOMS = "numba_cuda_mlir.cuda", "numba_cuda_mlir.numba_cuda"  # the first that has a module
_SIMULATOR = "numba.cuda.simulator"
_SWITCH = "NUMBA_ENABLE_CUDASIM"
_MOVED = {".memory_management": "numba_cuda_mlir.memory_management"}  # the rooms' one refuses


@cache
def only_successor() -> bool:
    """Return whether numba-cuda-mlir is installed and numba-cuda is not."""
    return find_spec("numba_cuda") is None and find_spec("numba_cuda_mlir") is not None


def switch_simulator_on() -> None:
    """Set Numba's switch for its simulator, for programs that ask Numba, and for their children.

    It stays off for a program that has switched it off, and where only numba-cuda-mlir is
    installed: that has no simulator, and programs that were written for it may refuse the switch.
    """
    if not only_successor() and not os.environ.get(_SWITCH):
        os.environ[_SWITCH] = "1"


def packages_of_cuda() -> tuple[ModuleType, ...]:
    """Return the packages in which programs find the names of ``cuda``."""
    return tuple(map(import_module, _ROOMS if only_successor() else _NAMES[:1]))


def name_in_numba_cuda(module: str) -> str:
    """Return the name that a module of the successor has below ``numba.cuda``; another module's
    name as it is."""
    for room in _ROOMS:
        if module == room or module.startswith(f"{room}."):
            return _NAMES[0] + module.removeprefix(room)
    return module


class _Alias(Loader):
    """Loads a module under another name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # in whose place Python has put the other name's


class _Package(_Alias):
    """Loads ``numba.cuda`` itself, with names that numba-cuda-mlir has left out."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        config: Any = import_module(f"{_ROOMS[1]}.core.config")  # gets an attribute
        config.ENABLE_CUDASIM = import_module("numba.core.config").ENABLE_CUDASIM
        # Once it is imported, this module is `cuda.types`; before that the whole one is.
        types = import_module(f"{_ROOMS[0]}.types")
        for name, value in vars(import_module(f"{_ROOMS[1]}.types")).items():
            vars(types).setdefault(name, value)


class _Finder(MetaPathFinder):
    """Finds ``numba.cuda`` and the modules below it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = next((one for one in _NAMES if name == one or name.startswith(f"{one}.")), None)
        if known is None or (known == _NAMES[0] and _is_numbas_own()):
            return None
        home = _home(name.removeprefix(known))
        if name == _NAMES[0]:
            return ModuleSpec(name, _Package(_ROOMS[0]), is_package=True)
        if home is not None:
            return None if home == name else ModuleSpec(name, _Alias(home))
        return _of_the_simulator(name)


def _is_numbas_own() -> bool:
    """Return whether ``numba.cuda`` is imported and is Numba's own."""
    module = sys.modules.get(_NAMES[0])
    return module is not None and module.__name__ == _NAMES[0]


@cache
def _home(below: str) -> str | None:
    """Return the name of the successor's module for ``numba.cuda`` and what follows it."""
    if below in _MOVED:
        return _MOVED[below]
    package = find_spec("numba_cuda_mlir")
    if package is None or not package.submodule_search_locations:
        return None
    (folder,) = package.submodule_search_locations
    for room in _ROOMS:
        whole = room + below
        path = Path(folder).parent.joinpath(*whole.split("."))
        if path.is_dir() or path.with_suffix(".py").is_file():
            return whole
    return None


def _of_the_simulator(name: str) -> ModuleSpec | None:
    """Return where a module of Numba's own simulator is."""
    (numba,) = import_module("numba").__path__
    own = Path(numba, "cuda")
    if name == f"{_SIMULATOR}.args":  # Numba has it beside the simulator, numba-cuda in it
        return spec_from_file_location(name, own / "args.py")
    if name != _SIMULATOR:
        return ModuleSpec(name, _Alias(_SIMULATOR)) if name.endswith(".simulator") else None
    spec = spec_from_file_location(name, own / "simulator/__init__.py")
    if spec is None or spec.loader is None:
        return None
    loader: Any = spec.loader
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        # With this setting it would put its own modules in the place of others.
        with patch.object(import_module("numba.core.config"), "ENABLE_CUDASIM", 0):
            execute(module)

    loader.exec_module = exec_module
    return spec


def why_not() -> str | None:
    """Return why ``numba.cuda`` is Numba's own, which convlab cannot use; None if it is not."""
    if find_spec("numba_cuda") is None and not only_successor():
        return "neither numba-cuda nor numba-cuda-mlir is installed: install one of them"
    if only_successor() and _is_numbas_own():
        return (
            "numba.cuda was imported before convlab: where numba-cuda is not installed, import "
            "convlab first, so that numba.cuda is numba-cuda-mlir's"
        )
    return None


def prepare() -> None:
    """Let numba-cuda-mlir stand in, from now on, if numba-cuda is missing."""
    if only_successor() and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
