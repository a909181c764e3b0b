"""Tile sizes: what a block and a thread compute at a time."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral

from convlab.problem import ConvProblem

SHARED_BYTES = 48 * 1024  # the static shared memory of a block


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
