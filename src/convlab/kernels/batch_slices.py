"""A batch in slices: as many images at a time as a limit of the workspace allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from convlab.problem import ConvProblem
from convlab.stage import Argument, Flat, Images, Step

PARTS_OF_A_BATCH = ("input", "output")
Slice = tuple[int, int]  # the first image, and the first that belongs to the next slice


def slices(
    problem: ConvProblem, nbytes: Callable[[ConvProblem], int], workspace_limit: int | None
) -> list[Slice]:
    """As few slices as the limit allows, all but the last alike; ``nbytes`` is the workspace that
    a problem takes.

    Raises ``ValueError`` with the sizes when one image takes more than the limit.
    """

    def fits(images: int) -> bool:
        return workspace_limit is None or nbytes(replace(problem, batch=images)) <= workspace_limit

    if not fits(1):
        raise ValueError(
            f"workspace_limit is {workspace_limit}: one image alone takes "
            f"{nbytes(replace(problem, batch=1))} bytes, so it must be at least that"
        )
    least, most = 1, problem.N_i  # how many images fit, by halving what is not known
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return slices_of(problem, least)


def slices_of(problem: ConvProblem, images: int) -> list[Slice]:
    """Slices of that many images; the last slice holds the remainder."""
    return [(start, min(start + images, problem.N_i)) for start in range(0, problem.N_i, images)]


def largest(problem: ConvProblem, parts: Sequence[Slice]) -> ConvProblem:
    """The problem of the largest slice, whose workspace serves them all."""
    return replace(problem, batch=parts[0][1] - parts[0][0])


def in_slices(
    problem: ConvProblem, parts: Sequence[Slice], make: Callable[[ConvProblem], list[Step]]
) -> list[Step]:
    """The steps that ``make`` returns for the problem of each slice, one slice after the other.
    Slices of as many images share their kernels: there are two sizes at most."""
    made = {size: make(replace(problem, batch=size)) for size in {b - a for a, b in parts}}
    return [
        _on_images(step, start, stop, problem)
        for start, stop in parts
        for step in made[stop - start]
    ]


def _on_images(step: Step, start: int, stop: int, problem: ConvProblem) -> Step:
    if stop - start == problem.N_i:
        return step

    def part(argument: Argument) -> Argument:
        if isinstance(argument, Flat):
            return Flat(Images(str(argument), start, stop)) if of_batch(argument) else argument
        return Images(str(argument), start, stop) if of_batch(argument) else argument

    def of_batch(argument: Argument) -> bool:
        return str(argument) in PARTS_OF_A_BATCH

    return replace(step, arguments=tuple(map(part, step.arguments)))
