"""``check``: wrong kernels are rejected for the right reason, right ones that differ accepted."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cuda.pathfinder import DynamicLibNotFoundError
from numba import cuda
from stage_mutants.by_hand import mistakes_of
from typer.testing import CliRunner

import convlab
from convlab.checking import checker, launches, loop_limits, machine_code, outcome
from convlab.commands.cli import app
from convlab.ladder import LADDER, Program, stage_named
from convlab.ladder.main import m02_implicit_gemm
from convlab.simulation.recording.loops import EndlessLoop
from convlab.simulation.rules.memory_traffic import WARP

pytestmark = pytest.mark.same_in_cudasim

FEW = ("everything at once", outcome.SPOILED, launches.SEVERAL)
QUICK = ("m01", "m03")  # test_mutants.py has all
# Of each kind one: with a field, with layout transforms, split sums, tensor cores, warpgroups.
KINDS = ("c02_receptive_field", "m11", "m15", "t03", "t05")
UNNAMED = ("c02_receptive_field", "m11")  # whose make_kernel does not fit, so that prepare is taken


@pytest.fixture(autouse=True)
def no_compilers(request, monkeypatch):
    """Without the mark `gate` nothing is compiled, whether the compilers are here or not."""
    if request.node.get_closest_marker("gate") is None:
        monkeypatch.setattr(checker, "compiled", lambda program, stages: None)


@pytest.fixture
def few_problems(monkeypatch):
    tried(monkeypatch, *FEW)


def tried(monkeypatch, *names):
    for table in ("PROBLEMS", "FOR_SOME"):
        every = getattr(launches, table)
        monkeypatch.setattr(launches, table, {name: every[name] for name in names if name in every})
    small = convlab.ConvProblem(1, 3, 8, 8, 16, 3, padding=1)
    monkeypatch.setattr(checker.workloads, "MODEL", small)  # what is counted


def source_of(name: str) -> str:
    _, *folders, module = stage_named(name).module.split(".")
    folder = Path(convlab.__file__).parent.joinpath(*folders)
    return (folder / f"{module}.py").read_text(encoding="utf-8")


def changed(tmp_path: Path, name: str, *replacements: tuple[str, str]) -> str:
    """The stage's file with pieces replaced; what to check in it."""
    text = source_of(name)
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return written(tmp_path, text)


def written(tmp_path: Path, text: str) -> str:
    """The target of ``convlab check`` for a file with this text."""
    file = tmp_path / "mine.py"
    file.write_text(text, encoding="utf-8")
    return f"{file}::prepare"


OWN = [
    pytest.param(name, mistake.text, id=f"{name}-{mistake.what}")
    for name in QUICK
    for mistake in mistakes_of(name)
    if mistake.module == stage_named(name).module
]
assert len(OWN) >= 10


@pytest.mark.parametrize(("name", "text"), OWN)
def test_mistakes_in_stages_are_rejected(few_problems, tmp_path, name, text):
    found = convlab.check(written(tmp_path, text), name)
    assert not found.ok
    assert not found.counts


@pytest.mark.slow
@pytest.mark.parametrize("stage", KINDS)
def test_the_stages_themselves_are_as_good_as_they_are(few_problems, tmp_path, stage):
    target = changed(tmp_path, stage)
    if stage in UNNAMED:
        target = target.removesuffix("::prepare")
    found = convlab.check(target, stage)
    assert found.as_good
    assert all(count.yours == count.stages for count in found.counts)
    lines = found.as_text(40).plain.splitlines()
    at = next(number for number, line in enumerate(lines) if "no race" in line)
    assert lines[at + 1].startswith(" " * 10)  # below the text, not below its mark


# The two others call a library and have no kernel to check.
CHECKED = [stage for stage in LADDER if stage.name not in ("i04_im2col_blas", "i05_unfold_einsum")]


@pytest.mark.parametrize("stage", CHECKED, ids=lambda stage: stage.name)
def test_the_check_of_every_stage_runs_and_calls_it_right(stage):
    """The check looks at other arrays of each stage, so every stage has a turn, on one problem. The
    counts that follow are tested above, of each kind of stage."""
    third = launches.planned(stage, stage.prepare)[2]
    model = stage.adapted(third.problem)
    answer, findings, _ = next(checker.attempts(stage, stage.prepare, 0, model, tried=[third]))
    assert answer.ok, answer.failed
    assert not findings


