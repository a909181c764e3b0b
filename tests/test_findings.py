"""The strict simulator: every wrong kernel gets its finding, no right one gets any."""

from __future__ import annotations

import linecache
from pathlib import Path

import numpy as np
import pytest
from kernels import sanitized
from kernels.cases import Case
from kernels.documentation import DOCUMENTED
from kernels.right import RIGHT
from kernels.wrong import WRONG

from convlab.engines.simulator import Simulator
from convlab.simulation import simulated_launch
from convlab.simulation.findings import REMEDIES, SimulationError

pytestmark = pytest.mark.same_in_cudasim

STRICT, QUICK = Simulator(), Simulator(strict=False)


def launch(engine: Simulator, case: Case) -> list:
    arguments = case.arguments()
    engine.launch(case.kernel, case.grid, case.block, *arguments, shared_bytes=case.shared_bytes)
    return arguments


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_a_wrong_kernel_gets_its_finding(case: Case) -> None:
    with pytest.raises(SimulationError) as caught:
        launch(STRICT, case)
    source = linecache.getlines(case.kernel.py_func.__code__.co_filename)
    found = {(f.kind, line) for f in caught.value.findings for line in (f.line, f.other_line)}
    lines = [source[line - 1] for kind, line in found if kind == case.kind and line]
    assert any(case.line in line for line in lines), str(caught.value)
    for finding in caught.value.findings:
        assert finding.kernel == case.name
        assert str(finding) in str(caught.value)


@pytest.mark.parametrize("case", [*RIGHT, *DOCUMENTED], ids=lambda case: case.name)
def test_a_right_kernel_gets_none(case: Case) -> None:
    for engine in (STRICT, QUICK):
        arguments = launch(engine, case)
        assert case.result is not None
        np.testing.assert_allclose(arguments[-1], case.result(case.arguments()), rtol=1e-5)


@pytest.mark.parametrize("case", [*WRONG, *RIGHT], ids=lambda case: case.name)
def test_a_block_that_is_looked_at_piece_by_piece(case: Case, monkeypatch) -> None:
    def lines() -> set:
        try:
            launch(STRICT, case)
        except SimulationError as error:
            return {(f.kind, f.line, f.other_line, f.array) for f in error.findings}
        return set()

    in_one_go = lines()
    monkeypatch.setattr(simulated_launch, "LONG", 0)  # at every barrier
    assert lines() == in_one_go
    assert bool(in_one_go) == (case in WRONG)


def test_there_are_enough_of_both_and_every_kind_has_its_row_in_the_documentation() -> None:
    assert len(WRONG) >= 40
    assert len(RIGHT) >= 20
    assert len(DOCUMENTED) >= 10
    assert {case.kind for case in WRONG} == set(REMEDIES)
    page = (Path(__file__).parents[1] / "docs/findings.md").read_text(encoding="utf-8")
    assert all(f"\n| {kind} | " in page for kind in REMEDIES)


def test_the_table_of_mutants_is_what_the_simulator_finds_now() -> None:
    text = sanitized.PAGE.read_text(encoding="utf-8")
    assert sanitized.page(text) == text, "PYTHONPATH=src:tests python -m kernels.sanitized"
