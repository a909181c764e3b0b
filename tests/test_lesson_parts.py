"""Parts of the stages' kernels: cut out, solved, and put back by a learner."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from convlab import ConvProblem, Tile, lessons, trace_stage
from convlab.checking import checker, launches
from convlab.ladder import stage_named
from convlab.lessons import (
    exercises,
    limits,
    listing,
    part_tables,
    parts,
    plain_im2win,
    problem_checks,
    readiness,
)
from convlab.lessons.source import read, sources
from convlab.problems.oracle import random_tensors
from convlab.running.engines.simulator import Simulator

SMALL = ConvProblem(1, 3, 4, 5, 5, (2, 3), stride=(1, 2), padding=1, dilation=(1, 2))
TILE = Tile(M_B=16, N_B=8, K_B=8, M_T=4, N_T=4)
same = pytest.mark.same_in_cudasim
PARTS = {
    stage: [*found]
    for stage, found in part_tables.PARTS.items()
    if stage not in ("im2col_gemm", "t03_split_once")  # which have other arguments
}


@pytest.fixture
def quick(monkeypatch):
    """Checks on two problems, and nothing is compiled."""
    few = {"small": SMALL}
    monkeypatch.setattr(checker, "compiled", lambda program, stages: None)
    monkeypatch.setattr(launches, "PROBLEMS", few)
    monkeypatch.setattr(launches, "FOR_SOME", {})  # larger ones
    monkeypatch.setattr(problem_checks, "PROBLEMS", few)
    monkeypatch.setattr(exercises, "MODEL", SMALL)
    monkeypatch.setattr(problem_checks, "MODEL", SMALL)


def launched(made, stage):
    """Return the counts and the output of a stage's main launch, which is strict."""
    output = np.full(SMALL.output_shape, np.nan, np.float32)
    main, arrays = exercises.ready_for(made, stage, SMALL, None, random_tensors(SMALL, 0), output)
    simulator = Simulator()
    with simulator.counting() as counts:
        simulator.run(main, arrays)
    return counts, output


@pytest.mark.slow
@same
@pytest.mark.parametrize(("stage", "parts_of_stage"), PARTS.items())
def test_a_part_that_is_cut_out_and_put_back_changes_nothing(stage, parts_of_stage):
    counts, output = launched(None, stage)
    assert not np.isnan(output).any()
    for part in parts_of_stage:
        made = lessons.part_of(stage, **{part: partial(parts.solved, stage, part)})
        readiness.ready(made)
        its_counts, its_output = launched(made, stage)
        assert its_counts == counts, part
        assert np.array_equal(its_output, output), part


@pytest.mark.slow
@same
@pytest.mark.parametrize(
    ("stage", "part"),
    [
        ("m05_microkernel", "write"),
        ("m08_double_buffer", "load"),
        ("m13_window_copies", "start_next"),
    ],
)
def test_a_right_part_passes_its_check(stage, part, quick):
    def made(*arguments):
        return parts.solved(stage, part, *arguments)

    found = lessons.check(lessons.part_of(stage, **{part: made}), stage, at_most=1)
    assert found.passed, found


@same
def test_only_the_constants_that_a_part_needs_are_shown():
    code = parts.part_code("m03", "load_filter")
    assert re.findall(r"^    (\S.*)$", code, re.MULTILINE) == [
        "p = problem",
        "M, K = p.M, p.K",
        "M_B, K_B, THREADS = tile.M_B, tile.K_B, tile.threads",
        "@cuda.jit(device=True)",
        "def load_filter(weight, m0, k0, t, S_F):",
        "return load_filter",
    ]


@same
def test_a_function_with_solved_parts_gets_those_that_they_need_and_its_own_constants():
    code = parts.stage_code("m11", hidden=["read", "steps"], given=["PITCH"])
    assert 'read, steps = solved("m11", "read, steps", problem, tile, PITCH=PITCH)' in code
    assert "def two_steps(" in code
    code = parts.part_code("m11", "two_steps")
    assert 'read, multiply = solved("m11", "read, multiply", problem, tile)' in code


