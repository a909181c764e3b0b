"""Tensor-core instructions in PTX: each with the constraints of its operands, for both compilers.

A result is ``=f`` (float32); ``=&f`` says that it is written while operands are still read.
"""

from __future__ import annotations

from convlab.device.panel_products import TERMS_OF_A_STEP, WORDS_OF_A_STEP
from convlab.device.products import TERMS

Assembly = tuple[str, str]  # text, constraints

TF32_BITS = 0xFFFFE000  # the bits of a float32 that TF32 has
TO_TF32: Assembly = "cvt.rna.tf32.f32 $0, $1;", "=r,f"
MMA: Assembly = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
    "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
    ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4),
)


def start_product(N: int) -> Assembly:
    """Return the PTX that starts a warpgroup's product of N columns.

    Operands are eight numbers each of L and T, and the matrix descriptors of B's four parts;
    results are N / 2 sums.
    """
    count = N // 2
    L0, L1, T0, T1, B = (count + n for n in (0, 4, 8, 12, 16))
    sums = ", ".join(f"${n}" for n in range(count))

    def multiply(a: int, b: int, add: int) -> str:
        """Return one instruction: 8 terms, A from operand ``a`` on, B by the descriptor ``b``."""
        left = ", ".join(f"${a + n}" for n in range(4))
        kind = f"m64n{N}k8.f32.tf32.tf32"
        return f"wgmma.mma_async.sync.aligned.{kind} {{{sums}}}, {{{left}}}, ${b}, {add}, 1, 1;"

    text = "\n".join([
        "wgmma.fence.sync.aligned;",  # the product reads registers after earlier writes to them
        multiply(T0, B, 0),  # small products first
        multiply(L0, B + 1, 1),
        multiply(T1, B + 2, 1),
        multiply(L1, B + 3, 1),
        multiply(L0, B, 1),
        multiply(L1, B + 2, 1),
        "wgmma.commit_group.sync.aligned;",  # the group that finish_product waits for
    ])  # fmt: skip
    return text, ",".join(["=&f"] * count + ["r"] * 16 + ["l"] * 4)


def start_one_product(N: int) -> Assembly:
    """Return the PTX that starts to add a warpgroup's product of N columns to its sums.

    Operands are eight numbers of A, the matrix descriptors of B's two parts, and the N / 2 sums,
    each in the register of its result.
    """
    count = N // 2
    A, B = count, count + 8
    sums = ", ".join(f"${n}" for n in range(count))
    kind = f"m64n{N}k8.f32.tf32.tf32"
    lines = ["wgmma.fence.sync.aligned;"]
    for half in range(2):  # 8 terms each
        left = ", ".join(f"${A + 4 * half + n}" for n in range(4))
        product = f"{{{sums}}}, {{{left}}}, ${B + half}, 1, 1, 1;"
        lines.append(f"wgmma.mma_async.sync.aligned.{kind} {product}")
    lines.append("wgmma.commit_group.sync.aligned;")
    constraints = ["=f"] * count + ["r"] * 8 + ["l"] * 2 + [str(n) for n in range(count)]
    return "\n".join(lines), ",".join(constraints)


