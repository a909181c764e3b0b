"""The records that describe a stage: its kernels, buffers, launches and tiles.

Over 400 lines, because a stage's file needs nearly all of them, and imports them from one place.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from numbers import Integral
from types import FunctionType
from typing import Any, Protocol

from convlab.device import BoxMap, WindowMap
from convlab.problems.problem import ConvProblem
from convlab.support.values import integer, shown

Grid = tuple[int, ...]
Capability = tuple[int, int]  # a GPU's compute capability: (9, 0) is 9.0
SHARED_BYTES = 48 * 1024  # the static shared memory of a block
MOST_SHARED_BYTES = 227 * 1024  # static and dynamic together, on the GPUs that have the most
ITEM_BYTES = {"float32": 4, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8}  # by Numba's names
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
            if type(size) is int and 0 < size < 2**31:
                continue  # at once, as a check makes tens of thousands of tiles to choose from
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
        """The number of threads along M."""
        return self.M_B // self.M_T

    @property
    def columns(self) -> int:  # threads along N
        """The number of threads along N."""
        return self.N_B // self.N_T

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
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
        """Raise ``ValueError`` unless that many float32 fit the static shared memory of a block."""
        rule = f"its slices take {4 * elements} bytes, and shared memory has {SHARED_BYTES}"
        self.require(self.fits(elements), rule)

    def require_float4s(self, *names: str) -> None:
        """Raise ``ValueError`` unless these sizes of the tile are multiples of 4."""
        whole = all(getattr(self, name) % 4 == 0 for name in names)
        rule = "must be multiples of 4, because one access moves four numbers"
        self.require(whole, f"{', '.join(names[:-1])} and {names[-1]} {rule}")

    def require(self, holds: bool, rule: str) -> None:
        """Raise ``ValueError`` with this tile and the rule unless ``holds``."""
        if not holds:
            raise ValueError(f"tile {self}: {rule}")


@dataclass(frozen=True)
class Buffer:
    """Device memory of a stage beside input, weight, bias and output, named. ``dtype`` is one of
    ``ITEM_BYTES``; raises ``ValueError`` for another."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            must = f"it must be one of {', '.join(ITEM_BYTES)}"
            raise ValueError(f"dtype of buffer {self.name} is {shown(self.dtype)}: {must}")

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer."""
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


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


# Of a tensor map, which names its array, a kernel gets 16 uint64.
Argument = str | Images | Flat | BoxMap | WindowMap
SOURCES = ("input", "weight", "bias")
RESIDUAL = "residual"  # the option of stages that can add a tensor, and the name of that tensor
READ_ONLY = (*SOURCES, RESIDUAL)  # what no step may write to
CHANNELS = ("in_channels", "out_channels")  # of a problem


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Arguments are names: ``input``, ``weight``, ``bias``, ``residual``,
    ``output`` or a buffer's, or parts or tensor maps of these arrays. The kernel's last parameters
    may have defaults and no argument. ``shared_bytes`` is the dynamic shared memory of a block.
    Raises ``ValueError`` for a grid larger than CUDA's, or more shared memory than a block has."""

    kernel: Kernel
    grid: Grid
    block: Grid
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0

    @property
    def name(self) -> str:
        """The name of the kernel."""
        return str(self.kernel.py_func.__name__)

    def __post_init__(self) -> None:
        for axis, size, most in zip("xyz", self.grid, GRID_LIMIT, strict=False):
            if size > most:
                where = f"{self.name} needs {size} blocks along {axis}"
                raise ValueError(f"{where}: a CUDA grid has at most {most}")
        if integer("shared_bytes", self.shared_bytes, at_least=0) > MOST_SHARED_BYTES:
            rule = f"a block of {self.name} has at most {MOST_SHARED_BYTES}"
            raise ValueError(f"shared_bytes is {self.shared_bytes}: {rule}")


@dataclass(frozen=True)
class LibraryCall:
    """A step that an array library does: ``function(library, *arrays)``. The library and its arrays
    are NumPy's on a simulator, PyTorch's or CuPy's on a GPU."""

    function: Callable[..., None]
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", self.function))


Step = Launch | LibraryCall


