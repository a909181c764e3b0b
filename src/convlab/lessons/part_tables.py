"""The lines of stages' kernels that lessons take as parts: :data:`PARTS`.

A lesson that is about other lines of a kernel needs a new row here. Functions inside
``make_kernel`` are parts without one.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Lines of a kernel as a function: from the line with ``first`` to that with ``last``.

    ``first`` may also be pieces of several lines that follow each other. ``takes`` are the
    function's arguments, ``gives`` the names that it returns.
    """

    takes: str
    first: str
    last: str
    gives: str = ""


# Lines that stages have in common.
WINDOW = "i_n, o_h, o_w"
OF_WINDOW = Part("window", "i_n = window // (H_o * W_o)", "o_w = window % W_o", gives=WINDOW)
OF_OUTPUT = Part("n", "i_n = n // (H_o * W_o)", "o_w = n % W_o", gives=WINDOW)
LOAD_FILTER = Part(
    takes="weight, m0, k0, t, S_F",
    first="for e in range(t, M_B * K_B, THREADS):  # load",
    last="S_F[e // K_B, e % K_B] = value",
)
LOAD_PACKED = Part(
    takes="packed, m0, k0, t, S_F",
    first="for e in range(t, K_B * M_4, THREADS):  # load",
    last="store4(S_F, (k, row), load4(packed",
)
LOAD_WINDOWS = Part(
    takes="input, i_n, o_h, o_w, k0, t, column, S_I",
    first="for e in range(t // N_B, K_B, THREADS // N_B):",
    last="S_I[e, column] = pixel",
)
LOAD_COLUMN = Part(
    takes="input, i_n, o_h, o_w, k0, ty, tx, S_I",
    first="for e in range(ty, K_B, ROWS):",
    last="S_I[e, tx] = pixel",
)
CLEAR = Part(
    "R_O", "for i in range(M_T):\nfor j in range(N_T):\nR_O[i, j] = float32(0)", "float32(0)"
)
WRITE = Part(
    takes="R_O, bias, m0, n0, ty, tx, output",
    first="for j in range(0, N_T, FLOAT4):\nfor c in range(0, FLOAT4, STEP):",
    last="output[at] = R_O[i, j + c] + b",
)
LAST_LOOP = WRITE._replace(
    first="for j in range(0, N_T, FLOAT4):  # line 20\nfor c in range(0, FLOAT4, STEP):"
)
WRITE_SCALARS = Part(
    takes="R_O, bias, m0, n0, ty, tx, output",
    first="for j in range(N_T):\nn = n0 + tx + j * COLUMNS",
    last="output[i_n, m, o_h, o_w] = R_O[i, j] + bias[m]",
)
ALL_BUT_TWO_STEPS = Part(
    takes="S_F, S_I, row0, ty, tx, R_F0, R_I0, R_F1, R_I1, R_O",
    first="for k in range(0, K_B - 2, 2):",
    last="multiply(R_F1, R_I1, R_O)",
)
OTHER_BUFFER = Part("row0", "row0 = uint32(K_B - row0)", "row0 = uint32(K_B - row0)", gives="row0")
WAIT_AND_READ = Part(
    takes="S_F, S_I, row0, ty, tx, R_F0, R_I0",
    first="cuda.syncthreads()  # lines 5 and 16",
    last="read(S_F, S_I, row0, ty, tx, R_F0, R_I0)",
)
FIND_WINDOWS = Part(
    takes="n0, t, first_I",
    first="for f in range(I_FLOAT4S):\nwindow = min(",
    last="first_I[f] = (window",
)
# By the name of the stage's file.
PARTS: dict[str, dict[str, Part]] = {
    "m01_direct": {
        "add_up": Part(
            takes="input, weight, i_n, o_c, o_h, o_w",
            first="total = float32(0)",
            last="total += pixel * weight",
            gives="total",
        ),
    },
    "im2col_gemm": {
        "find_value": Part(
            takes="input, k, n",
            first="i_n, pixel = n // PIXELS",
            last="value = input[i_n, i_c, i_h, i_w]",
            gives="i_n, pixel, value",
        ),
    },
    "m02_implicit_gemm": {
        "of_output": OF_OUTPUT,
        "find_pixel": Part(
            takes="input, i_n, o_h, o_w, i_c, f_h, f_w",
            first="i_h = o_h * s_h + f_h * d_h - p_h",
            last="pixel = input[i_n, i_c, i_h, i_w]",
            gives="pixel",
        ),
    },
    "m03_shared_memory": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_COLUMN,
    },
    "m04_block_tiling": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_COLUMN,
        "write": Part(
            takes="R_O, bias, i_n, o_h, o_w, m0, n, ty, output",
            first="for i in range(M_T):\nm = m0 + ty + i * ROWS",
            last="output[i_n, m, o_h, o_w] = R_O[i] + bias[m]",
        ),
    },
    "m05_microkernel": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_FILTER,
        "load_windows": LOAD_WINDOWS,
        "of_output": OF_OUTPUT,
        "clear": CLEAR,
        "read_rows": Part(
            takes="S_F, k, ty, R_F",
            first="for i in range(M_T):\nR_F[i] = S_F[",
            last="R_F[i] = S_F[ty + i * ROWS, k]",
        ),
        "multiply": Part(
            takes="R_F, R_I, R_O",
            first="for i in range(M_T):\nfor j in range(N_T):\nR_O[i, j] += ",
            last="R_O[i, j] += R_F[i] * R_I[j]",
        ),
        "write_column": Part(
            takes="R_O, bias, i_n, o_h, o_w, m0, n, ty, j, output",
            first="for i in range(M_T):\nm = m0 + ty + i * ROWS",
            last="output[i_n, m, o_h, o_w] = R_O[i, j] + bias[m]",
        ),
        "write": WRITE_SCALARS,
    },
    "m06_vectorized": {
        "of_window": OF_WINDOW,
        "load_filter": LOAD_PACKED,
        "copy_float4": Part(
            takes="packed, m0, k0, k, row, S_F",
            first="store4(S_F, (k, row), load4(packed",
            last="store4(S_F, (k, row), load4(packed",
        ),
        "load_windows": LOAD_WINDOWS,
        "read": Part(
            takes="S_F, S_I, k, ty, tx, R_F, R_I",
            first="for i in range(0, M_T, FLOAT4):",
            last="R_I[j], R_I[j + 1], R_I[j + 2], R_I[j + 3] = four",
        ),
        "clear": CLEAR,
        "write": WRITE,
    },
    "m08_double_buffer": {
        "of_window": OF_WINDOW,
        "load": Part(
            takes="input, packed, i_n, o_h, o_w, m0, slice_, t, fetched_F, fetched_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = load4(packed",
            last="fetched_I[f] = pixel",
        ),
        "store": Part(
            takes="fetched_F, fetched_I, row0, t, column, S_F, S_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = (fetched_F[f, 0]",
            last="S_I[row0 + t // N_B + f * I_ROWS, column] = fetched_I[f]",
        ),
        "all_but_two_steps": ALL_BUT_TWO_STEPS,
        "other_buffer": OTHER_BUFFER,
        "wait_and_read": WAIT_AND_READ,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "m09_im2win": {
        "of_output": OF_OUTPUT,
        "find_pixel": Part(
            takes="windows, i_n, o_h, o_w, k",
            first="i_c = k // (H_f * W_f)",
            last="pixel = windows[i_n, i_c, o_h,",
            gives="i_c, f_h, f_w, pixel",
        ),
    },
    "m10_im2win_vectorized": {
        "find_windows": FIND_WINDOWS,
        "load": Part(
            takes="windows, packed, m0, slice_, t, first_I, fetched_F, fetched_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = load4(packed",
            last="fetched_I[f, 0], fetched_I[f, 1], fetched_I[f, 2], fetched_I[f, 3] = four",
        ),
        "store": Part(
            takes="fetched_F, fetched_I, row0, t, S_F, S_I",
            first="for f in range(F_FETCHED[0]):\ne = t + f * THREADS\nfour = (fetched_F[f, 0]",
            last="S_I[row0 + e % K_4 * FLOAT4 + c, e // K_4] = fetched_I[f, c]",
        ),
        "all_but_two_steps": ALL_BUT_TWO_STEPS,
        "other_buffer": OTHER_BUFFER,
        "wait_and_read": WAIT_AND_READ,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "m11_warp_tiling": {
        "find_windows": FIND_WINDOWS,
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
    "t03_split_once": {
        "find_lane": Part(
            takes="t",
            first="warp, lane = t // 32, t % 32",
            last="row, column = row + group_id",
            gives="at_F, at_I, row, column",
        ),
        "wait": Part("", "wait_copies(IN_FLIGHT)  # for this thread's part", "cuda.syncthreads()"),
        "clear": CLEAR,
    },
    "m13_window_copies": {
        "start_first": Part(
            takes="input, packed, first, i_h, i_w, t, S_F, S_I",
            first="for early in range(DEPTH - 1):",
            last="cuda.syncthreads()  # line 5",
        ),
        "next_stage": Part(
            takes="pipe, ty, tx",
            first="pipe = uint32(pipe + 1",
            last="at_I = uint32(pipe * (K_B * PITCH)",
            gives="pipe, at_F, at_I",
        ),
        "start_next": Part(
            takes="input, packed, first, i_h, i_w, t, slice_, free, S_F, S_I",
            first="if slice_ + IN_FLIGHT < SLICES:",
            last="commit_copies()",
        ),
        "clear": CLEAR,
        "write": LAST_LOOP,
    },
}