def finish_product(N: int) -> Assembly:
    """Return the PTX that waits for the product. Each sum goes in and comes out in the same
    register, so that no code reads it before."""
    constraints = ["=f"] * (N // 2) + [str(n) for n in range(N // 2)]
    return "wgmma.wait_group.sync.aligned 0;", ",".join(constraints)


def descriptor(N: int) -> tuple[int, int]:
    """Return the part of B's descriptor that locates B's core matrices, and the distance between
    B's parts, of eight terms each. Both count units of 16 bytes, as does the address that is added.
    PTX calls the two distances in the descriptor leading and stride dimension byte offset. Bits 62
    and 63 are 0: no swizzle."""
    along_n, along_k = 128 >> 4, 16 * N >> 4  # from a core matrix to the next one
    return along_k << 16 | along_n << 32, TERMS // 2 * N * 4 >> 4


# Products with both matrices in shared memory. A panel's row has 128 bytes, the terms of four
# instructions. PANEL is a panel's descriptor without its address. From bit 32 on it has the
# distance of eight rows, 1,024 bytes, in units of 16 bytes; bits 62 and 63 say 128-byte swizzle.
# Bits 16 to 29 are not used with a swizzle: PTX assumes that they are 1.
PANEL = 1 << 16 | (1024 >> 4) << 32 | 1 << 62
# From an instruction's terms to the next one's, in units of 16 bytes. The tensor cores swizzle each
# address that they compute, so the same 32 bytes are right for all rows.
STEP = 32 >> 4


def start_panel_product(kind: str, N: int, terms: int) -> Assembly:
    """Return the PTX that adds to N / 2 sums the product of the first terms of two panels.

    Operands are the sums, then both panels' descriptors; results are the sums.
    """
    count = N // 2
    sums = ", ".join(f"${n}" for n in range(count))
    shape = f"m64n{N}k{TERMS_OF_A_STEP[kind]}.f32.{kind}.{kind}"
    # Not transposed: both matrices have their terms innermost. TF32 has no other form.
    flags = "1, 1, 1" if kind == "tf32" else "1, 1, 1, 0, 0"
    a, b = 2 * count, 2 * count + 1
    lines = [
        "{",
        ".reg .b64 a, b;",
        f"mov.b64 a, ${a};",
        f"mov.b64 b, ${b};",
        "wgmma.fence.sync.aligned;",
    ]
    steps = terms // TERMS_OF_A_STEP[kind]
    for step in range(steps):
        lines.append(f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, a, b, {flags};")
        if step < steps - 1:
            lines += [f"add.s64 a, a, {STEP};", f"add.s64 b, b, {STEP};"]
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    same = [str(n) for n in range(count)]  # a sum goes in and comes out in one register
    return "\n".join(lines), ",".join(["=f"] * count + same + ["l", "l"])


def start_register_product(kind: str, N: int, terms: int) -> Assembly:
    """Return the PTX of such a product with A in registers, four words a step.

    Operands are the sums, A's words, then the descriptor of B's panel; results are the sums.
    """
    count, steps = N // 2, terms // TERMS_OF_A_STEP[kind]
    sums = ", ".join(f"${n}" for n in range(count))
    shape = f"m64n{N}k{TERMS_OF_A_STEP[kind]}.f32.{kind}.{kind}"
    a, b = 2 * count, 2 * count + WORDS_OF_A_STEP * steps
    lines = ["{", ".reg .b64 b;", f"mov.b64 b, ${b};", "wgmma.fence.sync.aligned;"]
    for step in range(steps):
        words = range(a + WORDS_OF_A_STEP * step, a + WORDS_OF_A_STEP * (step + 1))
        left = ", ".join(f"${n}" for n in words)
        lines.append(f"wgmma.mma_async.sync.aligned.{shape} {{{sums}}}, {{{left}}}, b, 1, 1, 1, 0;")
        if step < steps - 1:
            lines.append(f"add.s64 b, b, {STEP};")
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    same = [str(n) for n in range(count)]
    return "\n".join(lines), ",".join(["=f"] * count + same + ["r"] * (b - a) + ["l"])


def wait_products(sums: int, in_flight: int) -> Assembly:
    """Return the PTX that waits until at most that many products are in flight. Each sum goes in
    and comes out in the same register, so that no code reads it before."""
    constraints = ["=f"] * sums + [str(n) for n in range(sums)]
    return f"wgmma.wait_group.sync.aligned {in_flight};", ",".join(constraints)


# Barriers in shared memory, by their addresses there.
INIT_BARRIER = "mbarrier.init.shared::cta.b64 [$0], $1;"
EXPECT_BYTES = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
ARRIVE_BARRIER = "mbarrier.arrive.shared::cta.b64 _, [$0];"
WAIT_BARRIER = """{
    .reg .pred ended;
    again_${:uid}: mbarrier.try_wait.parity.shared::cta.b64 ended, [$0], $1;
    @!ended bra again_${:uid};
    }"""
FENCE_BARRIERS = "fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;"

# Copies of the copy engine: operands are the panel's address in shared memory, the tensor map's,
# the barrier's in shared memory, and the place in the tensor.
COPY_WINDOWS: Assembly = (
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col."
    "mbarrier::complete_tx::bytes [$0], [$1, {$3, $4, $5, $6}], [$2], {$7, $8};",
    "r,l,r,r,r,r,r,h,h",
)


def copy_box(axes: int) -> Assembly:
    """Return the PTX that starts to copy a box of so many axes."""
    coordinates = ", ".join(f"${3 + n}" for n in range(axes))
    text = (
        f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.tile."
        f"mbarrier::complete_tx::bytes [$0], [$1, {{{coordinates}}}], [$2];"
    )
    return text, ",".join(["r", "l", "r"] + ["r"] * axes)
