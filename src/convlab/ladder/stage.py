"""The records that describe a stage: its kernels, buffers, launches and tiles."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from numbers import Integral
from types import FunctionType
from typing import Any, Protocol

from convlab.problems.problem import ConvProblem
from convlab.support.values import shown

Grid = tuple[int, ...]
Capability = tuple[int, int]  # a GPU's compute capability: (9, 0) is 9.0
SHARED_BYTES = 48 * 1024  # the static shared memory of a block
GRID_LIMIT = (2**31 - 1, 65535, 65535)  # CUDA's largest grid in x, y and z


class Kernel(Protocol):
    """A function under ``@cuda.jit``. Numba's dispatchers have no types of their own."""

    py_func: FunctionType
    targetoptions: dict[str, Any]  # the options of the decorator

    def __hash__(self) -> int: ...

    def __getitem__(self, configuration: Any) -> Callable[..., None]: ...


class DeviceFunction(Protocol):
    """A function under ``@cuda.jit(device=True)``, which kernels call."""

    py_func: FunctionType

    def __call__(self, *arguments: Any) -> Any: ...


@dataclass(frozen=True)
class Tile:
    """Block tile and thread tile (im2win paper, Algorithm 3): a block computes M_B output channels
    of N_B output pixels, K_B terms of a sum at a time, and a thread M_T x N_T outputs. Raises
    ``ValueError`` when a size is not positive, does not divide, or makes over 1,024 threads."""

    M_B: int
    N_B: int
    K_B: int
    M_T: int = 1
    N_T: int = 1

    def __post_init__(self) -> None:
        for name, size in [*vars(self).items()]:
            if type(size) is bool or not isinstance(size, Integral) or not 0 < int(size) < 2**31:
                rule = "it must be a positive integer below 2**31"
                raise ValueError(f"tile {name} is {shown(size)}: {rule}")
            object.__setattr__(self, name, int(size))  # NumPy's integers become Python's
        for block, thread in (("M_B", "M_T"), ("N_B", "N_T")):
            whole = getattr(self, block) % getattr(self, thread) == 0
            reason = "every thread computes equally many outputs"
            self.require(whole, f"{block} must be a multiple of {thread}, because {reason}")
        self.require(self.threads <= 1024, f"{self.threads} threads: a block has at most 1024")

    @property
    def rows(self) -> int:  # threads along M
        return self.M_B // self.M_T

    @property
    def columns(self) -> int:  # threads along N
        return self.N_B // self.N_T

    @property
    def threads(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.M_B}x{self.N_B}x{self.K_B}/{self.M_T}x{self.N_T}"

    def fits(self, elements: int) -> bool:
        """Return whether that many float32 fit the static shared memory of a block."""
        return 4 * elements <= SHARED_BYTES

    def resident_blocks(self, registers: int) -> int:
        """Blocks that an SM's 65,536 registers hold if a thread needs so many beside its sums."""
        return max(1, 65536 // (self.threads * (self.M_T * self.N_T + registers)))

    def pipeline_depth(self, elements: int) -> int:
        """Return the number of slices in shared memory: three if they fit, else two."""
        return 3 if self.fits(3 * elements) else 2

    def whole_slices(self, terms: int) -> int:
        """That many terms, rounded up to whole slices."""
        return blocks_for(terms, self.K_B) * self.K_B

    def channel_group(self, problem: ConvProblem) -> int:
        """Channels of a channel group: K_B if this divides C_i (a slice is one place), else 1."""
        return self.K_B if problem.C_i % self.K_B == 0 else 1

    def require_shared_memory(self, elements: int) -> None:
        rule = f"its slices take {4 * elements} bytes, and shared memory has {SHARED_BYTES}"
        self.require(self.fits(elements), rule)

    def require_float4s(self, *names: str) -> None:
        whole = all(getattr(self, name) % 4 == 0 for name in names)
        rule = "must be multiples of 4, because one access moves four numbers"
        self.require(whole, f"{', '.join(names[:-1])} and {names[-1]} {rule}")

    def require(self, holds: bool, rule: str) -> None:
        """Raise ``ValueError`` with this tile and the rule unless ``holds``."""
        if not holds:
            raise ValueError(f"tile {self}: {rule}")


@dataclass(frozen=True)
class Buffer:
    """Device memory of a stage beside input, weight, bias and output: float32, named."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class Images:
    """A step's argument: the images ``start`` to ``stop - 1`` of a tensor."""

    name: str
    start: int
    stop: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Flat:
    """A step's argument with one dimension: ``array.reshape(-1)``."""

    of: str | Images

    def __str__(self) -> str:
        return str(self.of)


Argument = str | Images | Flat
SOURCES = ("input", "weight", "bias")  # what no step may write to


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Arguments are names: ``input``, ``weight``, ``bias``, ``output`` or a
    buffer's. Raises ``ValueError`` for a grid larger than CUDA's."""

    kernel: Kernel
    grid: Grid
    block: Grid
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        return str(self.kernel.py_func.__name__)

    def __post_init__(self) -> None:
        for axis, size, most in zip("xyz", self.grid, GRID_LIMIT, strict=False):
            if size > most:
                where = f"{self.name} needs {size} blocks along {axis}"
                raise ValueError(f"{where}: a CUDA grid has at most {most}")


@dataclass(frozen=True)
class LibraryCall:
    """A step that an array library does: ``function(library, *arrays)``. The library and its arrays
    are NumPy's on a simulator, PyTorch's or CuPy's on a GPU."""

    function: Callable[..., None]
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))


