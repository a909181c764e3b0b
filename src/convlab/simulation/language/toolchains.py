"""The compiler whose types a simulation takes: numba-cuda's, or that of its successor.

Both have the same passes up to type inference, in modules of their own. Each function imports its
modules when it is called, because that takes a second or more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from convlab.support.numba_successor import only_successor

Flags = Any  # the options of one compilation


@dataclass(frozen=True)
class Toolchain:
    """A compiler of Numba's.

    ``interpreter`` is what its pass ``translation`` translates Python's code with, and
    ``inference`` is its pass that infers types. ``options`` are further arguments of ``compiler``,
    which runs inside ``running(flags)``. If ``lowers``, the passes after type inference run too.
    """

    compiler: type[Any]
    interpreter: type[Any]
    translation: type[Any]
    inference: type[Any]
    typing_context: type[Any]
    target_context: Any
    running: Callable[[Flags], AbstractContextManager[object]]
    lowers: bool
    options: dict[str, object] = field(default_factory=dict)


def dispatcher_class() -> type[Any]:
    """Return the class of kernels that are made outside of a simulation."""
    if only_successor():
        from numba_cuda_mlir.descriptor import MLIRDispatcher

        made: type[Any] = MLIRDispatcher
    else:
        from numba.cuda.dispatcher import CUDADispatcher

        made = CUDADispatcher
    return made


def of_numba_cuda() -> Toolchain:
    """Return numba-cuda's compiler, which lowers to LLVM IR without a GPU."""
    from numba.core.target_extension import dispatcher_registry, target_registry
    from numba.cuda import compiler, dispatcher, utils
    from numba.cuda.core.callconv import CUDACallConv
    from numba.cuda.core.typed_passes import NopythonTypeInference
    from numba.cuda.cudadrv import nvvm
    from numba.cuda.descriptor import cuda_target
    from numba.cuda.initialize import initialize_all
    from numba.cuda.misc import literal  # noqa: F401  which registers literal_unroll
    from numba.cuda.target import CUDATypingContext

    if target_registry["cuda"] not in dispatcher_registry:  # in a process of Numba's simulator
        initialize_all()
    target = cuda_target.target_context  # which has Numba's own overloads
    # Lowering asks NVVM for these two; NVVM itself may not be installed.
    layout = SimpleNamespace(data_layout=nvvm._datalayout, get_ir_version=lambda: (2, 0, 3, 2))

    @contextmanager
    def running(flags: Flags) -> Iterator[None]:
        with (
            utils.numba_target_override(),
            # Overloads of Numba's own are compiled for "the current device".
            patch.object(dispatcher, "get_current_device", return_value=flags),
            patch.object(nvvm, "NVVM", return_value=layout),
        ):
            yield

    return Toolchain(
        compiler=compiler.CUDACompiler,
        interpreter=compiler.CUDABytecodeInterpreter,
        translation=compiler.CUDATranslateBytecode,
        inference=NopythonTypeInference,
        typing_context=CUDATypingContext,
        target_context=target,
        running=running,
        lowers=True,
        options={"call_conv": CUDACallConv(target), "abi_info": {}},
    )


def of_successor() -> Toolchain:
    """Return numba-cuda-mlir's compiler. It lowers to MLIR for a GPU that is there, so that it is
    asked for types only."""
    from numba_cuda_mlir import mlir_compiler
    from numba_cuda_mlir.descriptor import MLIRTypingContext, mlir_target
    from numba_cuda_mlir.install_registry import register_lowering
    from numba_cuda_mlir.numba_cuda.core.interpreter import Interpreter
    from numba_cuda_mlir.numba_cuda.core.target_extension import target_override
    from numba_cuda_mlir.numba_cuda.core.untyped_passes import TranslateByteCode

    class TypingContext(MLIRTypingContext):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.refresh()  # reads the registries, as the target does for its own context

    register_lowering()
    mlir_target.ensure_initialized()
    return Toolchain(
        compiler=mlir_compiler.get_compiler_class({}),
        interpreter=Interpreter,
        translation=TranslateByteCode,
        inference=mlir_compiler.MLIRTypeInference,
        typing_context=TypingContext,
        target_context=mlir_target.target_context,
        running=lambda flags: target_override("numba_cuda_mlir"),
        lowers=False,
    )
