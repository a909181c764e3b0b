"""The translation of a kernel for one launch: its function with other meanings of its globals and,
where Numba's types are inferred, with their arithmetic."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType

import numpy as np
from numba.core import errors as core_errors
from numba.core.types import Type
from numba.cuda import types as numba_types
from numba.cuda.core import errors
from numba.cuda.np.numpy_support import from_dtype
from numba.cuda.typing.typeof import Purpose, typeof

from convlab.device import BoundMap, emulation_of
from convlab.simulation.language.code_names import may_wait, names_used
from convlab.simulation.language.compilations import NumbaKernel
from convlab.simulation.language.compiled_values import alike
from convlab.simulation.language.counters import said_of_counter
from convlab.simulation.language.inference import WIDEST, given_bits
from convlab.simulation.language.numbas_types import check_kernel
from convlab.simulation.language.python_body import Copier
from convlab.simulation.language.refusals import Refused, Untyped
from convlab.simulation.language.signatures import Types
from convlab.simulation.language.typed_results import BY_ZERO
from convlab.simulation.launch.global_memory import GlobalMemory
from convlab.simulation.memory.index_checks import ArrayReport
from convlab.simulation.memory.launch_memory import Memory
from convlab.simulation.numbers.counted_operations import Arithmetic
from convlab.simulation.numbers.scalars import BUILTINS, cast, meaning
from convlab.simulation.recording.loops import Loops
from convlab.simulation.recording.sites import Sites, activemask_after_branch
from convlab.simulation.recording.source_text import has_while
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.launch_checks import with_arrays
from convlab.simulation.rules.retries import has_update_by_two_atomics
from convlab.simulation.threads.simulated_cuda import SimulatedCuda
from convlab.support.kernel_defaults import kept_defaults
from convlab.support.values import shown

# Calls by which threads communicate.
COMMUNICATING = {"threadfence", "threadfence_block", "threadfence_system", "atomic", "ldcv"}
SHUFFLES = {"shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"}

Intrinsic = Callable[..., object]


@dataclass(frozen=True)
class Translation:
    """A kernel's function as a launch runs it, and facts from its text.

    ``untyped`` says why registers do not have Numba's types, if that was asked for in vain.
    ``types`` are those of the parameters, None without Numba's types. ``names`` are the names that
    the kernel and its device functions use; ``called`` are the intrinsics among them.
    """

    name: str
    body: FunctionType
    codes: tuple[CodeType, ...]
    sites: Sites
    untyped: str
    types: Types | None
    names: frozenset[str]
    called: tuple[Intrinsic, ...]
    copier: Copier

    @property
    def communicates(self) -> bool:
        """Return whether threads may communicate other than by barriers."""
        return bool(self.names & COMMUNICATING)

    @property
    def shuffles(self) -> bool:
        """Return whether lanes of a warp read each other's numbers."""
        return bool(self.names & SHUFFLES)

    @property
    def may_poll(self) -> bool:
        """Return whether a ``while`` loop may wait for what other threads change by atomics."""
        return "atomic" in self.names and any(
            has_while(code, code.co_filename) for code in self.codes
        )

    @property
    def updates_by_two_atomics(self) -> bool:
        """Return whether threads may update an element by one atomic and the result of another."""
        return "atomic" in self.names and any(
            has_update_by_two_atomics(code, code.co_filename) for code in self.codes
        )

    @property
    def syncs_warps(self) -> bool:
        """Return whether the kernel calls ``syncwarp``."""
        return "syncwarp" in self.names

    @property
    def syncs_grid(self) -> bool:
        """Return whether the kernel waits for the whole grid."""
        return {"this_grid", "sync"} <= self.names

    @property
    def waits_in_calls(self) -> bool:
        """Return whether threads may wait in a device function."""
        return any(may_wait(code) for code in self.codes if code is not self.body.__code__)

    def counter_at(self, site: int) -> str:
        """Say which counter of the loop at a site is too narrow; empty if there is none."""
        code = self.sites.code(site)
        original = None if code is None else self.copier.original(code)
        if code is None or original is None:
            return ""
        function, types = original
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        values = {**function.__globals__, **({} if frame is None else frame.f_locals)}
        return said_of_counter(function, types, self.sites.line(site)[1], values)

    def parted_at(self) -> int | None:
        """Return the site of a call of ``activemask`` after a branch, where lanes may have parted;
        None if there is none."""
        if "activemask" not in self.names:
            return None
        sites = (activemask_after_branch(code, code.co_filename) for code in self.codes)
        return next(filter(None, sites), None)


