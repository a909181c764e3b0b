"""The pictures and checks that lessons 09 to 15 brought: what they say is what kernels did."""

from __future__ import annotations

import re

import pytest

from convlab import ConvProblem, Tile, trace_stage
from convlab.lessons import (
    PretendGPU,
    as_bars,
    charts,
    check_function,
    diary,
    global_traffic,
    gpus,
    im2col_beside_im2win,
    im2win_orders,
    ladder_speeds,
    measured_parts,
    one_request,
    part_of,
    pipeline_stages,
    pretended,
    side_by_side,
    timeline,
    traced,
    workspaces,
)  # fmt: skip
from convlab.lessons.layouts import made_of_numbers, windows_of
from convlab.lessons.places import result
from convlab.lessons.timelines import ARRIVE, ASK, BARRIER, MULTIPLY, READ, SMALL, SMALL_TILE
from convlab.stages import s10_im2win

FIGURE_1 = ConvProblem(1, 3, 3, 3, out_channels=2, kernel_size=2)


@pytest.mark.parametrize("stage", ["s08", "s09", "s11", "s12"])
def test_a_diary_has_all_that_the_thread_does(stage):
    one = diary(stage)
    slices, steps = SMALL.K // SMALL_TILE.K_B, SMALL_TILE.K_B
    assert (one.slices, one.steps) == (slices, steps)
    assert len(one.of(MULTIPLY)) == SMALL.K * SMALL_TILE.M_T * SMALL_TILE.N_T
    assert len(one.of(READ)) == 2 * SMALL.K  # a run of four of each operand for each step
    assert len(one.of(ASK)) % slices == len(one.of(ARRIVE)) % slices == 0
    assert [event.time for event in one.events] == list(range(len(one.events)))


def test_only_double_buffering_multiplies_while_slices_come():
    before, ours, ring = diary("s08"), diary("s09"), diary("s12")
    assert before.meanwhile() == before.steps_ahead() == 0
    slice_of_it = SMALL_TILE.K_B * SMALL_TILE.M_T * SMALL_TILE.N_T
    assert ours.meanwhile() == slice_of_it * (SMALL_TILE.K_B - 1) / SMALL_TILE.K_B
    assert ring.meanwhile() > 1.5 * ours.meanwhile()
    assert len(before.of(BARRIER)) == 2 * len(ours.of(BARRIER))
    assert f"does {ours.meanwhile():.0f} multiply-adds" in timeline(s09=ours).caption


def test_the_stages_of_the_pipeline_are_shown():
    assert "at most 2." in pipeline_stages(diary("s12")).caption
    with pytest.raises(ValueError, match="no asynchronous copies"):
        pipeline_stages(diary("s09"))


def test_figure_1_is_what_the_transforms_write():
    picture = im2col_beside_im2win(FIGURE_1)
    assert "12 x 4 = 48" in picture.caption
    assert "3 x 2 x 6 = 36" in picture.caption
    tensor = made_of_numbers("s10", FIGURE_1)
    for window, numbers in enumerate(windows_of(FIGURE_1)):
        m, n = divmod(window, FIGURE_1.W_o)
        run = tensor[0, :, m, 2 * n : 2 * n + 4]
        assert (run == numbers.transpose(0, 2, 1).reshape(3, 4)).all()
    with pytest.raises(ValueError, match="no layout transform"):
        made_of_numbers("s01", FIGURE_1)


def test_both_orders_of_im2win_are_told():
    caption = im2win_orders(ConvProblem(1, 2, 3, 5, out_channels=2, kernel_size=2)).caption
    assert "2 x 4 contiguous numbers in s10 and 1 x 8 in s11" in caption


def test_a_call_over_several_lines_is_shown_whole():
    problem = ConvProblem(1, 8, 8, 16, 16, 3, padding=1)
    launch = trace_stage("s12", problem, Tile(16, 64, 8, 4, 4)).main
    caption = one_request(launch, "packed", number=0).caption
    assert "`copy_async4(S_F, target" in caption
    assert ", True)`" in caption


def test_no_label_becomes_too_small_to_read():
    """Wide pictures of small labels are scrolled on a phone, of 358 points; others fit on it."""
    problem = ConvProblem(1, 4, 6, 16, 16, 3, padding=1)
    launch = trace_stage("s05", problem, Tile(8, 32, 8)).main
    assert one_request(launch, "S_I").least > 500
    assert one_request(launch, "input").least <= 358
    assert side_by_side({"s05": launch}, "sectors of global memory").least <= 358


def test_what_launches_read_and_write():
    problem, tile = ConvProblem(1, 4, 8, 8, 16, 3, padding=1), Tile(16, 32, 4, 4, 4)
    alt = global_traffic(s12=trace_stage("s12", problem, tile)).alt
    assert "windows" not in alt
    kib = 4 * problem.N * problem.M / 1024
    assert re.search(rf"writes output {kib:.1f}", alt)


def test_what_was_measured_is_shown_and_what_was_not_is_said(monkeypatch):
    row = result("memory")["layers"][0]
    part = row["workspace_bytes"]["s10_im2win"] / row["tensor_bytes"]
    assert f"s10 {part:.2f}" in workspaces("s10", layers=(row["layer"],)).alt
    assert "s11" in ladder_speeds("conv4").alt
    few = charts.stored("conv7")
    few["stages"] = [entry for entry in few["stages"] if entry["name"] != "s02_cout"]
    monkeypatch.setattr(charts, "stored", lambda layer: few)
    said = measured_parts("s09", "s02_cout", layer="conv7").caption
    assert "Not measured on this layer yet: s02_cout" in said
    assert "1.5" in as_bars({"a": 1.5}, "ms", "Said:", 2.0).caption


def test_a_part_of_a_stage_is_replaced():
    problem = ConvProblem(1, 2, 4, 4, 2, 2)
    original = s10_im2win.make_transform
    asked = []

    def make_transform(problem):
        asked.append(problem)
        return original(problem)

    traced(part_of("s10", make_transform=make_transform), "s10", problem)
    assert asked == [problem]
    assert s10_im2win.make_transform is original
    with pytest.raises(ValueError, match="no function 'nothing'"):
        part_of("s10", nothing=None)


def test_a_pretended_gpu_is_measured_only_with_care():
    gpu = PretendGPU(1.0, 0.5)
    gpu.launch()
    before = gpu.clock()
    gpu.wait()
    assert gpu.clock() == before + 1.0
    gpu.launch()
    gpu.wait()
    assert gpu.clock() == pytest.approx(before + 1.0 + 0.01 + 0.5)
    assert pretended(gpu, 3) == 1.0


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda gpu, repeats: gpu.cold, "Passed"),
        (lambda gpu, repeats: gpu.cached, "Not yet: the answer is wrong."),
        (lambda gpu, repeats: None, "Not yet: the answer is wrong."),
        (lambda gpu, repeats: "x", "Not yet: the answer is wrong."),
        (lambda gpu: 1, "could not be run"),
        (3, "could not be run"),
    ],
)
def test_functions_are_checked_by_what_they_return(function, reason):
    assert reason in check_function(function, pretended, gpus((2.0, 1.0))).headline