Step = Launch | LibraryCall


@dataclass(frozen=True)
class Program:
    """A stage made ready for one problem: what to allocate, then what to launch, in order. ``tile``
    is that of its last launch, the main kernel."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Step, ...]
    tile: Tile | None = None

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """One launch of each kernel, in order: what there is to compile."""
        found = {id(step.kernel): step for step in self.launches if isinstance(step, Launch)}
        return tuple(found.values())

    @property
    def workspace_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)


def tile_program(
    problem: ConvProblem,
    tile: Tile,
    kernel: Kernel,
    before: Program = Program((), ()),
    flat: tuple[str, ...] = ("input", "windows", "weight", "packed", "output"),
    splits: Grid = (),
) -> Program:
    """The program of ``before``, a stage's layout transforms, and of the kernel, a block for each
    tile. The kernel's parameters name its arguments; those in ``flat`` have one dimension."""
    names = inspect.signature(kernel.py_func).parameters
    arguments = tuple(Flat(name) if name in flat else name for name in names)
    grid = (blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B), *splits)
    launch = Launch(kernel, grid, (tile.threads,), arguments)
    return Program(before.buffers, (*before.launches, launch), tile)


@dataclass(frozen=True)
class Tiles:
    """``tiny``: the tile for a quick run on a simulator. ``model``: the tile for counts on a
    simulator. On a GPU: ``production(problem)`` if given; else the tile that the cost model
    ``heuristic`` chooses (:mod:`convlab.ladder.tile_heuristic`); else the paper's tile."""

    tiny: Tile
    model: Tile = Tile(32, 64, 16, 4, 4)
    heuristic: str | None = None
    production: Callable[[Any], Tile] | None = None


@dataclass(frozen=True)
class Requirement:
    """The compute capability that a GPU must have (or exceed unless ``exact``), and its use."""

    capability: Capability
    feature: str
    exact: bool = False


@dataclass(frozen=True)
class Stage:
    """One step of the ladder: one kernel idea, one file; ``module`` is the file's ``__name__``.

    ``prepare(problem, tile)`` makes the :class:`Program`, allocates nothing and imports no engine.
    Its further arguments say what else the stage can do. ``switches`` are True by default, and
    False turns a technique off; ``options`` are False by default. ``workspace_limit``, in bytes,
    takes fewer images at a time (``in_slices``); ``splits`` blocks share each sum (split-K).
    ``vectorized`` claims 128-bit accesses of the main kernel; ``precision`` is ``fp32`` or
    ``3xtf32``. Without split-K, a stage adds to an output atomically ``atomic_additions(problem)``
    times; each may flush a denormal. Without ``grouped``, groups are a ``ValueError``."""

    module: str
    title: str
    source: str
    builds_on: tuple[str, ...]
    prepare: Callable[..., Program]
    tiles: Tiles | None = None
    vectorized: bool = False
    precision: str = "fp32"
    requires: Requirement | None = None
    atomic_additions: Callable[[Any], int] = lambda problem: 0
    grouped: bool = False

    def __post_init__(self) -> None:
        if not self.grouped:
            object.__setattr__(self, "prepare", _of_one_group(self.name, self.prepare))

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    def _arguments_that_are(self, default: bool) -> tuple[str, ...]:
        known = inspect.signature(self.prepare).parameters.values()
        return tuple(one.name for one in known if one.default is default)

    @property
    def switches(self) -> tuple[str, ...]:
        return self._arguments_that_are(True)

    @property
    def options(self) -> tuple[str, ...]:
        return self._arguments_that_are(False)

    @property
    def in_slices(self) -> bool:
        return "workspace_limit" in inspect.signature(self.prepare).parameters

    @cached_property
    def needs_library(self) -> bool:
        program = self.prepare(ConvProblem(1, 1, 1, 1, 1, 1), self.tiny_tile)
        return any(isinstance(step, LibraryCall) for step in program.launches)

    @property
    def tiny_tile(self) -> Tile | None:
        return self.tiles.tiny if self.tiles else None

    @property
    def model_tile(self) -> Tile | None:
        return self.tiles.model if self.tiles else None

    def runs_on(self, capability: Capability | None) -> bool:
        """Return whether a GPU of that compute capability can run the stage.

        None is a simulator, which can.
        """
        if capability is None or self.requires is None or capability == self.requires.capability:
            return True
        return capability > self.requires.capability and not self.requires.exact


def _of_one_group(name: str, prepare: Callable[..., Program]) -> Callable[..., Program]:
    @wraps(prepare)
    def checked(problem: ConvProblem, *arguments: object, **more: object) -> Program:
        if problem.groups > 1:
            rule = f"it must be 1 for stage {name}; stage 'grouped' computes any number"
            raise ValueError(f"groups is {problem.groups}: {rule}")
        return prepare(problem, *arguments, **more)

    return checked


def blocks_for(total: int, per_block: int) -> int:
    """Return the number of blocks that cover ``total`` elements: the quotient, rounded up."""
    return -(-total // per_block)
