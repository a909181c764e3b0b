"""Lines of kernels whose results depend on the types of registers, with what a GPU computes.

They read ``i`` (int32, -7), ``u`` (uint32, 5), ``l`` (int64, 2**40 + 3), ``v`` (uint64, 9), ``f``
(float32, 0.1), ``d`` (float64, 0.1), ``h`` (float16, 2048), ``c`` (int8, -3), ``w`` (uint8, 250)
and ``zero`` (int64), and leave their result in ``x``.
"""

from __future__ import annotations

import math

# The mistake is in the types: beside what a GPU computes stands what was meant.
WRONG = {
    "index_below_zero": ("x = uint32(u - 6)", 2**32 - 1, -1),
    "unsigned_difference": ("x = v - uint64(10)", 2**64 - 1, -1),
    "unsigned_distance": ("x = abs(uint32(u - 8)) > 100", True, False),
    "unsigned_loop_end": ("x = uint32(u - 6) >= 0", True, False),
    "ballot_shifted": ("x = cuda.ballot_sync(0xFFFFFFFF, True) >> 31", -1, 1),
    "match_negative": ("x = cuda.match_any_sync(0xFFFFFFFF, 3) > 0", False, True),
    "zeros_of_a_wide_one": ("x = cuda.clz(1)", 63, 31),
    "zeros_of_a_wide_sum": ("x = cuda.clz(i + 8)", 63, 31),
    "ones_of_a_wide_one": ("x = cuda.popc(-1)", 64, 32),
    "ones_of_a_narrow_one": ("x = cuda.popc(i | int32(-1))", 64, 32),
    "hash_not_cut": ("x = (u * uint32(2654435761)) >> 28", 49, 1),
    "hash_of_64_bits": (
        "x = l * 6364136223846793005 + 1442695040888963407",
        -5586006123272995114,
        2**40 * 6364136223846793005,
    ),
    "counter_of_8_bits": ("x = uint8(w + 10)", 4, 260),
    "sum_of_8_bits": ("x = int8(c + int8(-128))", 125, -131),
    "int32_overflows": ("x = int32(i * 400000000)", 1494967296, -2800000000),
    "factor_promotes": ("x = f * 3.0 == float32(f * 3.0)", False, True),
    "true_division": ("x = (i + u) / 4 == (i + u) // 4", False, True),
    "float32_absorbs": ("x = float32(2.0**24) + float32(1) - float32(2.0**24)", 0.0, 1.0),
    "float32_is_no_third": ("x = float32(1) / float32(3) == 1 / 3", False, True),
    "float16_overflows": ("x = float32(float16(70000.0))", math.inf, 70000.0),
    "float16_absorbs": ("x = float32(h + float16(1))", 2048.0, 2049.0),
    "one_by_zero": ("x = 1 / zero", math.inf, "an error"),
    "zero_by_zero": ("x = (zero / zero) == 0", False, "an error"),
    "nan_as_a_number": ("x = f / float32(zero) > 1e38", True, False),
    "square_overflows": ("x = l * l // 3 < 2**60", True, False),
    "power_overflows": ("x = (l + 5) ** 3", 211106232533504, 2**120 + 211106232533504),
    "sum_overflows": ("x = (l << 22) + (l << 22) < 0", True, False),
    "power_below_one": ("x = 16 * l**-1", 0, 2**-36),
    "power_of_zero": ("x = zero ** (i + 6)", -(2**63), 0),
    "power_by_a_float": ("x = 3 ** (cuda.laneid + 39)", 4052555153018976256, 3**39),
    "integer_of_a_half": ("x = uint8(h * float16(0.0012))", 2, 3),
    "half_not_cut_off": ("x = int(float16(2.75))", 3, 2),
    "difference_with_a_sign": ("x = (v - uint64(10) ^ int64(zero)) < 0", True, False),
    "negated_unsigned": ("x = -uint32(5)", 2**32 - 5, -5),
    "complement": ("x = ~uint32(0)", 2**32 - 1, -1),
}
# Careful kernels, for which a checker could raise a false alarm or compute something else.
RIGHT = {
    "wraparound_meant": ("x = uint32(u - 6) % uint32(32)", 31),
    "hash_cut": ("x = uint32(u * uint32(2654435761)) >> uint32(28)", 1),
    "rotated": ("y = uint32(u << 31 | u >> 1); x = uint32(y)", 2147483650),
    "lcg": (
        "y = uint64(1)\nfor n in range(20): y = y * uint64(6364136223846793005) + uint64(1)\nx = y",
        4681333673231752717,
    ),
    "xorshift": (
        "y = uint32(u)\n"
        "for n in range(9):\n"
        " y ^= uint32(y << 13)\n"
        " y ^= y >> 17\n"
        " y ^= uint32(y << 5)\n"
        "x = y",
        379170181,
    ),
    "fnv": (
        "y = uint64(14695981039346656037)\n"
        "for n in range(8):\n"
        " y = (y ^ uint64(n)) * uint64(1099511628211)\n"
        "x = y",
        11879451155103665021,
    ),
    "signed_difference": ("x = int32(u) - 6", -1),
    "difference_of_mixed": ("x = u - 6", -1),
    "guarded": ("x = u - 6 if u > 6 else 0", 0),
    "divided_down": ("x = (i - 1) // 2", -4),
    "remainder_of_negative": ("x = i % 4", 1),
    "shift_keeps_sign": ("x = i >> 1", -4),
    "lane_mask": ("x = (1 << u) - 1", 31),
    "ones_by_width": ("x = cuda.popc(uint32(0xF0F0F0F0))", 16),
    "zeros_by_width": ("x = cuda.clz(uint32(1))", 31),
    "first_lane": ("x = cuda.ffs(cuda.ballot_sync(0xFFFFFFFF, True)) - 1", 0),
    "int_of_a_float": ("x = int32(-2.7)", -2),
    "cast_saturates_not": ("x = uint8(300)", 44),
    "kahan": (
        "s = float32(0); k = float32(0)\n"
        "for n in range(100):\n"
        " y = f - k\n"
        " t = s + y\n"
        " k = (t - s) - y\n"
        " s = t\n"
        "x = s",
        10.0,
    ),
    "float32_sum": ("s = float32(0)\nfor n in range(1000): s += f\nx = s", 99.9990463256836),
    "float64_sum": ("s = 0.0\nfor n in range(1000): s += f\nx = s", 100.00000149011612),
    "float32_product": ("s = f\nfor n in range(9): s = s * f + f\nx = s", 0.1111111119389534),
    "root": ("x = math.sqrt(f)", 0.3162277638912201),
    "mean": ("x = (i + u) / 2", -1.0),
    "infinity_is_least": ("s = math.inf\ns = min(s, d)\nx = s", 0.1),
    "halves": ("x = float32(h) * float32(0.5)", 1024.0),
    "phi_of_both": ("s = 1\nif u > 3: s = 0.5\nx = s / 2", 0.25),
    "fibonacci": (
        "p = 0; q = 1\nfor n in range(100):\n p, q = q, p + q\nx = p",
        3736710778780434371,
    ),
    "long_sum": ("s = 0\nfor n in range(40):\n s += s + l\nx = s", 2199023255549),
    "boolean_sum": ("x = (u > 3) + (i < 0)", 2),
    "int64_index": ("x = (l * 4 + 2) % 1000", 118),
    "compared_mixed": ("x = i < u", True),
}
