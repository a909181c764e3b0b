"""NumPy's functions and methods that a kernel may call with a whole array."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convlab.simulation.recording.instructions import site_of
from convlab.simulation.rules.findings import NotSimulated

# Those that Numba compiles although their results need no memory, apart from ufuncs.
METHODS = {"sum", "prod", "mean", "var", "std", "min", "max", "all", "any", "argmin", "argmax"}
FUNCTIONS = {"amin", "amax", "nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmin", "nanmax"}
FUNCTIONS |= {"count_nonzero", "median", "nanmedian", "searchsorted"}


class NumpyFunctions:
    """The part of a kernel's array that NumPy's functions call."""

    __slots__ = ()
    name: str

    def elements(self, site: int) -> np.ndarray:
        """Return all elements, each loaded by the running thread."""
        raise NotImplementedError

    def store_part(self, index: object, value: object, site: int) -> None:
        """Store the value in one element or in several."""
        raise NotImplementedError

    def _reduced(
        self, function: Callable[..., np.generic], depth: int, *others: object, **options: object
    ) -> object:
        """Return one number computed from all elements. The kernel's line is ``depth`` calls
        above."""
        if options or len(others) > (function is np.searchsorted):
            name = function.__name__
            raise NotSimulated(f"{name} of {self.name} with more than the array is not simulated")
        with np.errstate(all="ignore"):
            return function(self.elements(site_of(depth)), *others).item()

    def __array_function__(
        self,
        function: Callable[..., np.generic],
        types: object,
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> object:
        """Call a function of NumPy other than a ufunc."""
        name = function.__name__
        if name not in METHODS | FUNCTIONS:
            raise NotSimulated(f"np.{name} of {self.name} is not simulated")
        return self._reduced(function, 2, *arguments[1:], **options)

    def __array_ufunc__(
        self,
        function: np.ufunc,
        method: str,
        *inputs: object,
        out: tuple[NumpyFunctions, ...] = (),
        **options: object,
    ) -> object:
        """Call a ufunc on each element and store the results in ``out``. Without ``out`` the
        results would need memory, which a kernel cannot allocate."""
        if not out:
            raise TypeError(f"np.{function.__name__} would allocate an array; pass out=")
        if method != "__call__" or options:
            what = f"np.{function.__name__} with {', '.join(options) or method}"
            raise NotSimulated(f"{what} on {self.name} is not simulated")
        site = site_of(2)
        # NumPy promotes arrays of one scalar as Numba does, and plain scalars otherwise.
        operands = [
            one.elements(site) if isinstance(one, NumpyFunctions) else np.asarray(one)
            for one in inputs
        ]
        returned = function(*operands)
        results = returned if isinstance(returned, tuple) else (returned,)
        for target, result in zip(out, results, strict=False):
            target.store_part(..., result, site)
        return out[0] if len(out) == 1 else out