@pytest.mark.parametrize("name", ["m03", "m08"])
def test_a_barrier_of_a_warp_for_one_of_the_block_is_a_race(few_problems, tmp_path, name):
    """Within one warp both do the same, so the tiny tiles alone do not show it."""
    found = convlab.check(changed(tmp_path, name, ("cuda.syncthreads()", "cuda.syncwarp()")), name)
    assert {finding.kind for finding in found.findings} == {"shared race"}
    assert "another order" in replace(found, answers=()).conclusion


# The problems that are there to make an output wrong: another finding would not show that they do.
FOR_WRONG_OUTPUTS = (outcome.BESIDE, launches.WITHIN_ROWS)


@pytest.mark.parametrize(
    ("where", "name", "old", "new"),
    [
        ("dilation", "m01", "f_h * d_h - p_h", "(f_h - p_h) * d_h"),
        ("many channels, a wide image", "m01", "f_w * d_w - p_w", "(f_w - p_w) * d_w"),
        (outcome.RELU, "m14", "tile, relu=relu, row_of", "tile, relu=False, row_of"),
        (launches.PARTS[0], "c03_output_channels", "range(0, H_f, U)", "range(0, W_f, U)"),
        (launches.PARTS[1], "c03_output_channels", "range(0, W_f, V)", "range(0, H_f, V)"),
        (launches.TALL, "m15", "if slice_ + 1 < end:", "if slice_ + 2 < end:"),
        (launches.SEVERAL, "m03", "cuda.blockIdx.y) * M_B", "cuda.blockIdx.y) * K_B"),
        (launches.SEVERAL, "m06", "cuda.blockIdx.y) * M_B", "cuda.blockIdx.y) * N_B"),
        (launches.SEVERAL, "m11", "int64(m0) * K_P", "int64(m0) * K_B"),
        (launches.DEEP, "m10", "(t + f * THREADS) % K_4", "(t + f * N_B) % K_4"),
        (launches.DEEP, "t03", "k * (2 * M_B)", "k * (2 * N_B)"),
        (launches.SPLIT, "m15", "SHARE, SLICES)", "SHARE, DEPTH)"),
        (launches.SPLIT_TOO, "t06", "if SHARE > AT_FIRST:", "if SHARE < AT_FIRST:"),
        (outcome.SPOILED, "h02", "chunk < CHUNKS - 1:", "chunk < CHUNKS:"),
        (outcome.ADDED, "h01", "if m < M and n + 8 * row < N:", "if m < M and n + 8 < N:"),
        (outcome.ADDED_TOO, "h01", "residual, m + 2 * j + 1,", "residual, m + 2 * j,"),
        (outcome.ADDED, "h02", "add_residual(D, R, 0)", "pass"),
        (outcome.ADDED, "h03", "residual, m_t, n_t + i * 64)", "residual, m_t, n_t)"),
        (launches.CHUNKS, "h02", "chunk < CHUNKS - 1:", "chunk < CHUNKS - 2:"),
        (launches.STAYING, "h03", "my_turn ^ uint32(1)", "my_turn ^ uint32(0)"),
        (launches.STAYING, "h06", "int64(place) * FROM + piece", "int64(piece) * FROM + place"),
        (launches.WITHIN_ROWS, "h02", "int32(column * s_w)", "int32(column * s_h)"),
        (launches.WITHIN_ROWS, "h01", "cuda.blockIdx.x) * N_B", "cuda.blockIdx.x) * M_B"),
        (launches.BROKEN_PIECE, "h08", "2 * EIGHT > NUMBERS", "2 * EIGHT > NUMBERS + 1"),
        (outcome.BESIDE, "h04", "valid = filter_row < F_ROWS", "valid = filter_row <= F_ROWS"),
        (outcome.BESIDE, "h04", "(thread_in_group % PARTS * STRIP)", "(0)"),
        (
            launches.STAYING_TOO,
            "h04",
            "cuda.gridDim.x * WARPGROUPS",
            "cuda.blockDim.x * WARPGROUPS",
        ),
    ],
)
def test_what_ordinary_launches_hide_is_launched_too(monkeypatch, tmp_path, where, name, old, new):
    tried(monkeypatch, where)
    found = convlab.check(changed(tmp_path, name, (old, new)), name)
    assert [answer.name for answer in found.answers][:1] == [where]
    assert not found.ok
    if where in FOR_WRONG_OUTPUTS:
        assert found.answers[0].wrong is not None


