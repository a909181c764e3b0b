"""Files of results: kept after every row, taken up again where nothing has changed, compared."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from bench_fakes import ENVIRONMENT
from bench_samples import sample, system

import convlab
from convlab.measuring import results as module
from convlab.measuring.analysis import agreement
from convlab.measuring.results import STATES, Results, code_fingerprint, identity, open_results

pytestmark = pytest.mark.same_in_cudasim


def read_again(results: Results) -> Results:
    return Results.from_json(json.loads(json.dumps(results.as_json(), allow_nan=False)))


def test_a_document_reads_back_the_same_infinite_errors_too():
    results = sample(layers=["conv1", "conv12"])
    row = results.row("conv12", 128, "cupy_fp32")
    results.rows[row.key] = replace(row, state="wrong", error_over_bound=float("inf"))
    again = read_again(results)
    assert again.as_json() == results.as_json()
    assert again.rows == results.rows


A_SYSTEM = dict.fromkeys(("name", "title", "kind", "family", "precision", "method"), "x")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": "something"}, "its format is 'something'"),
        ({"version": 99}, "its version is 99"),
        ({"machine": None}, "its machine is None: it must be an object"),
        ({"machine": {"device": None}}, "its machine.device is None"),
        (
            {"machine": {"device": "x", "fp32_flops": "66"}},
            "its machine.fp32_flops is '66': it must be a number or null",
        ),
        ({"environment": []}, r"its environment is \[\]: it must be an object"),
        ({"environment": {"packages": []}}, r"its environment.packages is \[\]"),
        ({"identity": None}, "its identity is None"),
        ({"rows": {}}, "its rows is {}: it must be a list"),
        ({"rows": [{"layer": "conv1"}]}, r"its rows\[0\] has no batch"),
        ({"systems": []}, "there is a row of 'm01_direct', which is not one of its systems"),
        ({"systems": [1]}, r"its systems\[0\] is 1: it must be an object"),
        ({"commands": "convlab bench"}, "its commands is 'convlab bench': it must be a list"),
        ({"finished": 1}, "its finished is 1"),
        ({"missing": [["conv13", 1, "m01_direct"]]}, "layer is 'conv13'"),
        ({"missing": [1]}, r"its missing\[0\] is 1: it must be a list"),
        *(
            (
                {"systems": [A_SYSTEM | {key: value}]},
                rf"its systems\[0\].{key} is {value}: it must be a string",
            )
            for key, value in product(A_SYSTEM, (None, 3))
        ),
    ],
)
def test_other_documents_are_refused_in_a_sentence(tmp_path, change, said):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(sample(layers=["conv12"]).as_json() | change))
    with pytest.raises(ValueError, match=said) as caught:
        open_results(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "values", "rule"),
    [
        (["time_ms", "tflops", "called_ms"], ["abc", 0, -1, float("nan"), float("inf"), True, []],
         "a number"),
        (["time_spread"], ["abc", -1, float("nan")], "a number"),
        (["repeats", "batch"], [0, 2.5, "20"], "an integer"),
        (["workspace_bytes"], [-1, 0.5, "much"], "an integer"),
        (["settled"], [1, "yes"], "true or false"),
        (["error_over_bound"], [[], True], "a number"),
        (["clocks_mhz"], [1980], "an object"),
        ([r"clocks_mhz"], [{"before": "fast"}, {"before": -1}], "an integer"),
        (["reason", "system"], [3], "a string"),
        (["state"], ["guessed"], "a known state"),
    ],
)  # fmt: skip
def test_rows_of_what_cannot_be_are_refused(keys, values, rule):
    document = sample(layers=["conv12"]).as_json()
    for key, value in product(keys, values):
        rows = [document["rows"][0] | {key: value}]
        with pytest.raises(ValueError, match=rf"its rows\[0\].{key}.* is .*: it must be {rule}"):
            Results.from_json(json.loads(json.dumps(document | {"rows": rows})))


def with_states() -> Results:
    """A row of every state."""
    results = sample(layers=["conv12"])
    row = results.row("conv12", 128, "cupy_fp32")
    results.rows.clear()
    numbers = {"time_ms": 1.0, "time_spread": 1.0, "repeats": 20, "tflops": 1.0, "reason": None}
    for state in STATES:
        name = state.replace(" ", "_")
        results.systems[name] = {"name": name, "kind": "baseline"}
        told = numbers if state == "measured" else {"reason": "why"}
        results.rows["conv12", 128, name] = replace(row, system=name, state=state, **told)
    return results


def again(older: Results, **changed) -> Results:
    """A new run's results, before it has measured anything."""
    return replace(older, rows={}, systems={}, commands=["convlab bench again"], **changed)


