"""What a stage is: its kernels, buffers, launches and tiles, described and not yet run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from typing import Any

from convlab.problem import ConvProblem

Grid = tuple[int, ...]
Capability = tuple[int, int]  # a GPU's compute capability: (9, 0) is 9.0
TENSOR_NDIM = {"input": 4, "weight": 4, "bias": 1, "output": 4}
SHARED_BYTES = 48 * 1024  # the static shared memory of a block
GRID_LIMIT = (2**31 - 1, 65535, 65535)  # CUDA's largest grid in x, y and z


@dataclass(frozen=True)
class Tile:
    """Block tile ``M_B x N_B x K_B`` and thread tile ``M_T x N_T`` (im2win paper, Algorithm 3).

    A block computes M_B output channels of N_B output pixels, K_B terms of the sum at a time; a
    thread computes M_T x N_T of them. The block has ``M_B/M_T * N_B/N_T`` threads.

    Raises ``ValueError`` when a size is not positive, does not divide, or makes too many threads.
    """

    M_B: int
    N_B: int
    K_B: int
    M_T: int = 1
    N_T: int = 1

    def __post_init__(self) -> None:
        for field in fields(self):
            size = getattr(self, field.name)
            if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
                raise ValueError(f"tile {field.name} is {size!r}: it must be a positive integer")
            object.__setattr__(self, field.name, int(size))  # NumPy's integers become Python's
        for block, thread in (("M_B", "M_T"), ("N_B", "N_T")):
            if getattr(self, block) % getattr(self, thread):
                raise ValueError(
                    f"tile {self}: {block} must be a multiple of {thread}, because every thread "
                    "computes as much as the others"
                )
        if self.threads > 1024:
            raise ValueError(f"tile {self} needs {self.threads} threads: a block has at most 1024")

    @property
    def rows(self) -> int:
        """Threads along M."""
        return self.M_B // self.M_T

    @property
    def columns(self) -> int:
        """Threads along N."""
        return self.N_B // self.N_T

    @property
    def threads(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.M_B}x{self.N_B}x{self.K_B}/{self.M_T}x{self.N_T}"

    def require_shared_memory(self, elements: int) -> None:
        """Raise ``ValueError`` when a kernel's shared arrays do not fit CUDA's 48 KiB."""
        self.require(
            4 * elements <= SHARED_BYTES,
            f"its slices take {4 * elements} bytes, and shared memory has {SHARED_BYTES}",
        )

    def require(self, holds: bool, rule: str) -> None:
        """Raise ``ValueError`` naming this tile and the rule a stage needs unless it holds."""
        if not holds:
            raise ValueError(f"tile {self}: {rule}")


@dataclass(frozen=True)
class Buffer:
    """Device memory that a stage needs beside input, weight, bias and output: float32, named."""

    name: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class Images:
    """A tensor by name, of which a step sees the images ``start`` to ``stop - 1`` alone."""

    name: str
    start: int
    stop: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Flat:
    """A step's argument seen as one row of elements: ``array.reshape(-1)``."""

    of: str | Images

    def __str__(self) -> str:
        return str(self.of)


Argument = str | Images | Flat
SOURCES = ("input", "weight", "bias")  # the names of what no step may write to


@dataclass(frozen=True)
class Launch:
    """One kernel launch. Arguments are names: ``input``, ``weight``, ``bias``, ``output`` or a
    buffer's; ``Flat(name)`` is the same memory with one dimension, ``Images(name, 0, 4)`` a part.

    Raises ``ValueError`` for a grid larger than CUDA's largest.
    """

    kernel: Any
    grid: Grid
    block: Grid
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """The kernel's own name."""
        return str(self.kernel.py_func.__name__)

    def __post_init__(self) -> None:
        for axis, size, limit in zip("xyz", self.grid, GRID_LIMIT, strict=False):
            if size > limit:
                raise ValueError(
                    f"{self.name} needs {size} blocks along {axis}: a CUDA grid has at most {limit}"
                )


