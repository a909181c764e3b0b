"""The lessons' pictures: what they say is what kernels did, or what was measured."""

from __future__ import annotations

import re
from functools import cache
from html import unescape
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numba import cuda

from convlab import ConvProblem, Tile, lessons, trace, trace_stage
from convlab.ladder import production_tile, stage_named
from convlab.ladder.main import m01_direct, m02_implicit_gemm
from convlab.lessons import animations, requests
from convlab.lessons.charts import MemoryResult, SweepResult, result, stored
from convlab.lessons.exercises import numbered
from convlab.lessons.layouts import made_of_numbers, windows_seen
from convlab.lessons.maps import as_matrix, threads_on
from convlab.lessons.requests import reads_for_a_product
from convlab.lessons.timelines import ARRIVE, ASK, BARRIER, MULTIPLY, READ, SMALL, SMALL_TILE
from convlab.problems.unfold import unfold
from convlab.problems.workloads import paper_layer
from convlab.tracing.views import page

pytestmark = pytest.mark.same_in_cudasim

PROBLEM = ConvProblem(1, 2, 6, 8, 4, 3, padding=1)
WIDE = ConvProblem(1, 1, 12, 40, 1, 5)
STRIDED = ConvProblem(2, 1, 6, 7, 1, (3, 2), stride=(1, 2), dilation=(1, 2))
UNUSED = ConvProblem(1, 1, 4, 4, 1, 1, stride=2)
FIGURE_1 = ConvProblem(1, 3, 3, 3, out_channels=2, kernel_size=2)
FLOAT4_TILE = Tile(M_B=16, N_B=16, K_B=4, M_T=4, N_T=4)
SCALAR_TILE = Tile(M_B=4, N_B=32, K_B=4, M_T=2, N_T=2)


@cache
def launched(stage, problem=PROBLEM, tile=None):
    return trace_stage(stage, problem, tile).main


event_log = cache(lessons.event_log)


