"""Kernels about data: records, views, bytes, half precision, vectors, complex and random numbers,
warp operations with masks, several arrays in dynamic shared memory, constants. A row is a kernel's
name, what is expected of it, its arguments, its lines and how it is launched."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from numba import cuda, float32, float64, int8, int32, int64, uint8, uint32  # noqa: F401
from numba.cuda import bf16, libdevice, random  # noqa: F401

from kernels.cases import Case, kernel_function

ALL = 0xFFFFFFFF
POINT = np.dtype([("x", "f4"), ("y", "f4"), ("id", "i4")])
PAIR = np.dtype([("first", "i2"), ("second", "i2")])
PACKED = np.dtype([("kind", "u1"), ("hits", "i4")])
NEST = np.dtype([("p", POINT), ("w", "f4", (4,))])
WEIGHTS = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
BOTH = np.arange(2.0), np.arange(6, dtype=np.int32).reshape(2, 3)
DAY = np.timedelta64(1, "D")


@cuda.jit(device=True)
def middle(row):  # type: ignore[no-untyped-def]
    return row[row.size // 2]


def f(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=kind).reshape(shape)


def z(*shape: int, kind: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, kind)


@cache  # Numba compiles it
def _states(count: int) -> np.ndarray:
    made = np.zeros(count, random.xoroshiro128p_dtype)
    random.init_xoroshiro128p_states_cpu(made, 7, 0)
    return made


def states(count: int) -> np.ndarray:
    return _states(count).copy()


I = "i = cuda.threadIdx.x"
G = "i = cuda.grid(1)"
SYNC = "cuda.syncthreads()"
S = "s = cuda.shared.array(32, float32)"
Row = tuple[Any, ...]

# name, kind, piece of the line, arguments, lines, how
WRONG_ROWS: list[Row] = [
    # records
    ("record_of_a_neighbour", "global race", "r[(i + 1) % 32].x", [z(32, kind=POINT)],
     [I, "r[i].x = i", "r[(i + 1) % 32].x = i + 5"]),
    ("record_stored_over_a_field", "global race", "r[i] = r[31 - i]", [z(32, kind=POINT)],
     [I, "r[i].x = i", "r[i] = r[31 - i]"]),
    ("record_past_the_end", "out of bounds", "r[i + 1].y", [z(32, kind=POINT)],
     [I, "r[i + 1].y = 1"]),
    ("field_array_past_the_end", "out of bounds", "r.x[i * 2]", [z(32, kind=POINT)],
     [I, "r.x[i * 2] = 1"]),
    ("nested_array_past_the_end", "out of bounds", "r[i].w[i]", [z(32, kind=NEST)],
     [I, "r[i].w[i] = 1"]),
    ("nested_field_races", "global race", "r[0].p.y", [z(32, kind=NEST)], [I, "r[0].p.y = i"]),
    ("record_in_shared_memory_half_written", "uninitialised",
      "r[i].x = s[i].y", [z(32, kind=POINT)],
     ["s = cuda.shared.array(32, POINT)", I, "s[i].x = i", SYNC, "r[i].x = s[i].y"]),
    ("record_in_shared_memory_with_no_barrier", "shared race", "r[i] = s[31 - i]",
     [z(32, kind=POINT)], ["s = cuda.shared.array(32, POINT)", I, "s[i] = r[i]",
      "r[i] = s[31 - i]"]),
    ("sum_in_a_record", "global race", "r[0].id += 1", [z(1, kind=POINT)], ["r[0].id += 1"]),
    ("packed_halves_of_one_word", "global race", "r.view(np.int32)[i] = 1", [z(32, kind=PAIR)],
     [I, "r[(i + 1) % 32].second = 3", "r.view(np.int32)[i] = 1"]),
    # views and slices
    ("slices_that_touch", "global race", "a[2 * i : 2 * i + 3]", [f(65)],
     [I, "a[2 * i : 2 * i + 3] = i"]),
    ("slice_shorter_than_thought", "out of bounds", "part[i]", [f(64)],
     [I, "part = a[40:]", "part[i] = 0"]),
    ("row_that_is_missing", "out of bounds", "a[i]", [f(31, 4)], [I, "row = a[i]", "row[0] = 1"]),
    ("column_instead_of_row", "out of bounds", "a.T[i, 0]", [f(32, 4)], [I, "a.T[i, 0] = 1"]),
    ("transposed_in_place", "global race", "a[y, x] = a.T[y, x]", [f(8, 8)],
     ["x, y = cuda.grid(2)", "a[y, x] = a.T[y, x]"], {"block": (8, 8)}),
    ("reversed_in_place", "global race", "a[i] = a[::-1][i]", [f(32)], [I, "a[i] = a[::-1][i]"]),
    ("reshaped_and_raced", "global race", "m[i // 8, 0]", [f(32)],
     [I, "m = a.reshape(4, 8)", "m[i // 8, 0] = i"]),
    ("flat_past_the_end", "out of bounds", "a.flat[i + 1]", [f(4, 8)], [I, "a.flat[i + 1] = 1"]),
    ("slice_of_shared_memory_not_filled", "uninitialised", "s[16:][i % 16]", [f(32)],
     [S, I, "if i < 16:", "    s[i] = a[i]", SYNC, "a[i] = s[16:][i % 16]"]),
    ("local_row_not_filled", "uninitialised", "own[1][i % 2]", [f(32)],
     [I, "own = cuda.local.array((2, 2), float32)", "own[0, :] = 1", "a[i] = own[1][i % 2]"]),
    ("arrays_that_share_memory", "global race", "b[i] = a[i]",
     lambda: (lambda w: [w[:32], w[1:]])(f(33)), [I, "b[i] = a[i]"]),
    ("sum_of_what_others_write", "global race", "b[i] = a.sum()", [f(32), z(32)],
     [I, "a[i] = i + 1", "b[i] = a.sum()"]),
    # bytes
    ("bytes_of_a_neighbours_word", "global race", "[4 * i + 4]", [z(33, kind=np.int32)],
     [I, "a[i] = -1", "a.view(np.uint8)[4 * i + 4] = 1"]),
    ("half_words_in_a_shared_word", "shared race", "h[2 * ((i + 1) % 32)]", [z(32)],
     ["s = cuda.shared.array(32, int32)", I, "h = s.view(np.int16)", "s[i] = -1",
      "h[2 * ((i + 1) % 32)] = 5", SYNC, "a[i] = s[i]"]),
    ("word_of_three_written_bytes", "uninitialised", "w[i]", [z(8)],
     ["s = cuda.shared.array(32, uint8)", I, "w = s.view(np.int32)", "for k in range(3):",
      "    s[4 * i + k] = k", SYNC, "a[i] = w[i]"], {"block": 8}),
    ("doubles_from_an_odd_float", "misaligned", "wide[i]", [f(33)],
     [I, "wide = a[1:33].view(np.float64)", "wide[i] = 1"], {"block": 16}),
    ("ints_from_a_byte", "misaligned", "w[0]", [z(33, kind=np.uint8)],
     ["w = a[1:].view(np.int32)", "w[0] = 1"], {"block": 1}),
    ("shared_doubles_after_an_odd_count", "misaligned", "wide[i]", [z(4)],
     ["s = cuda.shared.array(0, float32)", I, "wide = s[5:13].view(np.float64)", "wide[i] = i"],
     {"block": 4, "shared_bytes": 64}),
    ("atomic_on_a_packed_field", "misaligned", "cuda.atomic.add(r.hits", [z(32, kind=PACKED)],
     [I, "cuda.atomic.add(r.hits, i, 1)"]),
    ("halo_beside_a_clamped_index", "out of bounds", "a[i - 1]", [f(32), z(32)],
     [I, "left = i - 2", "if left < 0:", "    left = 0", "b[i] = a[left] + a[i - 1]"]),
    # several arrays in dynamic shared memory
    ("second_dynamic_array_begins_too_early", "shared race", "second[i]", [f(32)],
     ["first = cuda.shared.array(0, float32)", "second = cuda.shared.array(0, float32)[16:]", I,
      "first[i] = a[i]", "second[i] = -1", SYNC, "a[i] = first[i] + second[i]"],
     {"shared_bytes": 256}),
    ("dynamic_memory_for_one_of_two", "out of bounds", "second[i]", [f(32)],
     ["first = cuda.shared.array(0, float32)", "second = cuda.shared.array(0, float32)[32:]", I,
      "first[i] = a[i]", "second[i] = -1"], {"shared_bytes": 128}),
    # fp16, bfloat16, complex numbers, vectors
    ("half_sums_with_no_barrier", "shared race", "cuda.fp16.hadd", [f(32)],
     ["s = cuda.shared.array(32, np.float16)", I, "s[i] = a[i]",
      "a[i] = cuda.fp16.hadd(s[i], s[31 - i])"]),
    ("brain_floats_past_the_end", "out of bounds", "a[i + 1]", [f(32)],
     [I, "a[i] = bf16.bfloat16(a[i + 1])"]),
    ("imaginary_parts_race", "global race", "a.imag[0]", [z(32, kind=np.complex64)],
     [I, "a.imag[0] = i"]),
    ("complex_read_while_halves_are_written", "global race", "b[i] = a[31 - i]",
     [z(32, kind=np.complex64), z(32, kind=np.complex64)], [I, "a.real[i] = 1",
      "b[i] = a[31 - i]"]),
    ("vector_of_the_next_elements", "out of bounds", "a[i + 3]", [f(32)],
     [I, "v = cuda.float32x2(a[i], a[i + 3])", "a[i] = v.x"]),
    # warps, grids, constants
    ("match_of_a_half_that_names_all", "inactive lane", "cuda.match_any_sync", [f(32)],
     [I, "if i < 16:", "    a[i] = cuda.match_any_sync(ALL, i % 4)"]),
    ("vote_of_lanes_that_differ", "inactive lane", "cuda.all_sync(0xFF", [f(32)],
     [I, "if i < 16:", "    a[i] = cuda.all_sync(0xFF, i > 3)"]),
    ("table_of_constants_too_short", "out of bounds", "table[i]", [f(32)],
     ["table = cuda.const.array_like(WEIGHTS)", I, "a[i] = table[i]"]),
    ("grid_sync_forgotten_before_a_sum", "global race", "b[i] += a[63 - i]", [f(64), z(64)],
     [G, "a[i] = i", "b[i] += a[63 - i]", "cuda.cg.this_grid().sync()"], {"grid": 2}),
    ("cached_load_past_the_end", "out of bounds", "cuda.ldcg", [f(32)],
     [I, "cuda.stcs(a, i, cuda.ldcg(a, i + 1))"]),
]  # fmt: skip

# name, what the last array becomes, arguments, lines, how
N = np.arange(32)
RIGHT_ROWS: list[Row] = [
    # records
    ("every_thread_its_record", [(1 + n, 2 * n, n) for n in N], [np.ones(32, POINT)],
     [I, "r[i].x += i", "r[i].y = 2 * i", "r[i].id = i"]),
    ("fields_of_neighbours", [(n, (n - 1) % 32, (n - 2) % 32) for n in N], [z(32, kind=POINT)],
     [I, "r[i].x = i", "r[(i + 1) % 32].y = i", "r[(i + 2) % 32].id = i"]),
    ("records_through_shared_memory", [(31 - n, 0, 0) for n in N], [z(32, kind=POINT)],
     ["s = cuda.shared.array(32, POINT)", I, "r[i].x = i", "s[i] = r[i]", SYNC,
      "r[i] = s[31 - i]"]),
    ("a_local_record", 3.0 * N, [z(32)],
     ["own = cuda.local.array(2, POINT)", I, "own[0].x = i", "own[1].y = 2 * i",
      "r[i] = own[0].x + own[1].y"]),
    ("halves_of_one_word_apart", [(n, -n) for n in N], [z(32, kind=PAIR)],
     [I, "r[i].first = i", "r[i].second = -i"]),
    ("elements_of_a_nested_array", np.arange(128).reshape(32, 4), [z(32, kind=NEST), z(32, 4)],
     [I, "for k in range(4):", "    a[i].w[k] = 4 * i + k", "    b[i, k] = a[i].w[k]"]),
    ("nested_records", N, [z(32, kind=NEST), z(32)], [I, "a[i].p.x = i", "b[i] = a[i].p.x"]),
    ("a_field_by_its_name", 2.0 * N, [z(32, kind=POINT), z(32)],
     [I, "a['x'][i] = i", "a[i]['y'] = i", "b[i] = a[i].x + a['y'][i]"]),
    ("atomics_on_a_field", [32], [z(1, kind=POINT), z(1)],
     ["cuda.atomic.add(a.id, 0, 1)", SYNC, "if cuda.threadIdx.x == 0:", "    b[0] = a[0].id"]),
    ("a_warp_s_barrier_in_both_arms", N ^ 16, [f(32), z(32)],
     [S, I, "if i < 16:", "    s[i] = a[i]", "    cuda.syncwarp()", "    b[i] = s[i + 16]", "else:",
      "    s[i] = a[i]", "    cuda.syncwarp()", "    b[i] = s[i - 16]"]),
    # views and slices
    ("slices_side_by_side", N // 2, [f(32)],
     [I, "if i < 16:", "    a[2 * i : 2 * i + 2] = i"]),
    ("the_last_element", [31.0] * 32, [f(32), z(32)], [I, "b[i] = a[-1]"]),
    ("counted_from_the_end", 2 * N[::-1], [f(32), z(32)], [I, "b[i] = a[-1 - i] + a[~i]"]),
    ("neighbours_on_a_ring", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "right = (i + 1) % 32", "b[i] = a[i - 1] - a[right]"]),
    ("a_ring_that_begins_again", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "right = i + 1", "if right == 32:", "    right = 0", "b[i] = a[i - 1] - a[right]"]),
    ("a_ring_that_goes_back", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "right = i + 1", "if right >= 32:", "    right -= 32", "b[i] = a[i - 1] - a[right]"]),
    ("a_ring_by_two_arms", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "if i == 31:", "    right = 0", "else:", "    right = i + 1",
      "b[i] = a[i - 1] - a[right]"]),
    ("a_ring_by_the_first_element", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "right = a[i + 1] if i < 31 else a[0]", "b[i] = a[i - 1] - right"]),
    ("counted_from_the_end_by_name", N[::-1], [f(32), z(32)], [I, "k = -1 - i", "b[i] = a[k]"]),
    ("a_ring_by_a_choice", np.roll(N, 1) - np.roll(N, -1), [f(32), z(32)],
     [I, "b[i] = a[i - 1] - a[i + 1 if i < 31 else 0]"]),
    ("a_ring_by_a_mask", np.roll(f(4, 8), -1, 0) - np.roll(f(4, 8), (1, -1), (0, 1)),
     [f(4, 8), z(4, 8)],
     ["y, x = cuda.grid(2)", "b[y, x] = a[(y + 1) & 3, x] - a[y - 1, (x + 1) % 8]"],
     {"block": (4, 8)}),
    ("the_last_of_each_row", [7.0, 15, 23, 31], [f(4, 8), z(4)], [I, "b[i] = a[i, -1]"],
     {"block": 4}),
    ("rows_of_a_matrix", [4.0, 12, 20, 28], [f(4, 8), z(4)], [I, "b[i] = middle(a[i])"],
     {"block": 4}),
    ("a_transposed_view", f(8, 4).T, [f(8, 4), z(4, 8)],
     ["x, y = cuda.grid(2)", "b[y, x] = a.T[y, x]"], {"block": (8, 4)}),
    ("a_reversed_copy", N[::-1], [f(32), z(32)], [I, "b[i] = a[::-1][i]"]),
    ("every_second_element", [0, 0] + [2 * n for n in range(14)], [f(32), z(16)],
     [I, "b[i] = a[::2][i - 2] if i > 1 else 0"], {"block": 16}),
    ("an_array_reshaped", N.reshape(4, 8).T.ravel(), [f(32), z(32)],
     [I, "b[i] = a.reshape(4, 8).T[i // 4, i % 4]"]),
    ("a_slice_copied_whole", N, [f(32), z(32)],
     ["target = b[:]", "if cuda.threadIdx.x == 0:", "    for k, one in enumerate(a[:]):",
      "        target[k] = one"]),
    ("a_fortran_array", f(4, 8), [np.asfortranarray(f(4, 8)), z(4, 8)],
     ["x, y = cuda.grid(2)", "b[y, x] = a[y, x]"], {"block": (8, 4)}),
    ("sums_of_rows", f(4, 8).sum(1), [f(4, 8), z(4)], [I, "b[i] = a[i].sum()"], {"block": 4}),
    ("largest_of_local_numbers", N + 3, [z(32)],
     [I, "own = cuda.local.array(4, float32)", "for k in range(4):", "    own[k] = i + k",
      "largest = own[0]", "for k in range(1, 4):", "    largest = max(largest, own[k])",
      "a[i] = largest"]),
    ("a_loop_over_elements", [496.0] * 32, [f(32), z(32)],
     [I, "total = float32(0)", "for one in a:", "    total += one", "b[i] = total"]),
    ("indices_of_ndindex", [6], [z(1)],
     ["total = 0", "for x, y in np.ndindex(2, 3):", "    total += 1", "a[0] = total"],
      {"block": 1}),
    # bytes
    ("bytes_each_its_own", N, [z(32, kind=np.int32)], [I, "a.view(np.uint8)[4 * i] = i"]),
    ("bytes_first_then_words", N + 1, [z(32, kind=np.int32)],
     [I, "for k in range(4):", "    a.view(np.uint8)[(4 * i + 4 + k) % 128] = 9", SYNC,
      "a[i] = i + 1"]),
    ("shared_bytes_as_words", [0x03020100] * 8, [z(8, kind=np.int32)],
     ["s = cuda.shared.array(32, uint8)", I, "for k in range(4):", "    s[4 * i + k] = k", SYNC,
      "a[i] = s.view(np.int32)[7 - i]"], {"block": 8}),
    ("the_bits_of_a_float", np.float32(N).view(np.int32), [f(32), z(32, kind=np.int32)],
     [I, "b[i] = a.view(np.int32)[i]"]),
    ("aligned_doubles_in_floats", f(32)[2:].view(np.float64), [f(32), z(15, kind=np.float64)],
     [I, "b[i] = a[2:].view(np.float64)[i]"], {"block": 15}),
    # several arrays in dynamic shared memory
    ("two_dynamic_arrays", 2 * N[::-1] + 1.0, [f(32)],
     ["first = cuda.shared.array(0, float32)[:32]", "second = cuda.shared.array(0, int32)[32:]", I,
      "first[i] = 2 * a[i]", "second[i] = 1", SYNC, "a[i] = first[31 - i] + second[31 - i]"],
     {"shared_bytes": 256}),
    ("three_dynamic_arrays", N + 3.0, [f(32)],
     ["d = cuda.shared.array(0, float64)[:32]", "w = cuda.shared.array(0, int32)[64:96]",
      "c = cuda.shared.array(0, int8)[384:]", I, "d[i] = a[i]", "w[i] = 1", "c[i] = 2", SYNC,
      "a[i] = d[i] + w[31 - i] + c[31 - i]"], {"shared_bytes": 416}),
    # fp16, bfloat16, complex numbers, vectors, dates
    ("halves_are_rounded", [2048.0, 2048, 2050, 2052], [f(4)],
     [I, "a[i] = cuda.fp16.hadd(a[i], 2048)"], {"block": 4}),
    ("half_arrays", np.float16(N / 3), [f(32), z(32, kind=np.float16)], [I, "b[i] = a[i] / 3"]),
    ("brain_floats", [1.703125] * 32, [z(32)], [I, "a[i] = float32(bf16.bfloat16(1.7))"]),
    ("complex_products", 1j * N * (1 + 1j), [1j * f(32).astype(np.complex64)],
     [I, "a[i] = a[i] * (1 + 1j)"]),
    ("real_and_imaginary_parts", N - 1j * N[::-1], [z(32, kind=np.complex64)],
     [I, "a.real[i] = i", "a.imag[31 - i] = -i"]),
    ("conjugates", N - 1j, [f(32) + np.complex64(1j)], [I, "a[i] = a[i].real - 1j * a[i].imag"]),
    ("vectors_of_four", 4.0 * N + 6, [z(32)],
     [I, "v = cuda.float32x4(i, i + 1, i + 2, i + 3)", "a[i] = v.x + v.y + v.z + v.w"]),
    ("vectors_made_of_vectors", N + 3.0, [z(32)],
     [I, "v = cuda.float32x3(cuda.float32x2(i, 1), 2)", "a[i] = v.x + v.y + v.z"]),
    ("dates_a_day_later", np.array(N + 1, "M8[D]"), [np.array(N, "M8[D]")],
      [I, "a[i] = a[i] + DAY"]),
    # random numbers
    ("a_state_for_each_thread", [1.0] * 32, lambda: [states(32), z(32)],
     [I, "x = random.xoroshiro128p_uniform_float64(a, i)", "b[i] = 0 <= x < 1"]),
    ("normal_numbers", [1.0] * 32, lambda: [states(32), z(32)],
     [I, "b[i] = abs(random.xoroshiro128p_normal_float32(a, i)) < 10"]),
    # warps, grids, constants
    ("votes_of_half_a_warp", [1.0] * 16 + [0] * 16, [z(32)],
     [I, "if i < 16:", "    a[i] = cuda.all_sync(0xFFFF, i < 16)"]),
    ("each_half_its_own_shuffle", [n ^ 1 for n in N], [z(32)],
     [I, "half = 0xFFFF if i < 16 else 0xFFFF0000", "a[i] = cuda.shfl_xor_sync(half, i, 1)"]),
    ("lanes_with_equal_values", [8.0] * 32, [z(32)],
     [I, "a[i] = cuda.popc(cuda.match_any_sync(ALL, i % 4))"]),
    ("lanes_below_this_one", N, [z(32)], [I, "a[i] = cuda.popc(cuda.lanemask_lt())"]),
    ("a_broadcast_of_a_ballot", [1.0] * 32, [z(32)],
     [I, "mask = cuda.ballot_sync(ALL, i == 5)", "a[i] = (mask >> 5) & 1"]),
    ("a_table_of_constants", WEIGHTS[N % 4], [z(32)],
     ["table = cuda.const.array_like(WEIGHTS)", I, "a[i] = table[i % 4]"]),
    ("constants_in_a_tuple", BOTH[0][N % 2] + 5.0, [z(32)],
     [I, "a[i] = BOTH[0][i % 2] + BOTH[1][-1, -1]"]),
    ("a_grid_barrier", N[::-1], [f(32), z(32)],
     [G, "a[i] = i", "cuda.cg.this_grid().sync()", "b[i] = a[31 - i]"], {"grid": 4, "block": 8}),
    ("cached_loads_and_stores", 2.0 * N, [f(32), z(32)],
     [I, "cuda.stwt(b, i, cuda.ldca(a, i) + cuda.ldcv(a, i))"]),
    ("functions_of_libdevice", np.floor(N / 2), [f(32)],
     [I, "a[i] = libdevice.floorf(libdevice.fdiv_rn(a[i], 2))"]),
]  # fmt: skip


def _cases(rows: list[Row], expects: int) -> list[Case]:
    made = []
    for name, *row in rows:
        expected, (given, lines, *how) = row[:expects], row[expects:]
        names = ("r",) if re.search(r"\br[.[]", " ".join(lines)) else ("a", "b")
        count = 2 if callable(given) else len(given)  # states of random numbers take seconds
        kernel = cuda.jit(kernel_function(name, ", ".join(names[:count]), lines, middle.py_func))
        launch = {"grid": 1, "block": 32} | (how[0] if how else {})
        fresh = given if callable(given) else lambda given=given: [one.copy("K") for one in given]
        if expects == 2:
            launch |= dict(zip(("kind", "line"), expected, strict=True))
        else:
            launch["result"] = lambda _, wanted=expected[0]: wanted
        made.append(Case(kernel, arguments=fresh, **launch))
    return made


WRONG, RIGHT = _cases(WRONG_ROWS, 2), _cases(RIGHT_ROWS, 1)
