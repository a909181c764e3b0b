"""What PyTorch's baselines share: tensors, streams, precision, memory, the kernels that ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, ClassVar

import numpy as np

from convlab.bench.baselines.base import Singles, Unsupported, why_no_library
from convlab.problem import ConvProblem

TOO_MANY_ELEMENTS = "canUse32BitIndexMath"  # what PyTorch says where a kernel counts in 32 bits
MOST_KERNELS = 4  # named in ``algorithm``, the longest first
LONGEST_NAME = 100

Compute = Callable[[], Any]
"""Starts one convolution; returns the output, a tensor of the problem's output shape."""
Make = Callable[[ConvProblem, Any, Any], Compute]
"""Makes that for a problem, its input and its weight, tensors on the device."""


@cache
def why_no_torch() -> str | None:
    """Why PyTorch cannot run on a GPU here, in one sentence; None when it can."""
    return why_no_library("torch", "PyTorch", "torch")


class OnTorch:
    """A computation of PyTorch's made ready for one problem: on the GPU, on the CPU without one.

    ``tf32`` lets cuDNN and cuBLAS take tensor cores. ``channels_last`` is the layout of input,
    weight and so the output, before the clock starts. cuDNN may try its kernels (``benchmark``) in
    the first run, which happens here; without ``cudnn`` PyTorch convolves by its own code.
    ``algorithm`` begins with the ``note``.
    """

    capturable = True
    # Setting precision and library takes microseconds, which would count in every call. So PyTorch
    # keeps the settings of one computation, the holder, until another runs or the holder closes.
    _holder: ClassVar[OnTorch | None] = None
    _held: ClassVar[ExitStack] = ExitStack()

    def __init__(
        self,
        name: str,
        problem: ConvProblem,
        input: Singles,
        weight: Singles,
        make: Make,
        *,
        tf32: bool = False,
        channels_last: bool = False,
        cudnn: bool = True,
        note: str | None = None,
    ) -> None:
        import torch

        self._name, self._note = name, note
        self._flags = {"tf32": tf32, "cudnn": cudnn}
        self._torch, self._device = torch, None
        if torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())
            torch.mm(*torch.ones(2, 1, 1, device=self._device))  # cuBLAS's own memory, once
        self._compute: Compute | None = None
        self._output: Any = None
        try:
            x, w = (self._tensor(array, channels_last) for array in (input, weight))
            before = self._requested("current")
            self._compute = make(problem, x, w)
            self.run()
            self.workspace_bytes: int | None = self._measured_workspace(before)
        except BaseException as error:
            self.close()
            if TOO_MANY_ELEMENTS in str(error):
                raise Unsupported(
                    f"{name}: PyTorch's kernel for it takes no tensors of 2**31 elements and more"
                ) from None
            if isinstance(error, torch.OutOfMemoryError):
                raise MemoryError(f"{name}: {str(error).split(' If ')[0]}") from None
            raise

    def _tensor(self, array: Singles, channels_last: bool) -> Any:
        torch = self._torch
        memory = torch.channels_last if channels_last else torch.contiguous_format
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(self._device, copy=True).contiguous(memory_format=memory)

    def _requested(self, when: str) -> int:
        """Bytes that PyTorch's allocator was asked for: ``current`` or ``peak``."""
        if self._device is None:
            return 0
        return int(self._torch.cuda.memory_stats(self._device)[f"requested_bytes.all.{when}"])

    def _measured_workspace(self, before: int) -> int | None:
        """What a run has allocated at its peak beyond ``before`` and its output."""
        if self._device is None:
            return None
        self._output = None
        self._torch.cuda.reset_peak_memory_stats(self._device)
        self.run()
        self._synchronize()
        output = self._output.numel() * self._output.element_size()
        return max(0, self._requested("peak") - before - int(output))

    def run(self, stream: int | None = None) -> None:
        if self._compute is None:
            raise RuntimeError(f"{self._name} has been closed")
        self._output = None  # so that its memory is there to be taken again
        if OnTorch._holder is not self:
            self._restore_settings()
            OnTorch._held.enter_context(flags(**self._flags))
            OnTorch._holder = self
        with self._on(stream):
            self._output = self._compute()

    @staticmethod
    def _restore_settings() -> None:
        OnTorch._holder = None
        OnTorch._held.close()

    def _on(self, stream: int | None) -> AbstractContextManager[Any]:
        if self._device is None:
            return nullcontext()
        cuda = self._torch.cuda
        # PyTorch takes the handle 0 for "any new stream", not for CUDA's default one.
        chosen = (
            cuda.ExternalStream(stream, self._device)
            if stream
            else cuda.default_stream(self._device)
        )
        context: AbstractContextManager[Any] = cuda.stream(chosen)
        return context

    def poison(self) -> None:
        self._synchronize()
        self._output.fill_(float("nan"))
        self._synchronize()

    def output(self) -> Singles:
        self._synchronize()
        output: Singles = self._output.cpu().numpy()
        return output

    @property
    def algorithm(self) -> str | None:
        """The kernels of one run, the longest first, by PyTorch's profiler, behind the ``note``;
        None where there is neither. Profiling may slow down what follows: ask after timing."""
        if self._device is None:
            return self._note
        profiler = self._torch.profiler
        self._synchronize()
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            self.run()
            self._synchronize()
        spent: dict[str, float] = {}
        for event in profile.events():
            if event.device_type == self._torch.autograd.DeviceType.CUDA:
                spent[event.name] = spent.get(event.name, 0.0) + event.device_time_total
        names = sorted(spent, key=spent.__getitem__, reverse=True)
        kernels = "; ".join(name[:LONGEST_NAME] for name in names[:MOST_KERNELS])
        return ": ".join(filter(None, (self._note, kernels))) or None

    def _synchronize(self) -> None:
        if self._device is not None:
            self._torch.cuda.synchronize(self._device)

    def close(self) -> None:
        self._compute = self._output = None
        if OnTorch._holder is self:
            self._restore_settings()
        if self._device is not None:
            self._torch.cuda.empty_cache()


@contextmanager
def flags(tf32: bool, cudnn: bool = True) -> Iterator[None]:
    """fp32 or TF32 in cuDNN and cuBLAS, and cuDNN's choice by trial or no cuDNN, inside the
    ``with``."""
    import torch

    chosen = torch.backends.cudnn.flags(enabled=cudnn, benchmark=True, allow_tf32=tf32)
    with chosen, matmul_tf32(tf32):
        yield


@contextmanager
def matmul_tf32(allowed: bool) -> Iterator[None]:
    """TF32 in cuBLAS or not, inside the ``with``; by PyTorch's older name, as cuDNN's flags are."""
    import torch

    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def padded(problem: ConvProblem, x: Any) -> tuple[Callable[[], Any], tuple[int, int]]:
    """A function that returns the input to convolve, and the padding that is left to do.

    PyTorch pads both ends of an axis alike. Where the problem does not, the function pads at each
    call, and its copy counts in the time.
    """
    import torch

    (top, bottom), (left, right) = problem.padding
    if top == bottom and left == right:
        return lambda: x, (top, left)
    return lambda: torch.nn.functional.pad(x, (left, right, top, bottom)), (0, 0)
