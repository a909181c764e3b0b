"""The functions that kernels call beyond ``numba.cuda``, each with an emulation for simulators.

Everything that touches numba-cuda's extension API is in this folder. Nothing here knows of
problems, stages or engines.
"""

from convlab.device.code_generation import gpu_only
from convlab.device.emulations import emulation_of
from convlab.device.indices import index_type
from convlab.device.intrinsics import (
    BYTES_16,
    ENGINE_CONSTANTS,
    FLOAT4,
    commit_copies,
    copy_async,
    copy_async4,
    issue_loads,
    load4,
    store4,
    wait_copies,
)
from convlab.device.tensor_core import (
    fence_shared,
    finish_product,
    mma_3xtf32,
    mma_tf32,
    split_tf32,
    start_product,
    to_tf32,
)
from convlab.device.unrolling import unrolled

__all__ = [
    "BYTES_16",
    "ENGINE_CONSTANTS",
    "FLOAT4",
    "commit_copies",
    "copy_async",
    "copy_async4",
    "emulation_of",
    "fence_shared",
    "finish_product",
    "gpu_only",
    "index_type",
    "issue_loads",
    "load4",
    "mma_3xtf32",
    "mma_tf32",
    "split_tf32",
    "start_product",
    "store4",
    "to_tf32",
    "unrolled",
    "wait_copies",
]