@same
def test_a_part_may_be_given_a_constant():
    for padding in (4, 12):
        read = parts.solved("m11", "read", SMALL, TILE, PITCH=TILE.N_B + padding)
        names = read.py_func.__code__.co_freevars
        cells = dict(zip(names, read.py_func.__closure__, strict=True))
        assert cells["PITCH"].cell_contents == TILE.N_B + padding
    first, second = (parts.solved("m11", "read", SMALL, TILE) for _ in range(2))
    assert first.py_func.__code__ is second.py_func.__code__


def test_a_finding_in_a_learner_s_part_names_its_line(quick):
    def make_load_filter(problem, tile):
        M_B, K_B = tile.M_B, tile.K_B

        @cuda.jit(device=True)
        def load_filter(weight, m0, k0, t, S_F):
            for e in range(t, M_B * K_B, 1):
                S_F[e // K_B, e % K_B] = weight[10**6 + e]

        return load_filter

    found = lessons.check(lessons.part_of("m03", load_filter=make_load_filter), "m03")
    lines = [line for mistake in found.mistakes for line in mistake.lines]
    assert any("weight[10**6 + e]" in line.code and not line.library for line in lines)


# Algorithm 3


def run_algorithm_3(I: np.ndarray, F: np.ndarray, K_B: int) -> np.ndarray:
    """Run the listing for one thread, whose tile is the block's, line by line."""
    K, text = len(I), listing.ALGORITHM_3
    R_I, R_F, S_I, S_F = ([None, None] for _ in range(4))
    R_O = np.zeros((len(F), I.shape[1]))
    load, store = 1, 0  # of the arrays of shared memory
    assert "S_I[0] <- load" in text[2]
    S_I[0], S_F[0] = I[:K_B], F[:, :K_B]
    R_I[0], R_F[0] = S_I[0][0], S_F[0][:, 0]  # lines 6 and 7
    for kk in range(K // K_B):  # line 8: 0 to K / K_B - 1
        filled, read_ = 1, 0  # of the registers
        for k in range(1, K_B):  # line 9: 1 to K_B - 1
            R_I[filled], R_F[filled] = S_I[store][k], S_F[store][:, k]
            R_O += np.outer(R_F[read_], R_I[read_])  # line 12
            filled, read_ = read_, filled
        last_I, last_F = R_I[1], R_F[1]
        if kk != K // K_B - 1:  # line 13
            next_ = slice((kk + 1) * K_B, (kk + 2) * K_B)
            S_I[load], S_F[load] = I[next_], F[:, next_]
            load, store = store, load
            R_I[0], R_F[0] = S_I[store][0], S_F[store][:, 0]  # lines 17 and 18
        R_O += np.outer(last_F, last_I)  # line 19
    return R_O


@same
@pytest.mark.parametrize("K_B", [2, 4, 8])
def test_the_listing_multiplies_every_term_once(K_B):
    generator = np.random.default_rng(1)
    I, F = generator.integers(-5, 6, (8, 3)), generator.integers(-5, 6, (4, 8))
    assert np.array_equal(run_algorithm_3(I, F, K_B), F @ I)


@same
def test_each_line_of_algorithm_3_is_beside_code_of_m11():
    shown = lessons.algorithm_3()
    numbers = [int(line[:2]) for paper, _ in shown.rows for line in paper]
    assert numbers == [*range(1, 21)]
    assert all(code for _, code in shown.rows)
    text = str(shown)
    assert "__syncthreads()                                        cuda.syncthreads()" in text
    assert "R_F[1] x R_I[1]" in text
    assert text.count("multiply(") == 3
    assert "<pre" in shown.as_html()


# The plain im2win of lesson 11


@pytest.fixture(scope="module")
def specified():
    """Return what the lesson says in NumPy."""
    there: dict[str, object] = {}
    (path,) = sources(["11_im2win_full"])
    for cell in read(path).cells:
        if cell.role == "setup":
            exec(cell.text, there)
    return SimpleNamespace(**there)


def test_the_lesson_s_layouts_are_those_of_m11(specified):
    input = np.arange(SMALL.N_i * SMALL.C_i * SMALL.H_i * SMALL.W_i, dtype=np.float32)
    weight = np.arange(SMALL.M * SMALL.K, dtype=np.float32).reshape(SMALL.weight_shape)
    input = input.reshape(SMALL.input_shape)
    made = stage_named("m11").prepare(SMALL, TILE)
    own = plain_im2win.whole_im2win(
        plain_im2win.make_transform, plain_im2win.make_packing, plain_im2win.make_kernel
    )(SMALL, TILE)
    for program in (made, own):
        for buffer, launch, source, wanted in (
            (program.buffers[0], program.launches[0], input, (SMALL,)),
            (program.buffers[1], program.launches[1], weight, (SMALL, TILE)),
        ):
            target = np.full(buffer.shape, np.nan, np.float32)
            flat = source if launch.arguments[0] == str(launch.arguments[0]) else source.reshape(-1)
            lessons.run(launch.kernel, launch.grid, launch.block, flat, target.reshape(-1))
            spec = specified.windows_in_numpy if source is input else specified.packed_in_numpy
            assert np.array_equal(target.reshape(-1), spec(source, *wanted).reshape(-1)), (
                buffer.name
            )


def check_whole(specified, **changed):
    functions = {
        name: getattr(plain_im2win, f"make_{name}") for name in ("transform", "packing", "kernel")
    }
    made = functions | changed
    return lessons.check_im2win(
        *made.values(), windows=specified.windows_in_numpy, packed=specified.packed_in_numpy,
        at_most=4,
    )  # fmt: skip


@pytest.mark.slow
@same
def test_a_whole_im2win_passes_and_its_first_wrong_part_is_named(quick, specified, monkeypatch):
    noted = []
    monkeypatch.setattr(limits, "note", noted.append)
    found = check_whole(specified)
    assert found.passed, found
    assert noted == ["passed"]  # one try, although it is made of three checks
    wrong = check_whole(
        specified, packing=lambda problem, tile: plain_im2win.make_transform(problem)
    )
    assert wrong.result in ("answer", "broken", "out of bounds")
    assert any(what.startswith("make_transform: ") for what in wrong.right)


@pytest.mark.slow
@same
def test_a_plain_kernel_asks_for_more_than_a_learner_s_may(quick, specified):
    found = lessons.check_im2win(
        plain_im2win.make_transform, plain_im2win.make_packing, plain_im2win.make_kernel,
        windows=specified.windows_in_numpy, packed=specified.packed_in_numpy, at_most=1.01,
    )  # fmt: skip
    assert found.result == "counts"


# Small kernels


@same
def test_an_animation_shows_a_line_after_the_other():
    picture = lessons.line_by_line(lessons.halo(), "a", "tile", "out", hidden="out[i]")
    text = picture.data.decode()
    frames = re.findall(r"<g class=.*?</g>", text)
    codes = [re.findall(r">([^<>]*)</text></g>", frame)[0] for frame in frames]
    assert codes[:3] == [
        "tile[t + 1] = a[i]",
        "tile[0] = a[i - 1]",
        "tile[THREADS + 1] = a[i + 1]",
    ]
    assert codes[3:] == ["cuda.syncthreads(): all wait", *["..."] * 3]
    assert frames[0].count('stroke-width="2"') == 8  # eight stores to the tile
    steps = lessons.line_by_line(lessons.reduction(), "part")
    assert steps.alt == "Animation: part in 12 steps of a block"
    assert steps.data.decode().count("all wait") == 4  # after the load, and in three iterations


def test_a_trace_of_a_stage_may_be_animated_too():
    small = ConvProblem(1, 1, 3, 4, out_channels=1, kernel_size=2)
    assert "steps of a block" in lessons.line_by_line(trace_stage("m01", small).main, "output").alt


@pytest.mark.same_in_cudasim
def test_a_whole_im2win_s_kernel_is_given_arguments_by_name() -> None:
    def forgets(problem, tile):
        plain_im2win.make_kernel(problem, tile)

    def renames(problem, tile):
        @cuda.jit
        def im2win(x, packed, bias, output):
            output[0] = x[0] + packed[0] + bias[0]

        return im2win

    problem, tile = ConvProblem(1, 3, 5, 5, 4, 3), Tile(8, 16, 8, 2, 2)
    for maker, says in (
        (forgets, "forgets returned None: it must return a kernel"),
        (renames, "im2win has a parameter x: each must be one of windows, packed, bias, output"),
    ):
        prepare = plain_im2win.whole_im2win(
            plain_im2win.make_transform, plain_im2win.make_packing, maker
        )
        with pytest.raises(ValueError, match=f"^{says}"):
            prepare(problem, tile)
