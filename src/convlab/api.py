"""``conv2d`` and ``plan``: one convolution by any stage on any engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from convlab.engines import Engine, choose
from convlab.problem import ConvProblem, IntOrPair
from convlab.stages import Stage, Tile, stage_named
from convlab.stages.base import FLAT, Program

# What "auto" means until the best stage is chosen from the problem: the end of the ladder on a
# GPU; on a simulator, where every thread costs, the stage with the fewest and simplest.
AUTO_STAGE_GPU = "s11_im2win_full"
AUTO_STAGE_SIMULATOR = "s01_direct"


class Plan:
    """A stage prepared for a problem on an engine: kernels built, workspace allocated.

    Calling it launches the kernels and does nothing else, so that it can be captured in a CUDA
    graph. Made by :func:`plan`.
    """

    def __init__(
        self,
        problem: ConvProblem,
        stage: Stage,
        tile: Tile | None,
        engine: Engine,
        **switches: bool,
    ) -> None:
        self.problem, self.stage, self.engine = problem, stage, engine
        self.tile = tile or (stage.production_tile(problem) if engine.is_gpu else stage.tiny_tile)
        self.switches = switches
        self.program: Program = stage.prepare(problem, self.tile, **switches)
        _check_fits(f"stage {stage.name}'s workspace", self.workspace_bytes, engine)
        engine.build(self.program)
        self._own = {buffer.name: engine.empty(buffer.shape) for buffer in self.program.buffers}
        self._no_bias = engine.to_device(np.zeros(problem.out_channels, np.float32))

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the stage needs beside input, weight, bias and output."""
        return self.program.workspace_bytes

    def __call__(
        self, input: Any, weight: Any, out: Any, bias: Any = None, *, stream: Any = None
    ) -> Any:
        """Write the convolution of ``input`` and ``weight`` to ``out`` and return ``out``.

        All are the engine's arrays: float32, C-contiguous, of the problem's ``input_shape``,
        ``weight_shape``, ``(out_channels,)`` and ``output_shape``. Nothing is checked here
        (:func:`conv2d` checks). On a GPU the call returns before the work is done.
        """
        for step in self.steps(input, weight, out, bias):
            step(stream)
        return out

    def steps(
        self, input: Any, weight: Any, out: Any, bias: Any = None
    ) -> list[Callable[[Any], None]]:
        """One function of a stream for each launch, in the order of ``program.launches``."""
        bias = self._no_bias if bias is None else bias
        arrays = {"input": input, "weight": weight, "bias": bias, "output": out, **self._own}
        return [
            partial(self.engine.run, launch, [_pick(name, arrays) for name in launch.arguments])
            for launch in self.program.launches
        ]

    def __repr__(self) -> str:
        tile = "" if self.tile is None else f", tile {self.tile}"
        return f"Plan({self.problem}: {self.stage.name}{tile} on {self.engine.name})"