def test_options_are_tried_only_where_the_kernel_has_them_too(monkeypatch):
    names = ("everything at once", outcome.RELU, launches.SPLIT)
    tried(monkeypatch, *names)
    own = stage_named("m15").prepare
    alone = convlab.check(lambda problem, tile: own(problem, tile), "m15")
    both = convlab.check(own, "m15")
    assert alone.ok
    assert both.ok
    assert [answer.name for answer in alone.answers] == [names[0], checker.COUNTED]
    assert [answer.name for answer in both.answers] == [*names, checker.COUNTED]


TILED = [stage for stage in LADDER if stage.tiny_tile is not None]


def test_every_kernel_is_checked_with_several_warps() -> None:
    """Within one warp a missing barrier of the block does no harm. That holds for the kernels
    before the main one as well, some of which are for a few problems only."""
    most: dict[tuple[str, str], int] = {}
    for stage in TILED:
        for one in launches.planned(stage, stage.prepare):
            for launch in stage.prepare(one.problem, one.tile, **one.options).launches:
                kernel = stage.name, launch.kernel.py_func.__qualname__
                most[kernel] = max(most.get(kernel, 0), math.prod(launch.block))
    assert [kernel for kernel, threads in most.items() if threads <= WARP] == []


@pytest.mark.parametrize("stage", TILED, ids=lambda stage: stage.name)
def test_a_checked_launch_has_several_warps_and_blocks(stage):
    tile = launches.tile_for(stage, launches.SEVERAL)
    everything = stage.adapted(checker.EVERYTHING)
    problem = launches.in_blocks(stage, everything, tile, rows=2)
    main = stage.prepare(problem, tile).launches[-1]
    assert math.prod(main.block) > 2 * 32
    assert math.prod(main.grid) > 1
    assert problem.out_channels > tile.M_B


@pytest.mark.parametrize("stage", TILED, ids=lambda stage: stage.name)
def test_a_stage_is_checked_in_another_tile_whatever_it_takes(stage):
    tiles = {launches.tile_for(stage, name) for name in launches.TILES}
    assert tiles - {None, stage.tiny_tile}


def test_a_right_kernel_that_asks_for_more_is_right_and_told_so(few_problems, tmp_path):
    found = convlab.check(lambda problem, tile: m02_implicit_gemm.make_kernel(problem), "m03")
    assert not found.ok  # m02 is launched with threads along y, m03 along x alone
    pixel = "input[i_n, i_c, i_h, i_w]"
    twice = (f"pixel = {pixel}", f"pixel = max({pixel}, {pixel})")
    found = convlab.check(changed(tmp_path, "m01", twice), "m01")
    assert found.ok
    assert not found.as_good
    (more,) = [count for count in found.counts if count.unit == "requests to global memory"]
    assert more.times > 1.4
    assert found.conclusion == "Right. It asks more of memory than m01_direct, though."
    order = "f_h = e % H_f\n        column = e // H_f % W_w"  # neighbours in the windows
    swapped = "column = e % W_w\n        f_h = e // W_w % H_f"  # neighbours in the input
    found = convlab.check(changed(tmp_path, "m09", (order, swapped)), "m09")
    assert "asks more of memory" in found.conclusion
    assert any(count.unit == "transforms: sectors stored" for count in found.counts if not count.ok)
    found = convlab.check(lambda problem, tile: m02_implicit_gemm.prepare(problem), "m03")
    counts = {count.unit: count for count in found.counts}
    assert found.ok
    assert counts["requests to global memory"].times > 5  # what shared memory saves
    assert counts["wavefronts of shared memory"].compared == "none"


def test_what_goes_wrong_only_where_it_is_counted_is_told(few_problems, tmp_path):
    barrier = "cuda.syncthreads()  # all have fetched"
    at_most = f"if N < {checker.workloads.MODEL.N}:\n                {barrier}"
    found = convlab.check(changed(tmp_path, "m03", (barrier, at_most)), "m03")
    assert {finding.kind for finding in found.findings} == {"shared race"}
    assert found.answers[-1].name == checker.COUNTED
    assert not found.counts


