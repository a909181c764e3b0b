"""Workspaces: known before, divided where a limit says so, refused where they do not fit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import convlab
from convlab import LADDER, ConvProblem, Stage
from convlab.ladder import stage_named
from convlab.ladder.im2col.batch_slices import in_slices as program_in_slices
from convlab.ladder.stage import Buffer, Flat, Images, LibraryCall
from convlab.problems.oracle import check_output, random_tensors
from convlab.running.engines import EngineUnavailable, choose, gpu
from convlab.running.engines.cudasim import CudaSim
from convlab.running.engines.gpu import in_float32
from convlab.running.plans import Plan

PROBLEM = ConvProblem(5, 3, 4, 5, 3, (2, 3), padding=1)
IN_SLICES = [stage for stage in LADDER if stage.in_slices]
in_slices = pytest.mark.parametrize("stage", IN_SLICES, ids=lambda stage: stage.name)


def one_image(stage: Stage) -> int:
    return stage.prepare(replace(PROBLEM, batch=1), stage.tiny_tile).workspace_bytes


@in_slices
@pytest.mark.parametrize("images", [1, 2, 5])
def test_a_limit_is_kept_and_the_result_right(stage: Stage, images: int) -> None:
    limit = images * one_image(stage)
    plan = Plan(PROBLEM, stage, stage.tiny_tile, choose("simulator"), limit)
    assert plan.workspace_bytes <= limit
    input, weight, bias = random_tensors(PROBLEM, 1, integers=True)
    output = plan(input, weight, np.full(PROBLEM.output_shape, np.nan, np.float32), bias)
    assert check_output(PROBLEM, output, input, weight, bias).ok


def test_which_stages_go_in_slices() -> None:
    names = {"i01_im2col", "i04_im2col_blas", "i03_im2col_depth_last", "i05_unfold_einsum"}
    assert {stage.name for stage in IN_SLICES} == names
    assert str(Flat(Images("output", 2, 4))) == str(Images("output", 2, 4)) == "output"


@in_slices
def test_the_least_limit_is_one_image_and_slices_share_their_kernels(stage: Stage) -> None:
    least = one_image(stage)
    program = stage.prepare(PROBLEM, stage.tiny_tile, workspace_limit=least)
    whole = stage.prepare(PROBLEM, stage.tiny_tile)
    assert len(program.kernels) == len(whole.kernels)
    assert len(program.launches) > 2 * len(whole.launches)
    with pytest.raises(ValueError, match=f"one image alone takes {least} bytes"):
        convlab.plan(PROBLEM, stage.name, stage.tiny_tile, "simulator", workspace_limit=least - 1)


@pytest.mark.parametrize(
    ("limit", "error", "message"),
    [(10**6, ValueError, "m01_direct does all images at once"), ("1 GB", TypeError, "'1 GB'")],
)
def test_a_limit_that_means_nothing_is_refused(
    limit: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        convlab.plan(PROBLEM, "m01", engine="simulator", workspace_limit=limit)


def test_a_workspace_that_does_not_fit_is_refused_with_what_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CudaSim, "free_bytes", lambda self: 1000)
    for name in ("build", "empty"):
        monkeypatch.setattr(CudaSim, name, lambda *_: pytest.fail("too late to refuse"))
    for name, said in (
        ("i01_im2col", r"i01_im2col's workspace needs .* workspace_limit=BYTES"),
        ("m09", r"m09_im2win's workspace needs 703\.1 KiB, but 1000 bytes are .* on the CPU$"),
    ):
        with pytest.raises(MemoryError, match=said):
            convlab.plan(ConvProblem(100, 10, 10, 10, 1, 2), name, engine="cudasim")


@pytest.mark.parametrize("images", range(1, 8))
def test_slices_are_the_largest_that_fit(images: int) -> None:
    problem = ConvProblem(7, 1, 3, 3, 1, 1)

    def slices(**limits: int) -> list[tuple[int, int]]:
        program = program_in_slices(
            problem,
            lambda part: (Buffer("fixed", (25,)), Buffer("images", (9 * part.batch,))),
            lambda part: [LibraryCall(print, ("input", Flat("output"), "weight"))],
            **limits,
        )
        assert program.workspace_bytes == 100 + 36 * min(images, 7)
        found = []
        for step in program.launches:
            input, output, weight = step.arguments
            if images >= 7:
                assert (input, output, weight) == ("input", Flat("output"), "weight")
                return [(0, 7)]
            assert (output, weight) == (Flat(replace(input, name="output")), "weight")
            found.append((input.start, input.stop))
        return found

    wanted = [(start, min(start + images, 7)) for start in range(0, 7, images)]
    for limits in (100 + 36 * images, 135 + 36 * images):
        assert slices(workspace_limit=limits) == wanted
    assert slices(images=images) == wanted


@pytest.mark.parametrize(
    ("name", "rounded", "float32"),
    [("allow_tf32", True, False), ("fp32_precision", "tf32", "ieee")],
    ids=["PyTorch before 2.9", "PyTorch"],
)
def test_a_library_call_is_float32_whatever_pytorch_was_told(
    name: str, rounded: bool | str, float32: bool | str
) -> None:
    matmul = SimpleNamespace(**{name: rounded})
    with suppress(ValueError), in_float32(matmul):
        assert vars(matmul) == {name: float32}
        raise ValueError("the call's own")
    assert vars(matmul) == {name: rounded}


def test_without_a_library_a_library_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_library_name", lambda: None)
    program = stage_named("i04_im2col_blas").prepare(PROBLEM)
    with pytest.raises(EngineUnavailable, match=r"^blas is .*neither PyTorch nor CuPy"):
        gpu.Gpu().build(program.launches[-1], program)
