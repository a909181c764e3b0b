"""s11 beside itself without ``issue_loads``: what is left out, and what is shown of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seed_fakes
from bench_fakes import Fake, InThread

from convlab import ConvProblem
from convlab.bench import crew, issue_loads, seed_runs
from convlab.engines import Engine
from convlab.engines.simulator import Simulator
from convlab.lint import compile_launch
from convlab.oracle import Oracle, random_tensors
from convlab.plans import Plan
from convlab.stage import Launch, Program

SMALL = ConvProblem(1, 4, 7, 6, 9, 3, padding=1)
LONG = ConvProblem(1, 64, 128, 128, 16, 3)  # of the sweeps, and its sums have 576 terms


def test_without_it_the_stage_is_as_right(engine: Engine) -> None:
    left_out = issue_loads.system(issue_loads.WITHOUT)
    program = issue_loads.prepare_without(SMALL, issue_loads.S11.tiny_tile)
    tensors = random_tensors(SMALL, 5)
    input, weight, bias = map(engine.to_device, tensors)
    output = engine.to_device(np.full(SMALL.output_shape, np.nan, np.float32))
    Plan(SMALL, issue_loads.S11, program.tile, engine, program=program)(input, weight, output, bias)
    assert Oracle(SMALL, *tensors).check(engine.to_host(output)).ok
    assert (left_out.name, left_out.kind) == (issue_loads.WITHOUT, "stage")


@pytest.mark.gate
def test_without_it_the_compiler_asks_late() -> None:
    """Else the two would be one, and every difference noise."""
    tile = issue_loads.S11.production_tile(LONG)
    kept, left_out = (
        prepare(LONG, tile) for prepare in (issue_loads.S11.prepare, issue_loads.prepare_without)
    )
    assert kept.kernels[-1].kernel.targetoptions == left_out.kernels[-1].kernel.targetoptions
    assert multiplied_before_the_last_load(kept) < 0.1
    assert multiplied_before_the_last_load(left_out) > 0.5


def multiplied_before_the_last_load(program: Program) -> float:
    """The part of a slice's multiply-adds that come before the last load of the next one."""
    main = program.launches[-1]
    assert isinstance(main, Launch)
    code = [line.split()[0] for line in compile_launch(main, program, (9, 0)).instructions()]
    code = code[code.index("BAR.SYNC.DEFER_BLOCKING") + 1 :]
    turn = code[: code.index("BAR.SYNC.DEFER_BLOCKING")]
    put = next(place for place, name in enumerate(turn) if name.startswith("STS"))
    last = max(place for place, name in enumerate(turn[:put]) if name.startswith("LDG"))
    return turn[:last].count("FFMA") / turn.count("FFMA")


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


@pytest.mark.same_in_cudasim
def test_both_are_measured_everywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(seed_runs, "choose", lambda name: PretendedGpu(strict=False))
    monkeypatch.setattr(crew, "Worker", InThread)
    monkeypatch.setattr(issue_loads, "LABORATORY", "seed_fakes:Named")
    monkeypatch.setattr(issue_loads, "LAYER_NAMES", ("conv12",))
    monkeypatch.setattr(issue_loads, "PAPER_BATCH", 1)
    monkeypatch.setattr(issue_loads.sweeps, "BASE", SMALL)
    monkeypatch.setattr(issue_loads.sweeps, "SWEEPS", {"size": (6, 9)})
    monkeypatch.setattr(seed_fakes, "SLOW", {issue_loads.WITHOUT: 12.5})
    monkeypatch.setattr(seed_fakes, "SPREAD", {})
    monkeypatch.setattr(seed_fakes, "HOW", {})
    monkeypatch.setattr(Fake, "algorithm", str(issue_loads.S11.tiny_tile))
    file = tmp_path / "issue_loads.json"
    assert issue_loads.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    names = ["conv12", "1x4x6x6 * 9x4x3x3, padding 1", "1x4x9x9 * 9x4x3x3, padding 1"]
    assert [(row["layer"], row["system"]) for row in document["rows"]] == [
        (name, which) for name in names for which in (issue_loads.WITH, issue_loads.WITHOUT)
    ]
    assert [problem["name"] for problem in document["problems"]] == names
    assert issue_loads.less_time(document, names[1]) == pytest.approx(20)
    assert "| 36 | 5 | 12.5000 | 10.0000 | 20.0 |" in capsys.readouterr().out


def test_what_has_no_number_has_a_reason_below_the_table() -> None:
    row = {"layer": "conv12", "algorithm": None, "time_ms": None, "settled": None}
    row |= {"state": "wrong", "reason": "3 elements"}
    document = {
        "device": "a GPU",
        "problems": [{"name": "conv12", "K": 36, "M": 9, "N": 36}],
        "rows": [row | {"system": which} for which in (issue_loads.WITH, issue_loads.WITHOUT)],
    }
    shown = issue_loads.show(document)
    assert "| conv12 | - | 36 | - | - | - | - |\n\nWithout a number:\n\n" in shown
    assert shown.endswith("- without_issue_loads on conv12: wrong, 3 elements\n")


def test_blocks_are_those_of_the_launch() -> None:
    for case in issue_loads.cases():
        tile = issue_loads.S11.production_tile(case.problem)
        main = issue_loads.S11.prepare(case.problem, tile).launches[-1]
        assert isinstance(main, Launch)
        problem = {"M": case.problem.M, "N": case.problem.N}
        assert issue_loads.blocks(problem, str(tile)) == main.grid[0] * main.grid[1]
