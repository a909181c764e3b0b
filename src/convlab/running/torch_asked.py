"""Convolutions as PyTorch's layers ask for them: checked settings, and what they ask for noted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from convlab.ladder import stage_named
from convlab.problems.arrays import dtype_name
from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.running.chosen_stages import AUTO_TF32
from convlab.running.compile_worker import Wanted
from convlab.support.values import shown


class Settings(NamedTuple):
    """The settings that all three operators share; ``padding`` is top, bottom, left, right."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int
    stage: str
    engine: str


class Asked(NamedTuple):
    """A convolution that a layer is asked for, with which options of its stage, and which gradients
    it will be asked for."""

    input_shape: tuple[int, ...]
    weight_shape: tuple[int, ...]
    settings: Settings
    gradients: tuple[Literal["input", "weight"], ...]
    dtype: str = "float32"
    options: tuple[str, ...] = ()

    def problem(self) -> ConvProblem:
        """Return the convolution. Raises ``ValueError`` where shapes and settings do not fit."""
        return problem_of(self.input_shape, self.weight_shape, self.settings, self.dtype)

    def wanted(self) -> list[Wanted]:
        """Return the convolution and its gradients as plans have them; nothing for no images."""
        if self.input_shape[0] == 0:
            return []
        forward = self.problem()
        floats = in_float32(forward)
        stage = self.settings.stage
        gradients = [Wanted(Gradient(floats, of), stage) for of in self.gradients]
        return [Wanted(forward, stage, options=self.options), *gradients]


def asked_for(images: Tensor, filters: Tensor, settings: Settings) -> Asked:
    """Return what a layer is asked for with these tensors."""
    needs: tuple[Literal["input", "weight"], ...] = ()
    if torch.is_grad_enabled():
        needs += ("input",) if images.requires_grad else ()
        needs += ("weight",) if filters.requires_grad else ()
    hashable = settings._replace(
        stride=tuple(settings.stride),
        padding=tuple(settings.padding),
        dilation=tuple(settings.dilation),
    )
    dtype = dtype_name(images)
    return Asked(tuple(images.shape), tuple(filters.shape), hashable, needs, dtype)


_noted: ContextVar[list[Asked] | None] = ContextVar("noted", default=None)


@contextmanager
def noted_convolutions() -> Iterator[list[Asked]]:
    """Inside, what this thread's layers are asked for is noted in the list."""
    noted: list[Asked] = []
    before = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(before)


def note(asked: Asked) -> bool:
    """Note what a layer is asked for; False where nobody wants to know."""
    if (noted := _noted.get()) is None:
        return False
    noted.append(asked)
    return True


def problem_of(
    input: Sequence[int],
    weight: Sequence[int],
    settings: Settings,
    dtype: str = "float32",
) -> ConvProblem:
    """Return the problem of these shapes and settings; ``ValueError`` where they do not fit. The
    channels are last for 16 bits, as the stages for these need them, and for a stage that is named
    and needs them."""
    check_dimensions(input, weight)
    check_channels(input, weight, settings.groups)
    N_i, C_i, H_i, W_i = input
    top_bottom, left_right = settings.padding[:2], settings.padding[2:]
    return ConvProblem(
        batch=max(1, N_i),
        in_channels=C_i,
        height=H_i,
        width=W_i,
        out_channels=weight[0],
        kernel_size=tuple(weight[2:]),
        stride=settings.stride,
        padding=(top_bottom, left_right),
        dilation=settings.dilation,
        groups=settings.groups,
        dtype=dtype,
        channels_last=dtype != "float32" or _has_channels_last(settings.stage),
    )


def _has_channels_last(stage: str) -> bool:
    """Return whether that name is a stage's whose tensors have their channels last."""
    return stage not in ("auto", AUTO_TF32) and stage_named(stage).channels_last


def in_float32(problem: ConvProblem) -> ConvProblem:
    """Return the problem as its gradients are computed: in float32, channels first."""
    return replace(problem, dtype="float32", channels_last=False)


def check_dimensions(input: Sequence[int], weight: Sequence[int]) -> None:
    """Raise ``ValueError`` unless both have four dimensions."""
    for name, shape in (("input", input), ("weight", weight)):
        if len(shape) != 4:
            raise ValueError(f"{name} has shape {shown((*shape,))}: it must have 4 dimensions")


def check_channels(input: Sequence[int], weight: Sequence[int], groups: int) -> None:
    """Raise ``ValueError`` unless input, of one image or several, has the weight's channels."""
    if input[1 - len(weight)] != weight[1] * groups:
        rule = f"it must have {weight[1] * groups} channels"
        raise ValueError(f"input has shape {shown((*input,))}: {rule}")