# What a picture's words must have. Those of the lessons are held whole by test_lesson_notebooks.py.
SAYS = {
    "plane": (lambda: lessons.who_does_what(launched("m01"), plane=(0, 1)), "threads 48-95"),
    "thread": (lambda: lessons.one_thread(launched("m01"), 0),
               "reads 8 of input, reads 18 of weight, writes 1 of output"),
    "field": (lambda: lessons.region_and_field(launched("c02_receptive_field", WIDE), WIDE),
              "fetches 12 x 36 pixels of an input channel and computes 8 x 32"),
    "users": (lambda: lessons.who_uses(launched("m01"), PROBLEM, (0, 1, 0, 7)),
              "the 16 outputs that use it, the first under filter tap 1,2, the last under 0,1"),
    "strided": (lambda: lessons.who_uses(launched("m01", STRIDED), STRIDED, (1, 0, 3, 4)),
                "the 6 outputs that use it, the first under filter tap 2,1, the last under 0,0"),
    "unused": (lambda: lessons.who_uses(launched("m01", UNUSED), UNUSED, (0, 0, 1, 1)),
               "the 0 outputs that use it"),
    "adders": (lambda: lessons.who_adds(launched("c01_input_channels"), PROBLEM), "2 threads add"),
    "column": (lambda: lessons.column_of_windows(m02_implicit_gemm.make_kernel, "m02", PROBLEM, 6),
               "18 terms, 6 of them padding, the others in 12 pixels"),
    "im2col": (lambda: lessons.windows_written_out(ConvProblem(1, 2, 3, 4, 1, 2), column=4),
               "The matrix stores 48 numbers for 24 pixels, a pixel up to 4 times"),
    "figure 1": (lambda: lessons.im2col_beside_im2win(FIGURE_1), "12 x 4 = 48", "3 x 2 x 6 = 36"),
    "orders": (lambda: lessons.im2win_orders(ConvProblem(1, 2, 3, 5, 2, 2)),
               "2 x 4 contiguous numbers in m09 and 1 x 8 in m11"),
    "packed": (lambda: lessons.packed_filter(ConvProblem(1, 2, 4, 4, 6, (3, 2)), Tile(4, 4, 8)),
               "A filter of 2 x 3 x 2 numbered weights", "2 matrices of 16 terms x 4 output"),
    "warps": (lambda: lessons.warps_of_blocks(launched("m01")), "1 block of 256 threads: 8 warps"),
    "pipeline": (lambda: lessons.pipeline_stages(event_log("m15")), "at most 2."),
    "tile": (lambda: lessons.tile_of_threads(launched("m05", tile=SCALAR_TILE), PROBLEM, 5),
             "in 2 of the rows and 2 of the columns"),
    "scalar": (lambda: lessons.reads_in_turn({"m05": launched("m05", tile=SCALAR_TILE)}),
               "F F I I F F"),
    "float4": (lambda: lessons.thread_in_tile(launched("m06", tile=FLOAT4_TILE), PROBLEM, 1),
               "2 reads from shared memory, each of which brings 4 numbers: 4", "transposed"),
    "lanes": (lambda: lessons.who_holds_what(lane=6),
              "(group_id = 1, thread_in_group = 2) holds A[1, 2], A[1, 6]"),
    "bars": (lambda: lessons.side_by_side({"m01": launched("m01")}, "requests to global memory"),
             f"m01 {launched('m01').total('requests'):,}"),
    "memories": (lessons.memory_levels, "L2 cache: 60 MiB, 288 cycles, 5.7 TB/s"),
    "speeds": (lambda: lessons.ladder_speeds("conv4"), "m11"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAYS)
def test_a_picture_says_what_the_kernel_did(name):
    draw, *said = SAYS[name]
    picture = draw()
    ElementTree.fromstring(picture.data)
    for piece in said:
        assert piece in picture.alt + picture.caption


def frames_of(picture):
    """The words of each frame, by where they stand."""
    svg = "{http://www.w3.org/2000/svg}"
    return [
        {float(one.get("x")): one.text for one in frame.iter(f"{svg}text")}
        for frame in ElementTree.fromstring(picture.data).iter(f"{svg}g")
    ]


def test_a_tile_moves_over_the_input_term_by_term():
    launch = trace_stage("m03", PROBLEM, Tile(M_B=4, N_B=32, K_B=4)).main
    said = [{0.0: f"slice {k // 4}, term k = {k}"} for k in range(PROBLEM.K)]
    assert frames_of(lessons.tile_over_input(launch, 4)) == said


@pytest.mark.parametrize(("stage", "both"), [("m06", False), ("m08", True)])
def test_with_two_buffers_a_slice_comes_while_another_is_multiplied(stage, both):
    frames = frames_of(lessons.slices_in_buffers(**{stage: event_log(stage)}))
    at = {name: left + animations.WIDE / 2 for name, left in animations.LEFT.items()}
    assert any({at["in flight"], at["multiplied"]} <= frame.keys() for frame in frames) == both
    said = (frame[at["multiplied"]] for frame in frames if at["multiplied"] in frame)
    assert [*dict.fromkeys(said)] == [f"slice {number}" for number in range(4)]


def test_the_map_of_threads_is_the_kernel_s():
    threads = threads_on(launched("m01"), "output")
    assert threads.reshape(-1).tolist() == list(range(PROBLEM.M * PROBLEM.N))
    launch = launched("m05", tile=SCALAR_TILE)
    threads = as_matrix(threads_on(launch, "output"), PROBLEM)
    assert threads[:, :32].max() == SCALAR_TILE.threads - 1
    assert set(threads[:, 32:].flat) == {-1}
    assert reads_for_a_product(launch) == 1
    assert reads_for_a_product(launched("m06", tile=FLOAT4_TILE)) == 2 / 16


def test_a_block_that_did_not_run_is_not_said_to_access_nothing():
    def right_neighbours(a, out):
        i = cuda.grid(1)
        out[i] = a[i + 1]

    arrays = np.zeros(96, np.float32), np.zeros(128, np.float32)
    grey = "This block does not access the grey boxes."
    ended = "The launch ended before block 3 ran: a[96] is outside shape (96,)."
    for block, words in (1, grey), (3, ended):
        launch = trace(cuda.jit(right_neighbours), 4, 32, *arrays, block_shown=block).main
        assert lessons.who_does_what(launch, "out").legend[1:] == (words,)

    def races_in_two_blocks(out):
        if cuda.grid(1) < 64:
            out[0] = cuda.grid(1)

    launch = trace(cuda.jit(races_in_two_blocks), 4, 32, arrays[1], block_shown=3).main
    assert launch.findings  # a race does not end a launch
    assert lessons.who_does_what(launch, "out").legend[1:] == (grey,)


def test_a_request_s_picture_has_the_trace_s_sectors():
    launch = launched("m01")
    loads = [one for one in launch.requests if (one.array, one.operation) == ("input", "load")]
    for number in (0, 3, 9):
        picture = lessons.one_request(launch, "input", number=number)
        assert f"lie in {loads[number].sectors} sectors" in picture.alt


@pytest.mark.parametrize("stage", ["m03", "m06"])  # scalar and wide
def test_requests_of_shared_memory_have_the_trace_s_wavefronts(stage):
    launch = launched(stage)
    shared = [one for one in launch.requests if one.array in ("S_F", "S_I")]
    assert {one.operation for one in shared} == {"load", "store"}
    for one in shared:
        words = requests.words_of(launch, one)
        _, wavefronts = requests.served(one, words)
        assert len(wavefronts) == one.wavefronts
        served = [lane for banks in wavefronts for lanes in banks.values() for lane in lanes]
        assert {*served} == {*one.lanes}
        assert {bank for banks in wavefronts for bank in banks} == {word % 32 for word in words}
    first = next(one for one in shared if (one.array, one.operation) == ("S_I", "load"))
    assert f"{first.wavefronts} wavefront" in lessons.one_request(launch, "S_I").alt


def test_what_was_measured_is_shown_as_stored():
    entries = {entry["name"]: entry for entry in stored()["stages"]}
    (layer,) = [one for one in result("memory", MemoryResult)["layers"] if one["layer"] == "conv9"]
    taken = layer["measured_bytes"]["i01_im2col"] / 2**20
    part = layer["workspace_bytes"]["m09_im2win"] / layer["tensor_bytes"]
    point = next(
        p
        for p in result("channel_sweeps_h200", SweepResult)["points"]
        if p["sweep"] == "kernel_size"
    )
    times = {name: one["time_ms"] for name, one in point["stages"].items()}
    gain = times["m01_direct"] / times["c02_receptive_field"]
    im2col = entries["i01_im2col"]["launch_ms"]["im2col"]
    workspaces = lessons.workspaces({"im2win": "m09"}, layers=("conv9",))
    for picture, said in (
        (
            lessons.measured("m01", "m03"),
            f"m03 shared memory {entries['m03_shared_memory']['time_ms']:.3g} ms",
        ),
        (lessons.measured_kernels("i01_im2col"), f"im2col {im2col:.3g} ms"),
        (lessons.measured_memory("i01_im2col"), f"i01 im2col {taken:,.0f} MiB"),
        (workspaces, f"Conv9 im2win {part:.2f}"),
        (
            lessons.measured_sweep("kernel_size", "c02_receptive_field"),
            f"{gain:.2f} at {point['value']}",
        ),
    ):
        assert said in picture.alt
    assert "H200" in lessons.measured("m01").caption


WRONG = {  # what is asked for in vain, and what the error says of it
    "number": (lambda: lessons.one_request(launched("m01"), "input", number=9999),
               "number is 9999"),
    "array": (lambda: lessons.one_request(launched("m01"), "nothing"), "array is 'nothing'"),
    "count": (lambda: lessons.side_by_side({}, "nothing"), "count is 'nothing'"),
    "column": (lambda: lessons.column_of_windows(m02_implicit_gemm.make_kernel, "m02", PROBLEM, 48),
               "column is 48: the matrix has columns 0 to 47"),
    "transform": (lambda: made_of_numbers("m01", FIGURE_1), "no layout transform"),
    "copies": (lambda: lessons.pipeline_stages(event_log("m08")), "no asynchronous copies"),
    "part": (lambda: lessons.part_of("m09", nothing=None), "no function 'nothing'"),
    "zero": (lambda: lessons.bits_of_split(0.0), "value is 0"),
    "not finite": (lambda: lessons.bits_of_split(np.inf), "value is inf"),
    "layer": (lambda: stored("conv99"), "layer is 'conv99': measured"),
    "sweep": (
        lambda: lessons.measured_sweep("nothing", "c02_receptive_field"),
        "sweep is 'nothing': measured",
    ),
    "stage of a sweep": (lambda: lessons.measured_sweep("size", "m15"), "measured"),
    "stage's memory": (lambda: lessons.measured_memory("m01"), "stage is 'm01_direct': measured"),
    "layer's memory": (lambda: lessons.measured_memory("i01_im2col", layer="conv0"), "measured"),
    "time": (lambda: lessons.measured("c02_receptive_field", layer="conv12"), "measured"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_not_there_is_refused(name):
    ask, said = WRONG[name]
    with pytest.raises(ValueError, match=said):
        ask()


def test_what_the_lessons_say_of_the_h200_is_what_was_measured():
    entries = {entry["name"]: entry for entry in stored()["stages"]}
    full = {name: entry["time_ms"] for name, entry in entries.items()}
    # c02_receptive_field and i01_im2col are not alone
    time = {name.split("_")[0]: time for name, time in full.items()} | full

    def parts(stage: str, layer: str = "conv9") -> tuple[float, float]:
        """Milliseconds of the layout transforms and of the main kernel."""
        stages = stored(layer)["stages"]
        (entry,) = (s for s in stages if s["name"] == stage or s["name"].startswith(f"{stage}_"))
        *before, main = entry["launch_ms"].values()
        return sum(before), main

    gain = {one: parts("m08", one)[1] / parts("m11", one)[1] - 1 for one in ("conv9", "conv7")}
    blas, im2win = sum(parts("i04_im2col_blas")), sum(parts("m11"))
    shown = ("m01_direct", "i01_im2col", "i02_im2col_per_image", "m11_warp_tiling")
    im2col = entries["i01_im2col"]["launch_ms"]
    memory = next(
        one for one in result("memory", MemoryResult)["layers"] if one["layer"] == "conv9"
    )
    taken, tensors = memory["measured_bytes"], memory["tensor_bytes"]
    points = [
        point["stages"] | {"size": point["value"]}
        for point in result("channel_sweeps_h200", SweepResult)["points"]
        if point["sweep"] == "kernel_size"
    ]
    wins = {
        name: [p["size"] for p in points if p[name]["time_ms"] < p["m01_direct"]["time_ms"]]
        for name in ("c02_receptive_field", "c03_output_channels")
    }
    bench = result("bench_h200", dict[str, Any])
    row = {(one["layer"], one["system"]): one for one in bench["rows"]}
    m15_ahead = {
        layer for layer, system in row if system == "t03_split_once"
        and row[layer, "m15_split_k"]["time_ms"] < row[layer, system]["time_ms"]
    }  # fmt: skip
    roof, tf32_roof = (bench["machine"][f"{kind}_flops"] for kind in ("fp32", "tf32"))
    reached = row["conv9", "t03_split_once"]["tflops"] * 1e12
    terms_elsewhere = {paper_layer(layer).K for layer, _ in row if layer not in m15_ahead}
    fastest_channels = min(
        time[one] for one in ("c01_input_channels", "c02_receptive_field", "c03_output_channels")
    )
    tile = {n: production_tile(stage_named(n), paper_layer("Conv9")) for n in ("m03", "m04")}
    claims = {
        "01: a respectable start": time["m01"] < 10 * time["m11"],
        "02: none of them is a step forward": fastest_channels > 0.9 * time["m01"],
        "02: where they win": wins
        == {"c02_receptive_field": [31, 64], "c03_output_channels": [9, 15, 31, 64]},
        "03: much faster than m01": time["i01_im2col"] < time["m01"] / 2,
        "03: slow image by image": time["i02_im2col_per_image"] > 3 * time["i01_im2col"],
        "03: m11 is the fastest": min(shown, key=time.__getitem__) == "m11_warp_tiling",
        "03: im2col is a good part": im2col["im2col"] > time["i01_im2col"] / 5,
        "03: BLAS is faster": parts("i04_im2col_blas")[1] < im2col["matrix_product"],
        "03: less time transposed": parts("i03_im2col_depth_last")[0] < im2col["im2col"],
        "03: several times the memory": taken["i01_im2col"] > 3 * tensors,
        "03: hardly any memory": taken["i02_im2col_per_image"] < tensors / 10,
        "04: several times slower than m01": time["m02"] > 2.5 * time["m01"],
        "04: m03 makes up for most": time["m03"] - time["m01"] < (time["m02"] - time["m01"]) / 3,
        "05: far faster than m02": time["m02"] > 2 * time["m03"],
        "05: not faster than m01": time["m03"] > 0.95 * time["m01"],
        "06: the gain": time["m04"] < min(time["m03"] / 1.5, time["m01"] / 1.2),
        "06: a larger tile, by channels": tile["m04"].M_B > tile["m03"].M_B,
        "06: and by pixels": tile["m04"].N_B > tile["m03"].N_B,
        "07: clearly less than m04": time["m05"] < min(time["m04"] / 1.2, time["m01"] / 2),
        "08: again less time": time["m06"] < time["m05"] / 1.1,
        "09: clearly faster, not twice": time["m06"] / 2 < time["m08"] < time["m06"] / 1.1,
        "10: many times slower": time["m09"] > max(time["m02"], 5 * time["m08"]),
        "10: the transform is the smallest part": parts("m09")[0] < parts("m09")[1] / 5,
        "11: the main kernel is far ahead": parts("m11")[1] < 0.85 * parts("m08")[1],
        "11: packing is next to nothing": parts("m08")[0] < parts("m11")[0] / 5,
        "11: less on three channels": gain["conv9"] > 2 * gain["conv7"],
        "11: faster than m08": time["m11"] < time["m08"],
        "13: about a quarter less": 0.7 < time["t03"] / time["m15"] < 0.8,
        "13: several times the arithmetic": tf32_roof > 4 * roof,
        "13: far from its own roof": reached < 0.6 * tf32_roof / 3,
        "13: m15 ahead on 27 terms": m15_ahead == {"conv7"} and paper_layer("conv7").K == 27,
        "13: more terms elsewhere": min(terms_elsewhere) > 100,
        "14: most of the gain": time["m02"] / time["m05"] > 3 * time["m05"] / time["m11"],
        "15: ahead, by less": im2win < blas < 3.5 * im2win,
        "15: far less than 155 times": time["m01"] < 155 / 5 * time["m11"],
    }  # fmt: skip
    assert [claim for claim, holds in claims.items() if not holds] == []


@pytest.mark.parametrize("stage", [m01_direct, m02_implicit_gemm])
def test_a_kernel_tells_which_windows_it_sees(stage):
    p = ConvProblem(2, 2, 5, 6, 3, (3, 2), stride=(2, 1), padding=1, dilation=(1, 2))
    windows = unfold(numbered(p), (3, 2), (2, 1), 1, (1, 2))
    seen = windows_seen(stage.make_kernel, stage.STAGE.name, p)
    assert np.array_equal(seen, windows.transpose(1, 0, 2).reshape(p.K, p.N))


def test_figure_1_is_what_the_transforms_write():
    tensor = made_of_numbers("m09", FIGURE_1)
    for window, numbers in enumerate(unfold(numbered(FIGURE_1), 2)[0].T):
        m, n = divmod(window, FIGURE_1.W_o)
        run = tensor[0, :, m, 2 * n : 2 * n + 4]
        assert (run == numbers.reshape(3, 2, 2).transpose(0, 2, 1).reshape(3, 4)).all()


@pytest.mark.parametrize("stage", ["m06", "m08", "m11", "m15"])
def test_an_event_log_has_all_that_the_thread_does(stage):
    one = event_log(stage)
    slices, steps = SMALL.K // SMALL_TILE.K_B, SMALL_TILE.K_B
    assert (one.slices, one.steps) == (slices, steps)
    assert len(one.times(MULTIPLY)) == SMALL.K * SMALL_TILE.M_T * SMALL_TILE.N_T
    assert len(one.times(READ)) == 2 * SMALL.K  # a float4 of each operand for each step
    assert len(one.times(ASK)) % slices == len(one.times(ARRIVE)) % slices == 0


def test_only_double_buffering_multiplies_while_slices_come():
    before, ours, pipelined = event_log("m06"), event_log("m08"), event_log("m15")
    assert before.meanwhile() == before.steps_ahead() == 0
    slice_of_it = SMALL_TILE.K_B * SMALL_TILE.M_T * SMALL_TILE.N_T
    assert ours.meanwhile() == slice_of_it * (SMALL_TILE.K_B - 1) / SMALL_TILE.K_B
    assert pipelined.meanwhile() > 1.5 * ours.meanwhile()
    assert len(before.times(BARRIER)) == 2 * len(ours.times(BARRIER))
    assert [one.buffers() for one in (before, ours, pipelined)] == [1, 2, 3]
    assert f"does {ours.meanwhile():.0f} multiply-adds" in lessons.timeline(m08=ours).caption


def test_no_label_becomes_too_small_to_read():
    """Wide pictures of small labels are scrolled on a phone, of 358 points; others fit on it."""
    launch = trace_stage("m03", ConvProblem(1, 4, 6, 16, 16, 3, padding=1), Tile(8, 32, 8)).main
    assert lessons.one_request(launch, "S_I").least > 500
    assert lessons.one_request(launch, "input").least <= 358
    assert lessons.side_by_side({"m03": launch}, "sectors of global memory").least <= 358


def test_the_viewer_in_a_notebook_is_the_trace_s_page():
    made = trace_stage("m01", PROBLEM)
    html = lessons.step_through(made)._repr_html_()
    assert unescape(re.search('srcdoc="([^"]*)"', html)[1]) == page(made)