@pytest.mark.parametrize(
    ("asked", "anew", "left"),
    [
        (STATES, False, {"unsteady", "busy", "out of memory", "absent", "failed"}),
        (("measured", "busy"), False, {"busy"}),
        (("measured", "busy"), True, {"measured", "busy"}),
    ],
)
def test_a_run_is_taken_up_but_accidents_are_tried_again(asked, anew, left):
    older = with_states()
    new, other = again(older), again(older, identity="of another machine, version or code")
    keys = [key for key in older.rows if older.rows[key].state in asked]
    assert {older.rows[key].state for key in new.take_up(older, keys, anew)} == left
    assert (new.rows, new.systems) == (older.rows, older.systems)  # until there are new ones
    assert new.commands == ["convlab bench", "convlab bench again"]
    assert other.take_up(older, keys, anew) == keys
    assert other.rows == other.systems == {}
    assert other.commands == ["convlab bench again"]


def test_a_run_measured_anew_is_finished_with_the_last_new_row_and_not_before():
    older = sample(layers=["conv11", "conv12"])
    systems = {name: system(name, "baseline", "cpu", "gemm", "fp32") for name in older.systems}
    first, *rest = older.rows
    anew = again(older, finished=None)
    assert anew.take_up(older, older.rows, again=True) == [first, *rest]
    anew.add(older.rows[first], systems[first[2]])  # and then it is interrupted
    last = again(read_again(anew), missing={})
    assert last.take_up(anew, older.rows) == list(anew.missing) == rest
    for key in rest:
        assert last.finished is None
        last.add(older.rows[key], systems[key[2]])
    assert last.finished
    assert not last.missing


def test_an_earlier_file_is_kept_beside_under_a_free_name(tmp_path):
    path, older = tmp_path / "bench.json", sample(identity="one", layers=["conv12"])
    for text, name in (("first", "bench-one.json"), ("second", "bench-one-2.json")):
        path.write_text(text)
        assert module.set_aside(path, older) == tmp_path / name
        assert (tmp_path / name).read_text() == text
    assert (tmp_path / "bench-one.json").read_text() == "first"


def test_systems_and_layers_are_in_their_order_whoever_asked_first():
    results = sample()
    for name in ("systems", "rows"):
        setattr(results, name, dict(reversed(getattr(results, name).items())))
    assert results.names("stage") == sample(layers=["conv12"]).names("stage")
    assert results.names("stage")[0] == "m01_direct"
    layers = [layer["layer"] for layer in results.as_json()["layers"]]
    assert layers == [f"conv{number}" for number in range(1, 13)]


def test_identity_changes_with_machine_versions_and_code_and_nothing_else(monkeypatch):
    known = identity(ENVIRONMENT, "GPU-1")
    assert identity(ENVIRONMENT | {"date": "later", "command": "other"}, "GPU-1") == known
    assert identity(ENVIRONMENT, "GPU-2") != known
    for change in (
        {"gpu": {"name": "a GPU", "driver": "2"}}, {"python": "3.12.4"},
        {"compiler": "mlir"},
        {"packages": {"numba": "2"}}, {"packages": {"numba": "1", "torch": "2.11"}},
    ):  # fmt: skip
        assert identity(ENVIRONMENT | change, "GPU-1") != known
    monkeypatch.setattr(module, "code_fingerprint", lambda: "other")
    assert identity(ENVIRONMENT, "GPU-1") != known


def test_the_fingerprint_is_of_the_source_that_times_depend_on(tmp_path):
    (tmp_path / "stages").mkdir()
    found = []
    for kernel, table in (("a = 1", "c = 1"), ("a = 1", "c = 2"), ("a = 2", "c = 2")):
        (tmp_path / "stages/m01.py").write_text(kernel)
        (tmp_path / "plans.py").write_text("b = 1")
        (tmp_path / "tables.py").write_text(table)
        found.append(code_fingerprint(tmp_path, ("stages", "plans.py")))
    assert found[0] == found[1] != found[2]
    assert all((Path(convlab.__file__).parent / part).exists() for part in module.MEASURED_BY)


def test_agreement_is_the_median_over_layers_of_each_system():
    one, other = sample(), sample(slower=1.03)
    worse = other.rows["conv4", 128, "m01_direct"]
    other.rows[worse.key] = replace(worse, time_ms=2 * worse.time_ms)
    found = {name: numbers for name, *numbers in agreement(one, other)}
    assert found["m01_direct"] == pytest.approx([12, 3.0, 106.0])
    assert found["cudnn_fft"][0] == 8
    assert "cupy_fp32" not in found