@dataclass(frozen=True)
class Program:
    """A stage made ready for one problem: what to allocate, then what to launch, in order. ``tile``
    is that of its last launch, the main kernel. ``tensors`` is the type as which kernels get input,
    weight, bias and output (``NumberType.in_kernels``); a stage's ``prepare`` need not set it."""

    buffers: tuple[Buffer, ...]
    launches: tuple[Step, ...]
    tile: Tile | None = None
    tensors: str = "float32"

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """One launch of each kernel, in order: what there is to compile."""
        found = {id(step.kernel): step for step in self.launches if isinstance(step, Launch)}
        return tuple(found.values())

    @property
    def dtypes(self) -> dict[str, str]:
        """The types of all arrays in kernels, by their names."""
        named = {str(argument) for step in self.launches for argument in step.arguments}
        tensors = dict.fromkeys((*SOURCES, "output", *named & {RESIDUAL}), self.tensors)
        return tensors | {buffer.name: buffer.dtype for buffer in self.buffers}

    @property
    def workspace_bytes(self) -> int:
        """The bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)


def tile_program(
    problem: ConvProblem,
    tile: Tile,
    kernel: Kernel,
    before: Program = Program((), ()),
    flat: tuple[str, ...] = ("input", "windows", "weight", "packed", "residual", "output"),
    splits: Grid = (),
    shared_bytes: int = 0,
    optional: tuple[str, ...] = (),
) -> Program:
    """The program of ``before``, a stage's layout transforms, and of the kernel, a block for each
    tile. The kernel's parameters name its arguments; those in ``flat`` have one dimension. Of
    parameters with defaults, the launch gives those in ``optional``, which come first."""
    parameters = inspect.signature(kernel.py_func).parameters.values()
    given = [one for one in parameters if one.default is one.empty or one.name in optional]
    arguments = tuple(Flat(one.name) if one.name in flat else one.name for one in given)
    grid = (blocks_for(problem.N, tile.N_B), blocks_for(problem.M, tile.M_B), *splits)
    launch = Launch(kernel, grid, (tile.threads,), arguments, shared_bytes)
    return replace(before, launches=(*before.launches, launch), tile=tile)


@dataclass(frozen=True)
class Tiles:
    """``tiny``: the tile for a quick run on a simulator. ``model``: the tile for counts on a
    simulator. On a GPU: ``production(problem)`` if given, or ``production(problem, sm_count)`` if
    it has this argument, the number of SMs; else the tile that the cost model ``heuristic`` chooses
    (:mod:`convlab.ladder.tile_heuristic`); else the paper's tile."""

    tiny: Tile
    model: Tile = Tile(32, 64, 16, 4, 4)
    heuristic: str | None = None
    production: Callable[..., Tile] | None = None


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
    takes fewer images at a time (``in_slices``); ``splits`` blocks share each sum (split-K);
    ``sm_count`` is the number of the GPU's SMs, for a grid of about one block per SM.
    ``vectorized`` claims 128-bit accesses of the main kernel; ``precision`` is that of float32
    problems: ``fp32``, ``3xtf32`` or ``tf32``; ``cuts_to_tf32`` leaves it to the tensor cores to
    make TF32 of float32, by cutting bits instead of rounding. Without split-K, a stage adds to an
    output atomically ``atomic_additions(problem)`` times; each may flush a denormal. The stage
    takes problems of ``dtypes``, only those with ``channels_last`` if it is True, only others if it
    is False, those with groups if ``grouped``, and numbers of input and output channels that are
    ``channel_multiples``, unless ``limit(problem)`` says why not; ``prepare`` raises ``ValueError``
    for others."""

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
    dtypes: tuple[str, ...] = ("float32",)
    channels_last: bool = False
    channel_multiples: tuple[int, int] = (1, 1)
    limit: Callable[[Any], str | None] = lambda problem: None
    cuts_to_tf32: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "prepare", _checked(self, self.prepare))

    @property
    def name(self) -> str:
        """The name of the stage's file, such as ``m01_direct``."""
        return self.module.rpartition(".")[2]

    def _arguments_that_are(self, default: bool) -> tuple[str, ...]:
        known = inspect.signature(self.prepare).parameters.values()
        return tuple(one.name for one in known if one.default is default)

    @property
    def switches(self) -> tuple[str, ...]:
        """The arguments of ``prepare`` that can be turned off: those with True as their default."""
        return self._arguments_that_are(True)

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments of ``prepare`` that can be turned on: those with False as their default."""
        return self._arguments_that_are(False)

    @property
    def in_slices(self) -> bool:
        """True if the stage can compute slices of a batch, so that their workspace is within a
        limit."""
        return takes(self.prepare, "workspace_limit")

    @cached_property
    def needs_library(self) -> bool:
        """True if an array library does one of the program's steps."""
        program = self.prepare(self.adapted(ConvProblem(1, 1, 1, 1, 1, 1)), self.tiny_tile)
        return any(isinstance(step, LibraryCall) for step in program.launches)

    @property
    def tiny_tile(self) -> Tile | None:
        """The tile for simulators; None for a stage without tiles."""
        return self.tiles.tiny if self.tiles else None

    @property
    def model_tile(self) -> Tile | None:
        """The tile with which the ladder counts memory traffic; None for a stage without tiles."""
        return self.tiles.model if self.tiles else None

    def precision_on(self, problem: ConvProblem) -> str:
        """Return the arithmetic of a problem's products: ``precision``, or ``fp16`` or ``bf16``."""
        return {"float16": "fp16", "bfloat16": "bf16"}.get(problem.dtype, self.precision)

    def why_not(self, problem: ConvProblem) -> str | None:
        """Return why the stage does not take a problem of that type, layout, groups or channels, in
        one sentence that names the argument; None if it takes it."""
        if problem.dtype not in self.dtypes:
            must = " or ".join(self.dtypes)
            return f"dtype is {problem.dtype}: it must be {must} for stage {self.name}"
        if problem.channels_last is not self.channels_last:
            must = f"it must be {self.channels_last} for stage {self.name}"
            return f"channels_last is {problem.channels_last}: {must}"
        if problem.groups > 1 and not self.grouped:
            rule = f"it must be 1 for stage {self.name}; stage 'grouped' computes any number"
            return f"groups is {problem.groups}: {rule}"
        for name, multiple in zip(CHANNELS, self.channel_multiples, strict=True):
            # A gradient has other channels; its stages take any number.
            if multiple > 1 and (channels := getattr(problem, name)) % multiple:
                rule = f"it must be a multiple of {multiple} for stage {self.name}"
                return f"{name} is {channels}: {rule}"
        return self.limit(problem)

    def adapted(self, problem: ConvProblem) -> ConvProblem:
        """Return the problem with a type, the layout and numbers of channels that the stage takes:
        the next larger ones."""
        if self.why_not(problem) is None:
            return problem
        dtype = problem.dtype if problem.dtype in self.dtypes else self.dtypes[0]
        of_input, of_output = (
            blocks_for(getattr(problem, name), multiple) * multiple
            for name, multiple in zip(CHANNELS, self.channel_multiples, strict=True)
        )
        return replace(
            problem,
            in_channels=of_input,
            out_channels=of_output,
            dtype=dtype,
            channels_last=self.channels_last,
        )

    def runs_on(self, capability: Capability | None) -> bool:
        """Return whether a GPU of that compute capability can run the stage.

        None is a simulator, which can.
        """
        if capability is None or self.requires is None or capability == self.requires.capability:
            return True
        return capability > self.requires.capability and not self.requires.exact


def takes(function: Callable[..., object], argument: str) -> bool:
    """Return whether a function has an argument of that name."""
    return argument in inspect.signature(function).parameters


def sms_for(function: Callable[..., object], sm_count: int | None) -> dict[str, int]:
    """Return ``{"sm_count": n}`` for a function that has this argument; empty for any other
    function, and where the number is unknown."""
    if sm_count is None or not takes(function, "sm_count"):
        return {}
    return {"sm_count": sm_count}


def _checked(stage: Stage, prepare: Callable[..., Program]) -> Callable[..., Program]:
    """Return ``prepare`` with a check of the problem; its programs know their tensors' type."""

    @wraps(prepare)
    def checked(problem: ConvProblem, *arguments: object, **more: object) -> Program:
        if (reason := stage.why_not(problem)) is not None:
            raise ValueError(reason)
        program = prepare(problem, *arguments, **more)
        tensors = problem.number_type.in_kernels
        return program if program.tensors == tensors else replace(program, tensors=tensors)

    return checked


def blocks_for(total: int, per_block: int) -> int:
    """Return the number of blocks that cover ``total`` elements: the quotient, rounded up."""
    return -(-total // per_block)