class Translator:
    """Translates the kernel of a launch.

    ``intrinsics`` are the launch's own, by their emulation: others run as they are emulated.
    ``loops`` hears of loops and calls, ``endless`` is what ``while`` loops run through.
    ``arithmetic`` counts operations, if anything asks for them. Findings about constant arrays go
    to ``report``.
    """

    def __init__(
        self,
        kernel: NumbaKernel,
        cuda: SimulatedCuda,
        memory: GlobalMemory,
        report: ArrayReport,
        intrinsics: Mapping[Intrinsic, Intrinsic],
        arithmetic: Arithmetic | None,
        loops: Loops | None,
        endless: Callable[[], Iterable[int]],
    ) -> None:
        self._kernel, self._function = kernel, kernel.py_func
        self._cuda, self._memory, self._report = cuda, memory, report
        self._intrinsics, self._arithmetic = intrinsics, arithmetic
        self._loops, self._endless = loops, endless
        self._typed = False
        self._types: Types | None = None
        self._called: list[Intrinsic] = []
        self._builtins = dict(BUILTINS)
        if has_debug(kernel):
            # With debug=True Numba raises an error.
            self._builtins[BY_ZERO] = lambda divisor: divisor
        if arithmetic is not None:
            self._builtins["float"] = arithmetic.cast(BUILTINS["float"])

    def translate(self, arguments: tuple[object, ...], typed: bool) -> Translation:
        """Translate the kernel for these arguments; if ``typed``, with Numba's types as far as they
        are inferred. Raises :class:`NotSimulated` for a kernel that Numba refuses."""
        name, untyped = self._function.__name__, ""
        self._typed = typed and self._arithmetic is None
        if typed and not self._typed:
            untyped = f"{name} ran without Numba's types: a recorder counts operations of Python's"
        try:
            try:
                copier, body = self._copy(arguments)
            except Untyped as why:
                untyped = f"{name} ran without Numba's types: {why}"
                self._typed, self._types = False, None
                copier, body = self._copy(arguments)
        except Refused as refused:
            raise NotSimulated(f"Numba refuses {name}: {refused}") from None
        codes = tuple(copier.codes())
        return Translation(
            name=name,
            body=body,
            codes=codes,
            sites=Sites(codes, body.__code__, copier.calls),
            copier=copier,
            untyped=untyped,
            types=self._types,
            names=frozenset(copier.used.union(*map(names_used, codes))),
            called=tuple(self._called),
        )

    def _copy(self, arguments: tuple[object, ...]) -> tuple[Copier, FunctionType]:
        """Copy the kernel's function, and what it calls, with other meanings of its globals."""
        self._called.clear()
        copier = Copier(
            self._cuda,
            self._meaning,
            self._builtins,
            emulation=self._emulation,
            loops=self._loops,
            endless=self._endless,
            kernel=self._kernel,
        )
        if not self._typed:
            return copier, copier.copy(self._function)
        types, bits = parameter_types(self._kernel, arguments)
        check_kernel(self._function, types)
        self._types = types
        return copier, copier.copy(self._function, types, bits)

    def _emulation(self, value: object) -> Intrinsic | None:
        """Return what an intrinsic does in this launch. None for anything else, and for a device
        function: this simulator runs the function itself, though others need its emulation."""
        emulation = None if hasattr(value, "py_func") else emulation_of(value)
        if emulation is None:
            return None
        found = self._intrinsics.get(emulation, emulation)
        self._called.append(found)
        return found

    def _meaning(self, value: object) -> object:
        """Return what a global means in this launch; None if it stands for itself."""
        if isinstance(value, np.ndarray):  # a constant of the kernel's, which is compiled into it
            constant = value.copy()
            constant.flags.writeable = False
            return Memory(None, self._report).array(constant, "a constant array", 0)
        if hasattr(value, "__cuda_array_interface__"):  # a device array: global memory
            return self._memory.captured(value)
        meant = meaning(value)
        if self._typed and callable(meant) and hasattr(meant, "dtype"):
            return cast(meant.dtype.name, False) if meant.dtype.kind in "iufb" else meant
        if self._arithmetic is None or not callable(meant):
            return meant
        if getattr(meant, "dtype", None) is None:
            return self._arithmetic.function(meant)
        return self._arithmetic.cast(meant) if meant.dtype.kind == "f" else meant


def checked_kernel(kernel: object) -> NumbaKernel:
    """Return the kernel; ``TypeError`` for an object that is not a kernel."""
    function = getattr(kernel, "py_func", None)
    if not inspect.isfunction(function):
        raise TypeError(
            f"kernel is {shown(kernel)}, which is not a kernel: decorate it with @cuda.jit"
        )
    return typing.cast("NumbaKernel", kernel)


def has_debug(kernel: object) -> bool:
    """Return whether a kernel is compiled with ``debug=True``."""
    options = getattr(kernel, "targetoptions", {})  # of Numba's simulator it is an attribute
    return bool(options.get("debug") or getattr(kernel, "_debug", False))


def parameter_types(
    kernel: NumbaKernel, arguments: tuple[object, ...]
) -> tuple[tuple[Type, ...], tuple[int, ...]]:
    """Return Numba's types of the kernel's parameters in a launch with these arguments, and for
    integers the most bits that they have. The types are those of a declared signature, for which
    the kernel has been compiled, if one fits. Raises :class:`Untyped` for an argument that has no
    type."""
    # On a GPU a tensor map is an array of 16 uint64.
    given = [
        np.zeros(16, np.uint64) if isinstance(one, BoundMap) else with_arrays(one)
        for one in arguments
    ]
    try:
        types = tuple(
            from_dtype(one.dtype) if _is_record(one) else typeof(one, Purpose.argument)
            for one in given
        )
    except (ValueError, errors.NumbaError, core_errors.NumbaError) as error:
        raise Untyped(str(error)) from None
    for takes, _ in getattr(kernel, "declared", None) or []:
        if tuple(map(alike, takes)) == tuple(map(alike, types)):
            types = takes
    bits = tuple(
        given_bits(
            int(typing.cast("typing.SupportsInt", one)).bit_length()
            if isinstance(kind, numba_types.Integer)
            else WIDEST
        )
        for one, kind in zip(given, types, strict=True)
    )
    kept = kept_defaults(kernel.py_func, len(arguments))
    return (*types, *map(numba_types.Omitted, kept)), (*bits, *[given_bits(WIDEST)] * len(kept))


def _is_record(argument: object) -> typing.TypeGuard[np.ndarray]:
    return isinstance(argument, np.ndarray) and argument.ndim == 0 and bool(argument.dtype.names)