def test_a_kernel_that_needs_fewer_barriers_is_told_so(few_problems, tmp_path):
    """Another pair of slices each time needs no barrier before it is filled."""
    pairs = [
        ("(M_B, K_B), (K_B, N_B)", "(2, M_B, K_B), (2, K_B, N_B)"),
        ("S_F[e // K_B, e % K_B]", "S_F[k0 // K_B % 2, e // K_B, e % K_B]"),
        ("S_I[e, tx]", "S_I[k0 // K_B % 2, e, tx]"),
        ("S_F[ty, k] * S_I[k, tx]", "S_F[k0 // K_B % 2, ty, k] * S_I[k0 // K_B % 2, k, tx]"),
        ("            cuda.syncthreads()  # all have read", "            #"),
    ]
    found = convlab.check(changed(tmp_path, "m03", *pairs), "m03")
    assert found.as_good
    assert found.conclusion.endswith("It has fewer barriers than m03_shared_memory.")


@pytest.mark.parametrize(
    ("name", "old", "new", "loop"),
    [
        ("m01", "total = float32(0)",
         "total = float32(0)\n        while o_h >= 0:\n            pass", "while o_h >= 0:"),
        # The loop at fault is the outer one, and its threads take turns in it.
        ("m03", "            cuda.syncthreads()  # all have read",
         "            while True:\n                for _ in range(9):\n"
         "                    cuda.syncthreads()  #", "while True:"),
        ("m01", "total = float32(0)",
         "for i in range(10**9):\n            total = float32(0)", "for i in range(10**9):"),
        # Endless only where it is counted.
        ("m01", "total = float32(0)",
         "total = float32(0)\n        while H_o == W_o == 8:\n            total = float32(0)",
         "while H_o == W_o == 8:"),
    ],
)  # fmt: skip
def test_an_endless_loop_ends_and_is_named(few_problems, tmp_path, name, old, new, loop):
    found = convlab.check(changed(tmp_path, name, (old, new)), name)
    error = found.answers[-1].error
    assert f"the loop `{loop}` does not end" in error
    assert stage_named(name).name in error
    assert "mine.py:" in error
    assert f"does not run to its end on 1 of {len(found.answers)} problems" in found.conclusion


def test_a_loop_too_many_is_not_called_endless(few_problems, tmp_path):
    many = "total = float32(0)\n        for _ in range(2_000):\n            total = float32(0)"
    found = convlab.check(changed(tmp_path, "m01", ("total = float32(0)", many)), "m01")
    assert "iterations, those of m01_direct" in found.answers[-1].error


def test_only_for_a_kernel_of_many_iterations_the_stage_s_are_counted(few_problems, monkeypatch):
    """To count them takes about as long as to run the kernel."""
    counted = []

    def iterations(stage, problem, tile, most=10**6):
        counted.append(problem)
        return most

    monkeypatch.setattr(checker, "stage_iterations", iterations)
    assert convlab.check(stage_named("m03").prepare, "m03").ok
    assert counted == []
    monkeypatch.setattr(loop_limits, "ITERATIONS", 1_000)
    assert convlab.check(stage_named("m03").prepare, "m03").ok  # in every order of its threads
    assert {*counted} > {launches.EVERYTHING}
    monkeypatch.setattr(checker, "stage_iterations", lambda *_: 1)
    (answer,) = convlab.check(stage_named("m03").prepare, "m03").answers
    assert answer.endless


def test_the_stage_s_iterations_are_counted_as_far_as_a_kernel_needs_them():
    """A kernel may run just as many as if all of the stage's were known."""
    stage, problem = stage_named("m03"), convlab.ConvProblem(1, 3, 5, 5, 4, 3, padding=1)
    own = partial(loop_limits.stage_iterations, stage, problem, stage.tiny_tile)
    every = own()
    assert every > 1_000
    assert [own(most) for most in (100, every - 1, every, every + 1)] == [
        100, every - 1, every, every
    ]  # fmt: skip
    asked = []

    def counted(most):
        asked.append(most)
        return min(most, 100_000)

    loops = loop_limits.limited_loops(counted)
    allowed = loop_limits.ITERATIONS + loop_limits.TIMES * 100_000
    assert sum(1 for _ in loops.run(0, range(allowed))) == loops.limit == allowed
    with pytest.raises(EndlessLoop):
        next(loops.run(0, range(1)))
    assert asked[0] == 20_000  # a fifth of the stage's
    assert asked == sorted(asked)


