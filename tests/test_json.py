"""docs/json.md: every key of every verb's document is listed, and no other."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from bench_samples import sample
from kernels.wrong import WRONG
from test_docs import keys, listed
from typer.testing import CliRunner

from convlab import Trace, checking, trace, trace_stage
from convlab.commands import tune
from convlab.commands.cli import app
from convlab.commands.tuned_problems import Tuned
from convlab.ladder import LADDER, Program, stage_named
from convlab.measuring import ladder_run as ladder
from convlab.measuring import machine as doctor
from convlab.measuring.machine_code import KernelRow
from convlab.measuring.program_lint import LineUse, LintedKernel
from convlab.problems.oracle import random_tensors
from convlab.problems.workloads import TEACHING, paper_layer
from convlab.running.engines import choose
from convlab.simulation.host.run_report import Report
from convlab.simulation.rules.findings import SimulationError


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """A real document of every verb, with nothing null that could be there."""
    broken = replace(LADDER[0], prepare=lambda problem, tile: Program(buffers=(), launches=()))
    engine, m15 = choose("cudasim"), stage_named("m15")
    stages = (stage_named("m09"), broken)
    found = list(ladder.run(TEACHING, stages, engine, random_tensors(TEACHING, 0)))
    ran = ladder.as_json(TEACHING, engine, found) | {"environment": doctor.environment([])}
    facts = doctor.facts()
    wrong = next(case for case in WRONG if case.kind == "out of bounds")
    findings = trace(wrong.kernel, wrong.grid, wrong.block, *wrong.arguments()).main.findings
    report = Report(1)
    report.add(SimulationError("", findings))
    busy = replace(trace_stage("m03", TEACHING).main, findings=findings)
    answer = checking.Answer("name", TEACHING, None, "it could not go on")
    count = checking.TrafficCount("requests", 1, 2)
    uses = [LineUse("p.py", 3, "float64", {"DADD": 1})]
    program_lint = LintedKernel("k", "int64", "sm_90", lines=uses).as_json()
    linted = KernelRow("m01", "k", "conv9", "-", "sm_90", 1, 2, 0, 0, 0, (), {}, ())
    row, tile = SimpleNamespace(time_ms=1.0, time_spread=1.0, reason="why"), m15.tiny_tile
    tuned = Tuned("conv9", paper_layer("conv9"), tile, {tile: row})
    measured = sample(layers=["conv12"])
    one = replace(measured.row("conv12", 128, "m01_direct"), clocks_mhz=CLOCKS)
    measured.rows, measured.missing = {one.key: one}, {one.key: None}
    return {
        "ladder": ran,
        "stages": json.loads(CliRunner().invoke(app, ["stages", "--json", "-"]).stdout),
        "doctor": facts | {"gpu": facts["gpu"] or dict.fromkeys(GPU)},
        "check": checking.Check("k", "m03", (answer,), findings[:1], (count,)).as_json(),
        "run": {"program": ["p.py"], "status": 1} | report.as_json() | {"lint": [program_lint]},
        "trace": json.loads(json.dumps(Trace("both in one", (busy,)).as_json())),
        "lint": [asdict(linted) | {"ok": linted.ok}],
        "tune": tune.as_json([tuned], m15, engine, doctor.environment([])),
        "bench": measured.as_json(),
    }


CLOCKS = {"before": 1980, "after": 1980, "max": 1980}
GPU = ("name", "compute_capability", "memory_bytes", "driver", "cuda")


@pytest.mark.parametrize(
    "verb", ["ladder", "stages", "doctor", "lint", "check", "run", "trace", "tune", "bench"]
)
def test_every_key_is_listed(documents, verb):
    told = listed(f"## `convlab {verb} --json`")
    assert len(told) == len(set(told))
    assert set(told) == set(keys(documents[verb]))