@dataclass(frozen=True)
class LibraryCall:
    """A step that an array library does instead of a kernel: ``function(library, *arrays)``, where
    ``library`` is NumPy on a simulator, PyTorch or CuPy on a GPU, and the arrays are its own.
    """

    function: Callable[..., None]
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        """The function's own name."""
        return str(getattr(self.function, "__name__", self.function))


Step = Launch | LibraryCall


@dataclass(frozen=True)
class Program:
    """A stage made ready for one problem: what to allocate, then what to launch, in order.

    ``tile`` is the one its last launch, the main kernel, was made with.
    """

    buffers: tuple[Buffer, ...]
    launches: tuple[Step, ...]
    tile: Tile | None = None

    @property
    def kernels(self) -> tuple[Launch, ...]:
        """One launch of each kernel, in order: what there is to compile. Library calls are none."""
        found = {id(step.kernel): step for step in self.launches if isinstance(step, Launch)}
        return tuple(found.values())

    @property
    def workspace_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def ndim(self, argument: Argument) -> int:
        """Dimensions of the array that a kernel gets for an argument."""
        if isinstance(argument, Flat):
            return 1
        name = str(argument)
        shapes = {buffer.name: buffer.shape for buffer in self.buffers}
        return len(shapes[name]) if name in shapes else TENSOR_NDIM[name]


@dataclass(frozen=True)
class Tiles:
    """The tiles of a stage. ``production(problem)`` is the one for a GPU, ``tiny`` one that a
    simulator runs in a blink, ``model`` the GPU's in small, for counting: as much larger from stage
    to stage as that. ``candidates(problem)`` are those that a tuner measures, where there is a
    choice: ``production`` then also takes the GPU's ``sm_count``, and the stage's options, because
    a tile may suit with one what it does not suit without.
    """

    production: Callable[..., Tile]
    tiny: Tile
    model: Tile
    candidates: Callable[[ConvProblem], tuple[Tile, ...]] | None = None


@dataclass(frozen=True)
class Requirement:
    """What a GPU must have: a compute capability, (8, 0) for 8.0, or a higher one, unless
    ``exact``; ``feature`` says what for."""

    capability: Capability
    feature: str
    exact: bool = False

    def met_by(self, capability: Capability | None) -> bool:
        """Whether a GPU of that compute capability has it; None is a simulator's, which has."""
        if capability is None:
            return True
        return capability == self.capability if self.exact else capability >= self.capability