@pytest.mark.parametrize("name", ["m08", "t02", "h01"])
def test_a_stage_s_iterations_are_those_of_the_trace_that_counts_its_traffic(name):
    """The trace already runs the loops, so no second run has to count their iterations."""
    stage = stage_named(name)
    problem = stage.adapted(convlab.ConvProblem(1, 3, 8, 8, 16, 3, padding=1))
    found = checker.counts_of_stage(stage, problem, 0)
    assert found.iterations == loop_limits.stage_iterations(stage, problem, stage.model_tile) > 0


def test_without_an_output_no_answer_is_called_right_or_wrong(few_problems, tmp_path):
    out = "pixel = input[i_n, i_c, i_h, i_w]", "pixel = input[i_n, i_c + C_i, i_h, i_w]"
    found = convlab.check(changed(tmp_path, "m01", out), "m01")
    assert all(answer.check is None for answer in found.wrong)
    assert "it does not run to its end on 2 of 2 problems, so there is no answer" in str(found)
    assert "wrong on" not in found.conclusion
    assert "came out right" not in found.conclusion


@cuda.jit
def leaves_out_a_column(input, weight, bias, output):
    at = cuda.grid(1)
    if at < output.size:
        _, c, h, w = output.shape
        x = at % w
        if x != 1:
            output[at // (c * h * w), at // (h * w) % c, at // w % h, x] = 0


def test_the_picture_shows_the_pixels_that_are_wrong(monkeypatch):
    monkeypatch.setattr(launches, "PROBLEMS", {"small": convlab.ConvProblem(1, 1, 3, 4, 1, 1)})
    monkeypatch.setattr(launches, "FOR_SOME", {})
    zeros = lambda p, seed: [np.zeros(s, np.float32) for s in (p.input_shape, p.weight_shape, 1)]  # noqa: E731
    monkeypatch.setattr(checker, "random_tensors", zeros)
    found = convlab.check(leaves_out_a_column, "m01")
    assert found.answers[0].map_of_wrong()[1:] == ["·x··"] * 3
    card = found._repr_html_()
    assert all(piece in card for piece in ("<pre>", "·x··", "Not yet"))
    assert "<script" not in card


def test_a_kernel_that_raises_or_writes_to_its_input_says_so(few_problems):
    @cuda.jit
    def raises(input, weight, bias, output):
        output[0, 0, 0, 0] = no_such_name  # noqa: F821

    @cuda.jit
    def writes_to_its_input(input, weight, bias, output):
        input[0, 0, 0, 0] += 1

    found = convlab.check(raises, "m01")
    assert "it raised NameError" in found.answers[0].error
    assert "test_checking.py:" in found.answers[0].error
    assert "NameError" in str(found)
    found = convlab.check(writes_to_its_input, "m01")
    assert "wrote to input" in found.answers[0].error
    assert {finding.kind for finding in found.findings} == {"global race"}
    assert "did not run to its end" not in str(found)


def test_a_kernel_that_skips_padding_is_told_what_padding_is(tmp_path):
    line = "total += pixel * weight[o_c, i_c, f_h, f_w]"
    inside = f"                    {line}", f"                        {line}"
    found = convlab.check(changed(tmp_path, "m01", inside), "m01")
    assert "skips padding differs only here" in found.advice


@pytest.mark.gate
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("= total + bias[o_c]\n", "= total + bias[o_c]\n        return total\n", "void return"),
        ("total = float32(0)", "import math\n        total = float32(0)", "IMPORT_NAME"),
    ],
)
def test_what_numba_does_not_compile_is_not_right(few_problems, tmp_path, old, new, said):
    found = convlab.check(changed(tmp_path, "m01", (old, new)), "m01")
    assert all(answer.ok for answer in found.answers)
    assert not found.ok
    assert said in found.machine.error
    assert "Numba cannot compile" in found.conclusion


