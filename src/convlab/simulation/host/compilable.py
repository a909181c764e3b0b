"""The kernels of a simulated program as Numba's compiler takes them.

In a simulation ``cuda.jit`` makes kernels of Numba's simulator, which compile to nothing. Where
Numba does not run as its simulator, its compiler is there all the same: a kernel's function is
copied, its device functions become those of the compiler, and the copy is decorated again. Where
Numba runs as its simulator, this module must not be imported.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from numba.cuda.decorators import jit
from numba.cuda.simulator.kernel import FakeCUDAKernel

from convlab.simulation.host.launch_configuration import SimulatorsKernel
from convlab.simulation.language.code_names import names_used, references
from convlab.simulation.language.refusals import Untyped
from convlab.simulation.language.signatures import as_declared
from convlab.simulation.launch.translation import parameter_types
from convlab.simulation.rules.launch_checks import check_all_given

# The options of ``@cuda.jit`` that change the machine code.
OPTIONS = ("fastmath", "forceinline", "launch_bounds", "max_registers")


@dataclass
class LaunchedKernel:
    """A kernel that a program has launched: its name, Numba's types of the arguments, and Numba's
    dispatcher; ``untyped`` says why the arguments have no types."""

    name: str
    types: tuple[Any, ...] = ()
    dispatcher: Any = None
    untyped: str = ""


@dataclass
class LaunchedKernels:
    """The kernels that a program launches, each once for each types of arguments."""

    found: dict[object, LaunchedKernel] = field(default_factory=dict)
    # The kernels themselves, so that no other one gets the identity of one that is gone.
    _kept: list[SimulatorsKernel] = field(default_factory=list)

    def note(self, kernel: SimulatorsKernel, arguments: tuple[object, ...]) -> None:
        """Keep a kernel as it is now: its globals may be others when the program has ended."""
        name, untyped = kernel.py_func.__name__, ""
        types: tuple[Any, ...] = ()
        signatures = getattr(kernel, "declared", None) or []
        try:
            check_all_given(kernel.py_func, arguments)
            given = as_declared(signatures, list(arguments)) if signatures else arguments
            types, _ = parameter_types(kernel, tuple(given))
        except TypeError:  # they do not fit, for which the launch is refused
            return
        except Untyped as why:
            untyped = str(why)
        key = id(kernel), types, untyped
        if key not in self.found:
            dispatcher = None if untyped else _Copies().of(kernel)
            self.found[key] = LaunchedKernel(name, types, dispatcher, untyped)
            self._kept.append(kernel)


class _Copies:
    """Copies of one kernel's function and of its device functions."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def of(self, kernel: Any) -> Any:
        """Return the dispatcher of a kernel or device function."""
        if not isinstance(kernel, FakeCUDAKernel):  # made before the simulation began
            return kernel
        if id(kernel) in self._made:
            return self._made[id(kernel)]
        function = kernel.py_func
        names: dict[str, object] = {"__builtins__": builtins, "__name__": function.__module__}
        cells = tuple(CellType() for _ in function.__closure__ or ())
        code, defaults = function.__code__, function.__defaults__
        copy = FunctionType(code, names, function.__name__, defaults, cells)
        given = getattr(kernel, "jit_options", {})
        options = {name: given[name] for name in OPTIONS if given.get(name)}
        made = jit(device=kernel._device, lineinfo=True, **options)(copy)
        self._made[id(kernel)] = made  # before its names, which may lead back to it
        free = dict(zip(code.co_freevars, cells, strict=True))
        for name, value in references(function):
            if name in free:
                free[name].cell_contents = self._meaning(value, code)
            else:
                names[name] = self._meaning(value, code)
        return made

    def _meaning(self, value: object, code: CodeType) -> object:
        """Return the value of a global or closure's variable to the compiler."""
        if isinstance(value, FakeCUDAKernel):
            return self.of(value)
        if type(value) is tuple:
            return tuple(self._meaning(one, code) for one in value)
        if isinstance(value, ModuleType):
            used = {name: vars(value)[name] for name in names_used(code) if name in vars(value)}
            if any(isinstance(one, FakeCUDAKernel) for one in used.values()):
                copy = ModuleType(value.__name__)
                vars(copy).update({k: self._meaning(one, code) for k, one in used.items()})
                return copy
        return value