@dataclass(frozen=True)
class Stage:
    """One step of the ladder: one kernel idea, one file.

    ``module`` is the file's ``__name__``, whose last part is the stage's ``name``.
    ``prepare(problem, tile)`` makes the :class:`Program`. Its further arguments say what else the
    stage can do: a technique that can be left out is True by default (``switches``), something to
    ask for is False (``options``). With ``workspace_limit``, in bytes, the stage takes as many
    images at a time as fit (``in_slices``); with ``sm_count`` it splits sums among as many blocks
    as suit a GPU of so many SMs (``splits_sums``).

    ``vectorized`` claims 128-bit accesses of the main kernel. ``precision`` is ``fp32``, or
    ``3xtf32`` where three products of TF32 make one to float32 accuracy.
    ``atomic_additions(problem)`` is how often something is added atomically to each output: GPUs
    flush denormals there, which the check of the answer has to allow for.
    """

    module: str
    title: str
    source: str
    builds_on: tuple[str, ...]
    prepare: Callable[..., Program]
    tiles: Tiles | None = None
    vectorized: bool = False
    precision: str = "fp32"
    requires: Requirement | None = None
    atomic_additions: Callable[[ConvProblem], int] = lambda problem: 0

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    @cached_property
    def _arguments(self) -> dict[str, Any]:
        """The default of each further argument of ``prepare``."""
        known = inspect.signature(self.prepare).parameters
        return {name: known[name].default for name in [*known][2:]}

    @property
    def switches(self) -> tuple[str, ...]:
        return tuple(name for name, default in self._arguments.items() if default is True)

    @property
    def options(self) -> tuple[str, ...]:
        return tuple(name for name, default in self._arguments.items() if default is False)

    @property
    def in_slices(self) -> bool:
        return "workspace_limit" in self._arguments

    @property
    def splits_sums(self) -> bool:
        return "sm_count" in self._arguments

    @cached_property
    def needs_library(self) -> bool:
        """Whether some step is a :class:`LibraryCall`."""
        program = self.prepare(ConvProblem(1, 1, 1, 1, 1, 1), self.tiny_tile)
        return any(isinstance(step, LibraryCall) for step in program.launches)

    @property
    def tiny_tile(self) -> Tile | None:
        return None if self.tiles is None else self.tiles.tiny

    @property
    def model_tile(self) -> Tile | None:
        return None if self.tiles is None else self.tiles.model

    def with_tile(self, tile: Tile | None) -> Stage:
        """The stage with that tile as its tiny one and its model; itself where there are none."""
        if self.tiles is None or tile is None:
            return self
        return replace(self, tiles=replace(self.tiles, tiny=tile, model=tile))

    def candidates(self, problem: ConvProblem) -> tuple[Tile, ...]:
        """The tiles that a tuner measures; none where there is nothing to choose."""
        if self.tiles is None or self.tiles.candidates is None:
            return ()
        return self.tiles.candidates(problem)

    def production_tile(
        self, problem: ConvProblem, sm_count: int | None = None, **options: bool
    ) -> Tile | None:
        """The tile for a GPU, of so many SMs where that is known; None without tiles."""
        if self.tiles is None:
            return None
        if self.tiles.candidates is None:
            return self.tiles.production(problem)
        known = {} if sm_count is None else {"sm_count": sm_count}
        return self.tiles.production(problem, **known, **options)

    def runs_on(self, capability: Capability | None) -> bool:
        """Whether a GPU of that compute capability can run it; None is a simulator's, and can."""
        return self.requires is None or self.requires.met_by(capability)

    def allowances(self, problem: ConvProblem) -> dict[str, Any]:
        """What a check of the answer has to know of this stage's arithmetic: arguments of
        ``Oracle.check``."""
        return {
            "atomic_additions": self.atomic_additions(problem),
            "split_products": self.precision == "3xtf32",
        }


def why_too_old(stages: Iterable[Stage], capability: Capability | None, gpu: str) -> str | None:
    """Which of the stages a GPU of that name and compute capability cannot run, and what they need,
    in one sentence; None where it runs them all."""
    if capability is None:
        return None
    needed: dict[str, list[str]] = {}
    for stage in stages:
        if (must := stage.requires) is not None and not must.met_by(capability):
            what = f"a GPU of compute capability {_dotted(must.capability)}"
            what += ", no other" if must.exact else " or higher"
            what += f", for {must.feature}: {gpu} has {_dotted(capability)}"
            needed.setdefault(what, []).append(stage.name)
    sentences = [
        f"stage {names[0]} needs {what}"
        if len(names) == 1
        else f"stages {', '.join(names)} need {what}"
        for what, names in needed.items()
    ]
    return "; ".join(sentences) or None


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))


def blocks_for(total: int, per_block: int) -> int:
    """How many blocks of ``per_block`` cover ``total``: division rounded up."""
    return -(-total // per_block)


# What the stages with a micro-kernel are counted with.
MODEL_TILE = Tile(M_B=32, N_B=64, K_B=16, M_T=4, N_T=4)


def microkernel_tile(problem: ConvProblem) -> Tile:
    """The production tile of the first stages with a micro-kernel (s07, s08, s09).

    The paper's own sizes (128 x 128 x 8, 8 x 8 a thread), but 64 rows where 128 would leave at
    least a quarter of all rows computing channels that do not exist, and 64 leave fewer.
    """
    rows_of_128, rows_of_64 = (-(-problem.M // size) * size for size in (128, 64))
    wasteful = 4 * (rows_of_128 - problem.M) >= rows_of_128
    M_B = 64 if wasteful and rows_of_64 < rows_of_128 else 128
    return Tile(M_B=M_B, N_B=128, K_B=8, M_T=8, N_T=8)
