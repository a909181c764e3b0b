"""``python -m convlab.bench.experiments`` on a pretended GPU: its cases, files and exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from bench_fakes import Fakes, InThread, Timing, small_layer

from convlab.bench import cases, experiments, pool, systems
from convlab.bench.baselines import unfold_table
from convlab.bench.experiments import EXPERIMENTS, main
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.problem import ConvProblem
from convlab.stages import ABLATION
from convlab.workloads import LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

pytestmark = pytest.mark.same_in_cudasim

SMALL = ConvProblem(1, 2, 6, 6, 3, 3)
SLOW = {"without_microkernel": 120.0}  # ms, by system
HOW: dict[str, str] = {}  # by system: which fake it is, if not the right one
LINES = unfold_table.LINES


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


class Named(Fakes):
    """Any name is a system that computes rightly, in its own time."""

    def system_named(self, name):
        self.name, how = name, HOW.get(name, "right")
        system = super().system_named(how)
        self.current = how
        return replace(system, name=name)

    def compile(self, name, problem):
        pass

    def time(self, prepared, on_gpu):
        super().time(prepared, on_gpu)
        return Timing(SLOW.get(self.name, 10.0))


@pytest.fixture(autouse=True)
def first_calls(monkeypatch):
    """A GPU; workers are threads; problems that NumPy computes at once. What is returned holds an
    entry for each process of first calls."""
    calls = []
    times = {name: {"ms": 9.0} for name in LINES}
    monkeypatch.setattr(unfold_table, "first_calls", lambda: calls.append(1) or times)
    monkeypatch.setattr(unfold_table, "PROBLEM", SMALL)
    monkeypatch.setattr("test_experiments.HOW", {})
    monkeypatch.setattr(pool, "Worker", InThread)
    monkeypatch.setattr(pool, "BACKEND", "test_experiments:Named")
    for name, value in {
        "choose": lambda name: PretendedGpu(strict=False),
        "PAPER_BATCH": 1,
        "paper_layer": small_layer,
        "LAYER_NAMES": ("conv12",),
        "UNFOLDED": SMALL,
        "SIZES": {"one": SMALL, "two": replace(SMALL, batch=2)},
        "SWEEP_BASE": SMALL,
        "SWEEPS": {"size": (6, 9), "kernel_size": (1, 3)},
    }.items():
        monkeypatch.setattr(experiments, name, value)
    return calls


@pytest.fixture
def file(tmp_path):
    return tmp_path / "new" / "results.json"


def run(name, file, expected=0):
    assert main([name, "--json", str(file)]) == expected
    return json.loads(file.read_text()) if file.exists() else None


def raising(error):
    def fail(*_):
        raise error

    return fail


def interrupt(monkeypatch, after):
    """Ctrl-C once so many rows are there; returns what takes that back."""
    whole = cases.run

    def interrupted(*arguments):
        for number, row in enumerate(whole(*arguments)):
            if number == after:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(cases, "run", interrupted)
    return lambda: monkeypatch.setattr(cases, "run", whole)


SWEPT = (SMALL, ConvProblem(1, 2, 9, 9, 3, 3), ConvProblem(1, 2, 6, 6, 3, 1))  # each once


@pytest.mark.parametrize(
    ("name", "layers", "names"),
    [
        ("sizes", ["one", "two"], experiments.SIZE_SYSTEMS),
        ("ablation", ["conv12"], (systems.WHOLE, *systems.VARIANTS)),
        ("sweeps", [*map(str, SWEPT)], experiments.SWEEP_SYSTEMS),
        ("unfold_table", [str(SMALL)], experiments.UNFOLD_SYSTEMS),
    ],
)
def test_every_system_is_measured_on_every_problem(name, layers, names, file, capsys):
    document = run(name, file)
    rows = document["rows"]
    assert [(row["layer"], row["system"]) for row in rows] == [
        (layer, one) for layer in layers for one in names
    ]
    assert {row["state"] for row in rows} == {"measured"}
    assert document["device"] == "pretended GPU"
    command = document["environment"]["command"]
    assert command == f"python -m convlab.bench.experiments {name} --json {file}"
    assert {"machine", "packages", "identity", "systems", "ok"} <= document.keys()
    assert len(document.get("points", ())) == (4 if name == "sweeps" else 0)
    assert ("first_calls" in document) == (name == "unfold_table")
    assert f"{len(rows)} of {len(rows)}" in capsys.readouterr().err


def test_sizes_are_problems_that_no_tile_was_tuned_for():
    problems = [*map(str, [*UNTUNED.values(), *UNSEEN.values()])]
    assert len({*problems}) == len(problems) == len({*UNTUNED, *UNSEEN})
    assert not {*problems} & {str(paper_layer(name)) for name in LAYER_NAMES}


def test_a_variant_is_s11_with_one_switch_off(monkeypatch):
    seen = []
    monkeypatch.setattr(
        systems,
        "PreparedStage",
        lambda stage, problem, input, weight, **switches: seen.append((stage.name, switches)),
    )
    for name in (systems.WHOLE, *systems.VARIANTS):
        variant = systems.system_named(name)
        assert variant.name == name
        variant.prepare(SMALL, None, None)
    variants = [("ablation", {switch: False}) for switch in systems.VARIANTS.values()]
    assert seen == [(systems.WHOLE, {}), *variants]
    assert {*systems.VARIANTS.values()} <= {*ABLATION.switches}
    program = ABLATION.prepare(ConvProblem(1, 4, 8, 8, 8, 3), ABLATION.tiny_tile, microkernel=False)
    assert program.tile.M_T == program.tile.N_T == 1


def test_a_wrong_system_has_a_reason_and_exits_1(monkeypatch, file):
    monkeypatch.setattr("test_experiments.HOW", {"without_prefetch": "wrong"})
    document = run("ablation", file, expected=1)
    assert document["ok"] is False
    (row,) = (row for row in document["rows"] if row["system"] == "without_prefetch")
    assert (row["state"], row["time_ms"], row["tflops"]) == ("wrong", None, None)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_interrupted_run_goes_on_where_it_was(monkeypatch, file, capsys, name, first_calls):
    as_before = interrupt(monkeypatch, after=3)
    kept = run(name, file, expected=130)["rows"]
    assert "the same command goes on" in capsys.readouterr().err
    assert len(kept) == 3
    as_before()
    document = run(name, file)
    assert document["rows"][:3] == kept
    found = [(row["problem"], row["system"]) for row in document["rows"]]
    assert len(found) == len(set(found)) > 3
    assert "3 are there" in capsys.readouterr().err
    assert len(first_calls) == (name == "unfold_table")  # first calls are kept as rows are


def test_what_another_run_may_change_is_measured_again(file):
    document = run("sizes", file)
    document["rows"][0]["identity"] = "other code"
    document["rows"][1] |= {"state": "busy", "reason": "others", "time_ms": None}
    document["rows"][2]["problem"] = "what it was once"
    file.write_text(json.dumps(document))
    again = run("sizes", file)
    now = [row for row in again["rows"] if row["problem"] != "what it was once"]
    assert {row["state"] for row in now} == {"measured"}
    assert len(now) == 2 * len(experiments.SIZE_SYSTEMS)


def test_rows_of_other_code_are_put_aside_once_there_is_a_new_row(monkeypatch, file):
    older = run("sweeps", file)
    older["identity"] = "other"
    older["rows"] = [row | {"identity": "other"} for row in older["rows"]]
    file.write_text(json.dumps(older))
    as_before = interrupt(monkeypatch, after=0)
    assert run("sweeps", file, expected=130) == older
    assert [path.name for path in file.parent.iterdir()] == ["results.json"]
    as_before()
    document = run("sweeps", file)
    assert json.loads((file.parent / "results-other.json").read_text()) == older
    assert "other" not in {row["identity"] for row in document["rows"]}
    assert len(document["rows"]) == len(older["rows"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (pool.WorkerDied("its process ended"), 2, "its process ended"),
    ],
)
def test_what_stops_it_is_one_line(monkeypatch, file, capsys, error, code, said):
    monkeypatch.setattr(experiments, "measure", raising(error))
    assert run("sweeps", file, expected=code) is None
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"identity": "a", "rows": [{"layer": "b"}]}']
)
def test_a_file_of_something_else_is_left_alone(tmp_path, capsys, content):
    file = tmp_path / "results.json"
    file.write_text(content)
    assert main(["sizes", "--json", str(file)]) == 2
    err = capsys.readouterr().err
    assert "results.json" in err
    assert err.count("\n") == 1
    assert file.read_text() == content


def test_what_cannot_run_is_said_before_anything_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(experiments, "measure", None)
    (tmp_path / "file").write_text("")
    assert main(["sizes", "--json", str(tmp_path / "file" / "results.json")]) == 2
    assert "results.json" in capsys.readouterr().err
    monkeypatch.setattr(experiments, "choose", raising(EngineUnavailable("there is none")))
    assert main(["sizes"]) == 2
    assert "there is none" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["unknown"])
    assert ended.value.code == 2


# Table 1 of article 002.


def test_failed_first_calls_are_tried_again(first_calls):
    whole = {"first_calls": {name: {"ms": 1.0} for name in LINES}}
    assert unfold_table.first_calls_once(whole) == whole
    assert not first_calls
    broken = {"first_calls": whole["first_calls"] | {"conv2d": {"reason": "its process ended"}}}
    for older in (None, {}, broken):
        times = unfold_table.first_calls_once(older)["first_calls"]
        assert {one["ms"] for one in times.values()} == {9.0}


def test_first_calls_tell_of_each_row_in_turn(monkeypatch):
    def absent(name):
        return "not installed" if name.startswith("fast_unfoldnd") else None

    systems = {name: SimpleNamespace(why_absent=partial(absent, name)) for name in LINES}
    monkeypatch.setattr(unfold_table, "ROWS", systems)
    monkeypatch.setattr(unfold_table, "_tensors", lambda: [None, None])
    monkeypatch.setattr(unfold_table, "computation", lambda line, *_: line)
    timed = {line: float(ms) for ms, line in enumerate(LINES.values())}
    assert unfold_table.time_first_calls(timed.__getitem__) == {
        name: {"reason": "not installed"} if absent(name) else {"ms": timed[line]}
        for name, line in LINES.items()
    }


def test_a_process_of_first_calls_that_says_nothing_is_a_reason(monkeypatch):
    monkeypatch.undo()
    ended = SimpleNamespace(stdout="", returncode=1)
    monkeypatch.setattr(unfold_table.subprocess, "run", lambda *_, **__: ended)
    assert "IndexError" in unfold_table.first_calls()["conv2d"]["reason"]


def test_where_tf32_may_round_the_row_is_checked_as_tf32():
    rounded = {name for name in LINES if systems.system_named(name).precision == "tf32"}
    assert rounded == {"conv2d_tf32", "fast_torch_tf32", "fast_unfoldnd", "fast_unfoldnd_tf32"}


def test_the_rows_compute_the_convolution():
    """Each row's own calls, by PyTorch on the CPU."""
    torch = pytest.importorskip("torch")
    from convlab.oracle import Oracle, random_tensors

    input, weight, _ = random_tensors(SMALL, 0, bias=False)
    oracle = Oracle(SMALL, input, weight)
    for name, line in LINES.items():
        if line.by == "unfoldnd":
            pytest.importorskip("unfoldNd")
        tensors = [torch.from_numpy(array) for array in (input, weight)]
        output = unfold_table.computation(line, SMALL, *tensors)()
        assert oracle.check(output.numpy()).ok, name
