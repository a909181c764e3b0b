"""The kernels whose machine code this process has, by the types of their arguments."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from numba.core import types

from convlab.simulation.compiled.kernel_history import KernelHistory
from convlab.simulation.compiled.kernels import KernelMachineCode, compile_kernel, is_kept
from convlab.simulation.compiled.launch_facts import LaunchFacts
from convlab.simulation.compiled.memory import type_of
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.language.compiled_values import Values, values_of
from convlab.simulation.launch.translation import parameter_types
from convlab.simulation.rules.launch_checks import with_arrays


class _Known(NamedTuple):
    """A kernel's machine code for some types of arguments; None if it is not on disk. A kernel's
    values from outside are those that it was first compiled with; with other ones it is another
    kernel."""

    values: Values
    found: KernelMachineCode | None


_known: WeakKeyDictionary[NumbaKernel, dict[tuple[types.Type, ...], _Known]] = WeakKeyDictionary()


class KernelVariant:
    """The kernel of a launch for arguments of their types. ``history`` is that of its launches, and
    keeps why it is refused. Raises :class:`NeedsGreenlets` for an argument whose type machine code
    does not know."""

    def __init__(self, facts: LaunchFacts, history: KernelHistory) -> None:
        self._kernel, given = facts.kernel, facts.arguments
        self._refusals = history.refusals
        self._kinds = tuple(type_of(with_arrays(one)) for one in given)
        self._gpu_types, _ = parameter_types(self._kernel, given)
        self._values = values_of(self._kernel, self._gpu_types)

    def refusal(self) -> str:
        """Return why the kernel is refused, as far as that is known; else an empty text."""
        return self._refusals.get(self._kinds, "")

    def is_in_memory(self) -> bool:
        """Return whether this process has the machine code."""
        known = self._known()
        return known is not None and known.found is not None

    def is_on_disk(self) -> bool:
        """Return whether the machine code is on disk, for a kernel that has none in memory. It
        looks there once."""
        if self._known() is not None or self.refusal():
            return False
        function = self._kernel.py_func
        try:
            if is_kept(function, self._kinds, self._gpu_types, self._values):
                return True
            self._note(None)
        except NeedsGreenlets as why:
            self._refusals[self._kinds] = str(why)
        return False

    def machine_code(self) -> KernelMachineCode:
        """Return the machine code, compiled if it is not there. Raises :class:`NeedsGreenlets` if
        it cannot be."""
        known = self._known()
        if known is not None and known.found is not None:
            return known.found
        if why := self.refusal():
            raise NeedsGreenlets(why)
        function = self._kernel.py_func
        try:
            made = compile_kernel(function, self._kinds, self._gpu_types, self._values)
        except NeedsGreenlets as error:
            self._refusals[self._kinds] = str(error)
            raise
        self._note(made)
        return made

    def _known(self) -> _Known | None:
        known = _known.get(self._kernel, {}).get(self._kinds)
        return known if known is not None and known.values is self._values else None

    def _note(self, found: KernelMachineCode | None) -> None:
        _known.setdefault(self._kernel, {})[self._kinds] = _Known(self._values, found)
