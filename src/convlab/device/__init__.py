"""The functions that kernels call beyond ``numba.cuda``, each with an emulation for simulators.

Everything that touches numba-cuda's extension API is in this folder. Nothing here knows of
problems, stages or engines.
"""

from convlab.device.code_generation import gpu_only
from convlab.device.copy_engine import copy_box, copy_windows
from convlab.device.emulations import emulation_of
from convlab.device.indices import index_type
from convlab.device.intrinsics import (
    BYTES_16,
    BYTES_1024,
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
from convlab.device.register_products import (
    start_product_bf16_registers,
    start_product_f16_registers,
)
from convlab.device.shared_barriers import (
    arrive_barrier,
    expect_bytes,
    fence_barriers,
    init_barrier,
    wait_barrier,
)
from convlab.device.sixteen_bits import (
    copy_async8,
    load_pair,
    load_pairs,
    pair_bf16,
    pair_f16,
    shifted_pair,
    store_pairs,
    widen_bf16,
    widen_f16,
)
from convlab.device.swizzled_products import (
    panel_start,
    start_product_bf16,
    start_product_f16,
    start_product_tf32,
    swizzled_piece,
    wait_products,
)
from convlab.device.tensor_core import (
    fence_shared,
    finish_product,
    mma_3xtf32,
    mma_tf32,
    split_tf32,
    start_one_product,
    start_product,
    to_tf32,
)
from convlab.device.tensor_maps import BoundMap, BoxMap, WindowMap
from convlab.device.unrolling import unrolled
from convlab.device.warp_roles import give_registers, sync_threads_of, take_registers

__all__ = [
    "BYTES_16",
    "BYTES_1024",
    "ENGINE_CONSTANTS",
    "FLOAT4",
    "BoundMap",
    "BoxMap",
    "WindowMap",
    "arrive_barrier",
    "commit_copies",
    "copy_async",
    "copy_async4",
    "copy_async8",
    "copy_box",
    "copy_windows",
    "emulation_of",
    "expect_bytes",
    "fence_barriers",
    "fence_shared",
    "finish_product",
    "give_registers",
    "gpu_only",
    "index_type",
    "init_barrier",
    "issue_loads",
    "load4",
    "load_pair",
    "load_pairs",
    "mma_3xtf32",
    "mma_tf32",
    "pair_bf16",
    "pair_f16",
    "panel_start",
    "shifted_pair",
    "split_tf32",
    "start_one_product",
    "start_product",
    "start_product_bf16",
    "start_product_bf16_registers",
    "start_product_f16",
    "start_product_f16_registers",
    "start_product_tf32",
    "store4",
    "store_pairs",
    "swizzled_piece",
    "sync_threads_of",
    "take_registers",
    "to_tf32",
    "unrolled",
    "wait_barrier",
    "wait_copies",
    "wait_products",
    "widen_bf16",
    "widen_f16",
]
