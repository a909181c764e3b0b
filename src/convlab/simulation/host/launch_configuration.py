"""A kernel's launch configuration, ``kernel[grid, block, stream, shared]``, and its methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Protocol

from numba.cuda.errors import normalize_kernel_dimensions

from convlab.simulation.host.host_api import check_types
from convlab.simulation.host.not_simulated import (
    OF_A_KERNEL,
    OF_AN_OVERLOAD,
    VALUES_OF_A_KERNEL,
    VALUES_OF_AN_OVERLOAD,
    functions,
    values,
)
from convlab.simulation.host.stream_order import DEFAULT
from convlab.simulation.language.compilations import keep_compiled, recompile
from convlab.simulation.language.signatures import declared
from convlab.support.values import shown

FORALL_BLOCK = 1024  # threads of a block if a program leaves their number to Numba


class Extension(Protocol):
    """An extension of a kernel, which prepares its arguments."""

    def prepare_args(
        self, kind: object, argument: object, /, stream: object, retr: list[Callable[[], object]]
    ) -> tuple[object, object]:
        """Return the type and the value with which a kernel gets an argument."""


class SimulatorsKernel(Protocol):
    """A kernel of Numba's own simulator."""

    py_func: FunctionType
    extensions: list[Extension]
    overloads: dict[object, object]

    def __getitem__(self, configuration: tuple[object, ...], /) -> ConfiguredKernel: ...


@dataclass(frozen=True)
class ConfiguredKernel:
    """A kernel with a launch configuration. Numba's simulator returns the kernel itself, so that of
    two configurations only the last one counts."""

    kernel: SimulatorsKernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: object = DEFAULT
    shared_bytes: int = 0
    pre_launch_callbacks: list[Callable[..., object]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.kernel.py_func.__name__


def _configured(kernel: SimulatorsKernel, configuration: object) -> ConfiguredKernel:
    """Return the kernel with its launch configuration."""
    if getattr(kernel, "_device", False):
        raise RuntimeError("Cannot compile a device function as a kernel")  # Numba's words
    if not isinstance(configuration, tuple) or len(configuration) not in (2, 3, 4):
        raise ValueError(
            f"{kernel.py_func.__name__}[{shown(configuration)}]: a launch has grid and block, and "
            "may have a stream and bytes of dynamic shared memory"
        )
    grid, block = normalize_kernel_dimensions(*configuration[:2])  # raises Numba's own errors
    return ConfiguredKernel(kernel, grid, block, *configuration[2:])


def _configure(
    kernel: SimulatorsKernel,
    griddim: object,
    blockdim: object,
    stream: object = DEFAULT,
    sharedmem: int = 0,
) -> ConfiguredKernel:
    return _configured(kernel, (griddim, blockdim, stream, sharedmem))


def _forall(
    kernel: SimulatorsKernel,
    ntasks: int,
    tpb: int = 0,
    stream: object = DEFAULT,
    sharedmem: int = 0,
) -> Callable[..., object]:
    """Return the kernel configured for whole blocks, as on a GPU. Numba's simulator starts exactly
    ``ntasks`` threads, which hides a missing bounds check."""
    if ntasks < 0:
        raise ValueError(f"Can't create ForAll with negative task count: {ntasks}")
    if ntasks == 0:
        return lambda *arguments: None
    block = tpb or FORALL_BLOCK
    launch: Any = kernel[-(-ntasks // block), block, stream, sharedmem]  # callable in a simulation
    configured: Callable[..., object] = launch
    return configured


def _compile(kernel: SimulatorsKernel, sig: object) -> object:
    """Compile ``kernel.compile(signature)``: raises what Numba raises for a kernel that it
    refuses."""
    signatures = declared(sig) or []
    check_types(kernel.py_func, signatures)
    for arguments, _ in signatures:
        keep_compiled(kernel, arguments)
    return kernel.overloads[sig]


def _specialize(kernel: SimulatorsKernel, *arguments: object) -> SimulatorsKernel:
    return kernel


def _nothing(kernel: SimulatorsKernel, *arguments: object) -> None:
    """Ignore a setting of compiled kernels, because nothing is compiled."""


# The methods that kernels get. A kernel of Numba's simulator gets them, and so does one of the
# dispatcher, which a kernel is that was made before the simulation began.
_LAUNCHES: dict[str, Any] = {
    "__getitem__": _configured,
    "forall": _forall,
    "configure": _configure,
    "specialize": _specialize,
    "recompile": recompile,
}
KERNEL: dict[str, Any] = {
    **functions("kernel", OF_A_KERNEL),
    **values("kernel", VALUES_OF_A_KERNEL),
    **_LAUNCHES,
    "call": lambda kernel, args, launch_config: launch_config(*args),
    "compile": _compile,
    **dict.fromkeys(("disable_compile", "enable_caching"), _nothing),
    "mark_launch_config_sensitive": _nothing,
    **dict.fromkeys(("is_compiling", "specialized"), False),
}
# Numba's compiler asks a dispatcher for the types of device functions, so the rest stays.
DISPATCHER: dict[str, Any] = _LAUNCHES | {
    name: refuse
    for name, refuse in functions("kernel", OF_A_KERNEL).items()
    if name.startswith(("inspect_", "get_regs", "get_const", "get_local", "get_shared", "get_max"))
}
OVERLOAD: dict[str, Any] = {
    **functions("kernel.overloads[...]", OF_AN_OVERLOAD),
    **values("kernel.overloads[...]", VALUES_OF_AN_OVERLOAD),
}