def plan(
    problem: ConvProblem,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    **switches: bool,
) -> Plan:
    """Prepare ``stage`` for ``problem``: build its kernels and allocate its workspace.

    ``tile=None`` takes the stage's production tile on a GPU and its tiny one on a simulator.
    ``switches`` turn off techniques of stages that have any (``Stage.switches``).

    Raises ``ValueError`` for an unknown stage, engine or switch or a tile that does not suit the
    stage, ``EngineUnavailable`` where the engine cannot run, ``MemoryError`` with the size where
    the workspace does not fit; all before anything is launched.
    """
    chosen = choose(engine)
    if stage == "auto":
        stage = AUTO_STAGE_GPU if chosen.is_gpu else AUTO_STAGE_SIMULATOR
    step = stage_named(stage)
    for name in switches:
        if name not in step.switches:
            known = ", ".join(step.switches) or "none"
            raise ValueError(f"switch {name!r} is not one of {step.name}'s: {known}")
    if tile is not None and step.tiny_tile is None:
        raise ValueError(f"tile is {tile}: stage {step.name} has no tiles, so it must be None")
    return Plan(problem, step, tile, chosen, **switches)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: IntOrPair = 1,
    padding: Any = 0,
    dilation: IntOrPair = 1,
    *,
    stage: str = "auto",
    tile: Tile | None = None,
    engine: str = "auto",
    out: Any = None,
) -> Any:
    """2-D convolution (cross-correlation) with the meaning of PyTorch's ``F.conv2d``.

    ``input`` is float32 of shape (N_i, C_i, H_i, W_i), ``weight`` (C_o, C_i, H_f, W_f), ``bias``
    (C_o,) or None: NumPy arrays or Numba device arrays, all of one kind. The result, float32 of
    shape (N_i, C_o, H_o, W_o), is of the same kind; ``out`` may give the array to write it to.

    Raises ``TypeError`` or ``ValueError`` naming the argument, its value and the rule, and what
    :func:`plan` raises; ``out`` is then untouched.
    """
    chosen = choose(engine)
    tensors = {"input": input, "weight": weight}
    given = {name: array for name, array in (("bias", bias), ("out", out)) if array is not None}
    on_device = _common_kind({**tensors, **given}, chosen)
    for name, array in tensors.items():
        _check_tensor(name, array, ndim=4)
    n, c, h, w = input.shape
    c_o, c_w, h_f, w_f = weight.shape
    if c_w != c:
        raise ValueError(
            f"weight has shape {tuple(weight.shape)}: its second size must be input's "
            f"{c} channels (convlab has no groups)"
        )
    problem = ConvProblem(n, c, h, w, c_o, (h_f, w_f), stride, padding, dilation)
    if bias is not None:
        _check_tensor("bias", bias, shape=(c_o,))
    if out is not None:
        _check_tensor("out", out, shape=problem.output_shape)
        _check_writable(out, {**tensors, "bias": bias})

    ready = plan(problem, stage, tile, engine)
    if on_device and not chosen.is_gpu:  # Numba's simulator keeps its device arrays on the host
        host_bias = None if bias is None else bias.copy_to_host()
        host = conv2d(
            input.copy_to_host(), weight.copy_to_host(), host_bias, stride, padding, dilation,
            stage=stage, tile=tile, engine=engine,
        )  # fmt: skip
        return _simulated_device_array(host, out)
    if on_device:
        result = chosen.empty(problem.output_shape) if out is None else out
        return ready(input, weight, result, bias)
    needed = 0 if not chosen.is_gpu else problem.least_bytes
    _check_fits("input, weight and output on the GPU", needed, chosen)
    device_bias = None if bias is None else chosen.to_device(bias)
    result = chosen.empty(problem.output_shape)
    ready(chosen.to_device(input), chosen.to_device(weight), result, device_bias)
    if out is None:
        return chosen.to_host(result)
    out[...] = chosen.to_host(result)
    return out


def _pick(argument: str, arrays: dict[str, Any]) -> Any:
    if argument.endswith(FLAT):
        return arrays[argument.removesuffix(FLAT)].reshape(-1)
    return arrays[argument]


def _check_fits(what: str, nbytes: int, engine: Engine) -> None:
    free = engine.free_bytes()
    if free is not None and nbytes > free:
        raise MemoryError(
            f"{what} needs {_size(nbytes)}, but {_size(free)} are all there is on {engine.device}"
        )


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"


def _is_device_array(array: Any) -> bool:
    return hasattr(array, "copy_to_host") and hasattr(array, "shape")


def _common_kind(arrays: dict[str, Any], engine: Engine) -> bool:
    """Whether the arrays are device arrays; TypeError unless all are of one known kind."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) and not _is_device_array(array):
            raise TypeError(
                f"{name} is a {type(array).__name__}: it must be a NumPy array or a Numba device "
                "array"
            )
    kinds = {name: _is_device_array(array) for name, array in arrays.items()}
    if len(set(kinds.values())) > 1:
        named = ", ".join(f"{name} {'device' if kind else 'NumPy'}" for name, kind in kinds.items())
        raise TypeError(f"the arrays are of two kinds ({named}): they must be of one")
    return kinds["input"]


def _check_tensor(
    name: str, array: Any, ndim: int | None = None, shape: tuple[int, ...] | None = None
) -> None:
    if array.dtype != np.float32:
        raise TypeError(f"{name} has dtype {array.dtype}: it must be float32")
    if ndim is not None and len(array.shape) != ndim:
        raise ValueError(f"{name} has shape {tuple(array.shape)}: it must have {ndim} dimensions")
    if shape is not None and tuple(array.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(array.shape)}: it must be {shape}")
    if _is_device_array(array) and not array.is_c_contiguous():
        raise ValueError(f"{name} is a device array that is not C-contiguous: it must be")


def _check_writable(out: Any, sources: dict[str, Any]) -> None:
    if not isinstance(out, np.ndarray):
        return
    if not out.flags.writeable:
        raise ValueError("out is read-only: it must be writable")
    for name, source in sources.items():
        if isinstance(source, np.ndarray) and np.shares_memory(out, source):
            raise ValueError(f"out shares memory with {name}: it must have its own")


def _simulated_device_array(host: np.ndarray, out: Any) -> Any:
    from numba import cuda

    if out is None:
        return cuda.to_device(host)
    out.copy_to_device(host)
    return out