@pytest.mark.gate
@pytest.mark.parametrize(
    "lacking", ["numba.cuda.cudadrv.nvrtc.get_arch_option", "cuda.bindings.nvjitlink.create"]
)
def test_kernels_are_not_compiled_where_the_compilers_libraries_are_not(monkeypatch, lacking):
    """Installed with no GPU: cuda.pathfinder raises at the first call."""

    def no_library(*args, **kwargs):
        raise DynamicLibNotFoundError("Failure finding libnvrtc.so\nNo such file")

    monkeypatch.setattr(lacking, no_library)
    program = stage_named("m01").prepare(checker.workloads.MODEL)
    assert machine_code.compiled(program, program) is None


@pytest.mark.gate
def test_float64_is_right_but_not_as_good(few_problems, tmp_path):
    change = "total = float32(0)", "total = 0.0"
    found = convlab.check(changed(tmp_path, "m01", change), "m01")
    assert found.ok
    assert not found.as_good
    assert "DADD" in found.float64
    assert "computes in float64" in found.conclusion


@pytest.mark.parametrize(
    ("kernel", "stage", "said"),
    [
        (3, "m03", "kernel is 3"),
        (dict, "m03", "kernel is <class 'dict'>"),
        (lambda: None, "m03", "like m03_shared_memory's it must take .*::prepare"),
        (lambda problem, tile: Program((), ()), "m03", "must end with a kernel's Launch"),
        (lambda problem, tile: None, "m03", "returned None"),
        (cuda.jit(lambda a: None), "m03", r"takes \(a\): like m03_shared_memory's kernel"),
        ("nowhere.py::make_kernel", "m03", "'nowhere.py'"),
        ("README.md", "m03", "'README.md'"),
        # Before the file is read.
        ("nowhere.py", "i05_unfold_einsum", "^stage is i05_unfold_einsum, which has no kernel"),
        ("nowhere.py", "i04_im2col_blas", "^stage is i04_im2col_blas, which has no kernel"),
    ],
)
def test_what_cannot_be_checked_is_refused(kernel, stage, said):
    with pytest.raises(ValueError, match=said):
        convlab.check(kernel, stage)


MAKES = "def make_kernel(problem, tile):\n    "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no kernel 'make_kernel'.* neither"),
        ("def other(): pass", r"it has other; try .*mine\.py::other$"),
        ("x = (", r"mine\.py:1: SyntaxError"),
        ("import sys\nsys.exit(3)", r"mine\.py:2: the file ends the program"),
        ("import nothing.such", "mine.py:1: ModuleNotFoundError: No module named 'nothing'"),
        ("\n\nraise KeyError(5)", r"mine\.py:3: KeyError: 5"),
        (f"{MAKES}1 // 0", r"mine\.py:2: make_kernel raised ZeroDivisionError"),
        (f"{MAKES}tile.no_such", r"mine\.py:2: make_kernel raised AttributeError"),
        (f"{MAKES}raise KeyError", r"mine\.py:2: make_kernel raised KeyError$"),
    ],
)
def test_a_file_that_gives_no_kernel_is_refused(tmp_path, text, said):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(ValueError, match=said):
        convlab.check(str(file), "m03")
    assert invoke(str(file), "--as", "m03").exit_code == 2


def test_a_file_is_read_anew_each_time(few_problems, tmp_path):
    target = changed(tmp_path, "m03", ("total + bias[m]", "total"))
    assert not convlab.check(target, "m03").ok
    changed(tmp_path, "m03")
    assert convlab.check(target, "m03").ok


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["check", *arguments])


def test_the_command(few_problems, tmp_path):
    target = changed(tmp_path, "m01")
    result = invoke(target, "--as", "m01", "--json", "-")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["ok"], document["as_good"]) == (True, True)
    assert "Right, and it asks no more of memory than m01_direct." in result.stderr
    target = changed(tmp_path, "m01", ("total + bias[o_c]", "total"))
    result = invoke(target, "--as", "m01")
    assert result.exit_code == 1
    assert "wrong on 2 of 2 problems." in result.stdout
    result = invoke(target, "--as", "s99")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "stage is 's99'" in result.stderr
