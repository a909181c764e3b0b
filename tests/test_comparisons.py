"""The benchmarks behind docs/comparisons.md, on a pretended GPU, and the page made from them."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from convlab.bench import bandwidth, channel_sweeps, comparisons, im2col, measured, memory
from convlab.bench.generated import source
from convlab.bench.measuring import SETTLED_PERCENT
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.kernels.im2col import columns_buffer
from convlab.problem import ConvProblem
from convlab.stages import stage_named
from convlab.workloads import LAYER_NAMES, SWEEP_BASE, SWEEPS, paper_layer, sweep_problem

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]


class PretendedGpu(Simulator):
    """The simulator, saying that it is a GPU with 100 GB, of which allocations take some."""

    name, is_gpu, device = "gpu", True, "pretended GPU"
    held = 0

    def free_bytes(self) -> int:
        return 10**11 - self.held

    def empty(self, shape: tuple[int, ...]) -> Any:
        if math.prod(shape) < 10**6:
            return super().empty(shape)
        self.held += 4 * math.prod(shape)
        return None


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    """A GPU, its timer, which calls once and measures half a millisecond, and its copies."""

    def measure(
        call: Callable[[Any], None], as_graph: bool = True, spread_percent: float | None = None
    ) -> SimpleNamespace:
        call(None)
        took = 0.5 if as_graph else 1.0
        return SimpleNamespace(median_ms=took, spread_percent=1.5, repeats=10)

    timer = ModuleType("convlab.timer")
    timer.measure = measure
    monkeypatch.setitem(sys.modules, "convlab.timer", timer)
    monkeypatch.setattr(bandwidth, "copy_start", lambda engine, nbytes: lambda stream: None)
    monkeypatch.setattr(im2col, "_torch_unfold", lambda *_: None)
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(measured, "choose", lambda name: engine)
    return engine


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(name: str) -> None:
        raise EngineUnavailable("there is none")

    monkeypatch.setattr(measured, "choose", choose)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BATCH", 2), ("SIZE", 5), ("DEPTHS", (4, 12))):
        monkeypatch.setattr(im2col, name, value)
    for module in (channel_sweeps, comparisons):
        monkeypatch.setattr(module, "SWEEPS", {"size": (6, 9), "kernel_size": (1, 3)})
    small_base = ConvProblem(1, 2, 7, 7, 2, 3)
    monkeypatch.setattr("convlab.workloads.SWEEP_BASE", small_base)


@pytest.mark.parametrize("module", [im2col, channel_sweeps])
def test_what_is_timed_needs_a_gpu(no_gpu, capsys, module) -> None:
    assert module.main([]) == 2
    assert capsys.readouterr().err == (
        "convlab: there is none: its times mean nothing without one\n"
    )


def test_memory_is_computed_without_a_gpu(no_gpu, capsys, tmp_path) -> None:
    file = tmp_path / "new" / "memory.json"
    assert memory.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert capsys.readouterr().out == memory.show(document) + "\n"
    assert document["device"] is document["environment"] is None
    assert [layer["layer"] for layer in document["layers"]] == list(LAYER_NAMES)
    conv9, problem = document["layers"][8], paper_layer("conv9")
    matrix = 4 * problem.K * problem.N  # a multiple of eight columns
    packed = 4 * problem.K * problem.M
    assert conv9["workspace_bytes"]["s03_im2col"] == matrix + packed
    sides = (128 * 64 * 56 * 56, 64 * 64 * 9, 128 * 64 * 54 * 54)
    assert conv9["tensor_bytes"] == 4 * sum(sides)
    assert set(conv9["measured_bytes"].values()) == {None}


def test_memory_is_measured_on_a_gpu(gpu) -> None:
    document = memory.measure(gpu)
    for layer in document["layers"]:
        for stage, computed in layer["workspace_bytes"].items():
            measured_bytes = layer["measured_bytes"][stage]
            assert 0 <= computed - measured_bytes <= 10**7  # but for what is small
    assert "18,193.5 (18,19" in memory.show(document | {"device": "pretended GPU"})


def test_a_workspace_that_does_not_fit_is_not_measured(gpu) -> None:
    gpu.held = 10**11 - 10**9
    conv4 = memory._layer("conv4", gpu)
    assert conv4["measured_bytes"]["s03_im2col"] is None
    assert conv4["measured_bytes"]["s03_im2col_per_image"] is not None


def test_how_much_less_is_the_mean_over_the_layers() -> None:
    layers = [
        {"tensor_bytes": 10, "workspace_bytes": {"a": 0, "b": 10}},
        {"tensor_bytes": 10, "workspace_bytes": {"a": 20, "b": 10}},
    ]
    assert memory._percent_less(layers, "a", "b") == pytest.approx(100 * (1 / 2 - 1 / 2) / 2)


def test_the_bandwidth_of_im2col(gpu, small, capsys, tmp_path) -> None:
    file = tmp_path / "im2col.json"
    assert im2col.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["device"] == "pretended GPU"
    assert document["environment"]["command"] == f"python -m convlab.bench.im2col --json {file}"
    four, twelve = document["depths"]
    assert (four["depth"], twelve["depth"]) == (4, 12)
    assert four["right"] is twelve["right"] is True
    assert four["bytes"] == 4 * (2 * 4 * 25 + 4 * 9 * 2 * 25)
    assert four["depth_last"]["tb_per_s"] == four["bytes"] / 0.5e-3 / 1e12
    said = capsys.readouterr().out
    assert "| 12 | " in said
    assert "100 %" in said


def copies(monkeypatch, *slow: tuple[int, bool]) -> None:
    """Copies whose timing says how it was made: 1 ms where slow, else 0.5."""

    def measure(start, as_graph: bool, spread_percent: float) -> SimpleNamespace:
        assert spread_percent == SETTLED_PERCENT  # 20 times a few microseconds say little
        took = 1.0 if (start(None), as_graph) in slow else 0.5
        return SimpleNamespace(median_ms=took, spread_percent=1.0, repeats=20)

    monkeypatch.setattr(sys.modules["convlab.timer"], "measure", measure)
    monkeypatch.setattr(bandwidth, "copy_start", lambda engine, nbytes: lambda stream: nbytes)


@pytest.mark.parametrize(
    ("slow", "length", "in_graph"),
    [
        ([], 2**30, True),
        ([(2**30, True)], 2**30 + 2**16, True),
        ([(2**30, True), (2**30 + 2**16, True)], 2**30, False),
    ],
)
def test_a_copy_is_the_fastest_of_several(gpu, monkeypatch, slow, length, in_graph) -> None:
    copies(monkeypatch, *slow)
    found = bandwidth.copy_rates(gpu, 2**31)
    assert (found["length"], found["in_graph"]) == (length, in_graph)
    assert found["tb_per_s"] == 2**31 / 0.5e-3 / 1e12


def test_im2col_stands_beside_the_fastest_copy(gpu, small, monkeypatch, capsys) -> None:
    """Not beside one that its length slows down."""
    nbytes = [4 * (2 * depth * 25 + depth * 9 * 2 * 25) for depth in im2col.DEPTHS]
    copies(monkeypatch, *((one // 2, True) for one in [*nbytes, 2 * im2col.LARGE_COPY]))
    document = im2col.measure(gpu) | {"device": "pretended GPU"}
    expected = [2 * im2col.LARGE_COPY, *nbytes]
    found = [document["large_copy"], *(row["copy"] for row in document["depths"])]
    assert [one["tb_per_s"] for one in found] == [one / 0.5e-3 / 1e12 for one in expected]
    assert "Each is the fastest of four" in im2col.show(document)


def test_results_of_one_copy_each_are_still_read() -> None:
    text = (ROOT / comparisons.RESULTS / "im2col_h200.json").read_text(encoding="utf-8")
    document = json.loads(text)
    for copy in [document["large_copy"], *(row["copy"] for row in document["depths"])]:
        copy.pop("in_graph", None)
    assert "a share may come out too high" in im2col.show(document)


def test_a_wrong_matrix_is_said_and_exits_1(gpu, small, capsys, monkeypatch) -> None:
    monkeypatch.setattr(im2col, "_is_right", lambda *_: False)
    assert im2col.main([]) == 1
    assert "4 (WRONG)" in capsys.readouterr().out


def test_one_wrong_element_makes_a_matrix_wrong() -> None:
    problem = im2col.problem_for(4)
    problem = ConvProblem(1, 4, 3, 3, 1, im2col.FILTER, padding=im2col.PADDING)
    host = np.ones(problem.input_shape, np.float32)
    columns = np.zeros(columns_buffer(problem).shape, np.float32)
    assert not im2col._is_right(problem, host, columns.reshape(-1))


def test_the_channel_sweeps(gpu, small, capsys, tmp_path) -> None:
    file = tmp_path / "sweeps.json"
    assert channel_sweeps.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert [(point["sweep"], point["value"]) for point in document["points"]] == [
        ("size", 6), ("size", 9), ("kernel_size", 1), ("kernel_size", 3),
    ]  # fmt: skip
    # The pretended timer runs each again: an addition to what was there would be wrong.
    assert all(stage["ok"] for point in document["points"] for stage in point["stages"].values())
    assert {channel_sweeps.speedup(point, "s02_cin") for point in document["points"]} == {1.0}
    assert "#### kernel_size" in capsys.readouterr().out


def test_a_wrong_stage_has_no_time_and_no_speedup(gpu, small, monkeypatch) -> None:
    s01 = stage_named("s01")
    monkeypatch.setattr(channel_sweeps, "stage_named", lambda name: s01)
    monkeypatch.setattr(
        channel_sweeps, "Plan", lambda *_: lambda *arrays, **options: None
    )  # writes nothing
    document = channel_sweeps.measure(gpu) | {"device": "pretended GPU"}
    assert document["ok"] is False
    assert channel_sweeps.speedup(document["points"][0], "s02_cin") is None
    assert "| wrong | wrong |" in channel_sweeps.show(document)


def test_a_ratio_of_a_time_that_swings_is_marked_too(gpu, small) -> None:
    document = channel_sweeps.measure(gpu) | {"device": "pretended GPU"}
    assert "| 0.5000 | 1.00 |" in channel_sweeps.show(document)
    assert "~0" not in channel_sweeps.show(document)
    first, second = (point["stages"] for point in document["points"][:2])
    first["s02_cin"]["time_spread"] = second["s01_direct"]["time_spread"] = 2.1
    shown = channel_sweeps.show(document)
    assert "| 6 | 0.5000 | 0.5000 | ~0.5000 | 0.5000 | 1.00 | ~1.00 | 1.00 |" in shown
    assert "| 9 | ~0.5000 | 0.5000 | 0.5000 | 0.5000 | ~1.00 | ~1.00 | ~1.00 |" in shown


def test_sweeps_change_one_size_of_the_base() -> None:
    for sweep, values in SWEEPS.items():
        problems = [sweep_problem(sweep, value) for value in values]
        assert len(set(problems)) == len(values)
        if sweep != "kernel_size":
            assert {problem.kernel_size for problem in problems} == {SWEEP_BASE.kernel_size}
        if sweep != "size":
            assert {problem.input_shape[2:] for problem in problems} == {(256, 256)}
    assert SWEEP_BASE in [sweep_problem("size", value) for value in SWEEPS["size"]]
    assert sweep_problem("in_channels", 64).in_channels == 64


# The page.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs/results").mkdir(parents=True)
    marked = (
        f"<!-- {name}:begin -->\nstale\n<!-- {name}:end -->\n" for name in comparisons.SECTIONS
    )
    (tmp_path / comparisons.PAGE).write_text("".join(marked))
    return tmp_path


def test_the_page_is_what_the_results_give(capsys) -> None:
    assert comparisons.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err


def test_what_wrote_a_file_is_what_the_file_says() -> None:
    known = {"command": "x --json x.json", "date": "2026-11-21T09:02:17+00:00"}
    packages = {"packages": {"torch": "2.11.0", "numpy": None}}
    said = source("x_h200.json", known | packages, "x --json docs/results/x_h200.json")
    where = "[x_h200.json](results/x_h200.json).\n"
    assert said == f"By `x --json x.json` (2026-11-21, torch 2.11.0): {where}"
    assert source("x_h200.json", None, "x --json y.json") == f"By `x --json y.json`: {where}"


def test_without_results_the_page_says_so_and_shows_no_number(root, capsys) -> None:
    assert comparisons.main(["--root", str(root)]) == 0
    text = (root / comparisons.PAGE).read_text()
    assert "stale" not in text
    assert text.count("Not measured yet: `python -m convlab.bench.") == len(comparisons.SECTIONS)
    assert not (root / comparisons.PICTURE).exists()


def test_with_results_there_are_tables_and_a_picture(root, gpu, small) -> None:
    for name, module in (("im2col", im2col), ("channel_sweeps", channel_sweeps)):
        file = root / comparisons.RESULTS / comparisons.SECTIONS[name][0]
        assert module.main(["--json", str(file)]) == 0
    assert comparisons.main(["--root", str(root)]) == 0
    text = (root / comparisons.PAGE).read_text()
    assert "100 %" in text
    assert "| s02_cin x |" in text
    assert "(images/channel_sweeps.svg)" in text
    tree = ElementTree.fromstring((root / comparisons.PICTURE).read_text())
    lines = list(tree.iter("{http://www.w3.org/2000/svg}polyline"))
    assert len(lines) == 2 * len(comparisons.COLOURS)
    assert comparisons.main(["--root", str(root), "--check"]) == 0


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_file_that_is_no_result_is_named_in_one_line(root, capsys, content) -> None:
    (root / comparisons.RESULTS / "im2col_h200.json").write_text(content)
    assert comparisons.main(["--root", str(root)]) == 2
    said = capsys.readouterr().err
    assert "im2col_h200.json is no " in said
    assert said.count("\n") == 1
