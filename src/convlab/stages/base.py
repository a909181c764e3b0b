"""What a stage is: kernels, buffers and launch shapes, described and not yet run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from convlab.problem import ConvProblem
from convlab.stages.tiles import Tile

Grid = tuple[int, ...]
Capability = tuple[int, int]  # a GPU's compute capability: (9, 0) is 9.0
TENSOR_NDIM = {"input": 4, "weight": 4, "bias": 1, "output": 4}
GRID_LIMIT = (2**31 - 1, 65535, 65535)  # CUDA's largest grid in x, y and z


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
class Stage:
    """One step of the ladder: one kernel idea, one file.

    ``prepare(problem, tile)`` makes the :class:`Program`; ``production_tile(problem)`` is the tile
    for a GPU, ``tiny_tile`` one that a simulator runs in a blink, ``model_tile`` the GPU's in
    small, for counting: as much larger from stage to stage as that. Stages without tiles have None
    for all three. ``candidates(problem)`` are the tiles that a tuner measures, none where there is
    nothing to choose; ``production_tile`` of a stage that has some also takes the GPU's number of
    multiprocessors, and that of a stage with ``options`` takes these, because a tile may suit with
    one what it does not suit without. ``splits_sums`` says that ``prepare`` too takes the GPU's
    number of ``multiprocessors``, and splits sums among as many blocks as suit it.
    ``atomic_additions(problem)`` is how often something is added atomically to each output: GPUs
    flush denormals there, and the judge has to know. ``split_products`` says that products are of
    numbers split in two, on tensor cores, and so does it. ``needs_library`` says that some step is
    a :class:`LibraryCall`, ``in_slices`` that ``prepare`` takes a ``workspace_limit`` in bytes and
    then does as many images at a time as fit. ``switches`` are techniques that can be left out,
    ``options`` what can be asked for beyond the convolution: keyword arguments of ``prepare``, true
    or false. ``least_capability`` is the compute capability that a GPU must have to run the stage,
    ``capability_for`` what of it needs that, in words; None where any GPU will do. With
    ``exact_capability`` it must have just that, and a later GPU will not do either.
    """

    name: str
    title: str
    source: str
    builds_on: tuple[str, ...]
    module: str
    prepare: Callable[..., Program]
    production_tile: Callable[..., Tile | None] = lambda problem: None
    candidates: Callable[[ConvProblem], tuple[Tile, ...]] = lambda problem: ()
    tiny_tile: Tile | None = None
    model_tile: Tile | None = None
    vectorized: bool = False
    switches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    splits_sums: bool = False
    atomic_additions: Callable[[ConvProblem], int] = lambda problem: 0
    split_products: bool = False
    needs_library: bool = False
    in_slices: bool = False
    least_capability: Capability | None = None
    capability_for: str = ""
    exact_capability: bool = False

    @property
    def precision(self) -> str:
        """``fp32``, or ``3xtf32`` where three products of TF32 make one to float32 accuracy."""
        return "3xtf32" if self.split_products else "fp32"

    def runs_on(self, capability: Capability | None) -> bool:
        """Whether a GPU of that compute capability can run it; None is a simulator's, and can."""
        least = self.least_capability
        if least is None or capability is None:
            return True
        return capability == least if self.exact_capability else capability >= least

    def allowances(self, problem: ConvProblem) -> dict[str, Any]:
        """What the judge has to know of this stage's arithmetic: arguments of ``Oracle.judge``."""
        return {
            "atomic_additions": self.atomic_additions(problem),
            "split_products": self.split_products,
        }


def why_too_old(stages: Iterable[Stage], capability: Capability | None, gpu: str) -> str | None:
    """Which of the stages a GPU of that name and compute capability cannot run, and what they need,
    in one sentence; None where it runs them all."""
    if capability is None:
        return None
    needed: dict[str, list[str]] = {}
    for stage in stages:
        if (least := stage.least_capability) is not None and not stage.runs_on(capability):
            what = f"a GPU of compute capability {_dotted(least)}"
            what += ", no other" if stage.exact_capability else " or higher"
            what += f", for {stage.capability_for}: {gpu} has {_dotted(capability)}"
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
