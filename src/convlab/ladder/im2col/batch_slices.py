"""A batch in slices of images, for a stage whose workspace for the whole batch is too large."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from convlab.ladder.stage import Argument, Buffer, Flat, Images, Program, Step
from convlab.problems.problem import ConvProblem

PARTS_OF_A_BATCH = ("input", "output")


def in_slices(
    problem: ConvProblem,
    buffers: Callable[[ConvProblem], tuple[Buffer, ...]],
    steps: Callable[[ConvProblem], list[Step]],
    workspace_limit: int | None = None,
    images: int | None = None,
) -> Program:
    """The program of a batch in slices of that many images, or of as many as the limit in bytes
    allows. The last slice holds the remainder. ``buffers`` and ``steps`` take the problem of a
    slice: all slices use the memory of a whole one, and slices with equally many images share their
    kernels.

    Raises ``ValueError`` with the sizes when one image takes more than the limit.
    """
    images = images or most_images(problem, buffers, workspace_limit)
    starts = range(0, problem.N_i, images)
    slices = [(start, min(start + images, problem.N_i)) for start in starts]
    made = {n: steps(replace(problem, batch=n)) for n in {stop - start for start, stop in slices}}
    launches = [
        replace(step, arguments=tuple(_images_of(name, *slice_) for name in step.arguments))
        if len(slices) > 1
        else step
        for slice_ in slices
        for step in made[slice_[1] - slice_[0]]
    ]
    return Program(buffers(replace(problem, batch=min(images, problem.N_i))), tuple(launches))


def most_images(
    problem: ConvProblem,
    buffers: Callable[[ConvProblem], tuple[Buffer, ...]],
    workspace_limit: int | None,
) -> int:
    """Return the number of images that fit a workspace. Raises as :func:`in_slices`."""

    def nbytes(images: int) -> int:
        return sum(buffer.nbytes for buffer in buffers(replace(problem, batch=images)))

    if workspace_limit is None:
        return problem.N_i
    if nbytes(1) > workspace_limit:
        raise ValueError(
            f"workspace_limit is {workspace_limit}: one image alone takes {nbytes(1)} bytes, so it "
            "must be at least that"
        )
    return bisect_right(range(1, problem.N_i + 1), workspace_limit, key=nbytes)


def _images_of(argument: Argument, start: int, stop: int) -> Argument:
    if str(argument) not in PARTS_OF_A_BATCH:
        return argument
    part = Images(str(argument), start, stop)
    return Flat(part) if isinstance(argument, Flat) else part
