"""docs/json.md: every key of every verb's document is listed, and no other."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from kernels.wrong import WRONG
from test_docs import keys, listed
from typer.testing import CliRunner

from convlab import Trace, checking, doctor, ladder, trace, trace_stage
from convlab.bench import tuning
from convlab.cli import app
from convlab.engines import choose
from convlab.lint import Row
from convlab.oracle import random_tensors
from convlab.simulation.findings import Finding
from convlab.stages import LADDER, Program, stage_named
from convlab.workloads import TEACHING, paper_layer


@pytest.fixture(scope="module")
def documents() -> dict[str, Any]:
    """A real document of every verb, with nothing null that could be there."""
    broken = replace(LADDER[0], prepare=lambda problem, tile: Program(buffers=(), launches=()))
    stages = (stage_named("s10"), broken)
    engine = choose("cudasim")
    found = list(ladder.run(TEACHING, stages, engine, random_tensors(TEACHING, 0)))
    ran = ladder.as_json(TEACHING, engine, found)
    ran["environment"] = doctor.environment([])
    facts = doctor.facts()
    wrong = next(case for case in WRONG if case.kind == "out of bounds")
    found_in = trace(wrong.kernel, wrong.grid, wrong.block, *wrong.arguments()).main.findings
    busy = trace_stage("s05", TEACHING).main
    traced = Trace("both in one", (replace(busy, findings=found_in),))
    linted = Row("s01", "k", "conv9", "-", "sm_90", 1, 2, 0, 0, 0, (), {}, ())
    return {
        "ladder": ran,
        "stages": json.loads(CliRunner().invoke(app, ["stages", "--json", "-"]).stdout),
        "doctor": facts | {"gpu": facts["gpu"] or dict.fromkeys(GPU)},
        "check": _checked(),
        "trace": json.loads(json.dumps(traced.as_json())),
        "lint": [asdict(linted) | {"ok": linted.ok}],
        "tune": tuning.as_json([_tuned()], stage_named("s12"), engine),
    }


def _tuned() -> tuning.Tuned:
    (task, *_) = tuning.tasks_for({"conv9": paper_layer("conv9")}, stage_named("s12"))
    return tuning.Tuned("conv9", task.problem, task.tile, (tuning.Measured(task, 1.0, 1.0),))


def _checked() -> dict[str, Any]:
    """The document of a check that has everything in it, which no kernel's has."""
    finding = Finding("shared race", "k", "f.py", 1, "what", 2)
    answer = checking.Answer("name", TEACHING, None, "it could not go on")
    count = checking.Count("requests", 1, 2)
    return checking.Check("k", "s05", (answer,), (finding,), (count,)).as_json()


GPU = ("name", "compute_capability", "memory_bytes", "driver", "cuda")


@pytest.mark.parametrize("verb", ["ladder", "stages", "doctor", "lint", "check", "trace", "tune"])
def test_every_key_is_listed(documents, verb):
    told = listed(f"## `convlab {verb} --json`")
    assert len(told) == len(set(told))
    assert set(told) == set(keys(documents[verb]))
