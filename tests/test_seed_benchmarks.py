"""The benchmarks behind docs/seed-results.md, on a pretended GPU: what they measure, how they
judge, what they show."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import seed_fakes
from bench_fakes import InThread
from bench_samples import sample

from convlab.bench import (
    ablation,
    cases,
    first_calls,
    pool,
    seed_results,
    seed_runs,
    sweeps,
    unfold_table,
)
from convlab.bench.results import open_results
from convlab.bench.seed_runs import beside_bench, number_of, numberless, row_of
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.problem import ConvProblem

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
SMALL = ConvProblem(1, 2, 6, 6, 3, 3)


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """A GPU, and laboratories that know every name, in threads instead of processes."""
    engine = PretendedGpu(strict=False)
    monkeypatch.setattr(seed_runs, "choose", lambda name: engine)
    monkeypatch.setattr(pool, "Worker", InThread)
    for module in (ablation, sweeps, unfold_table):
        monkeypatch.setattr(module, "BACKEND", "seed_fakes:Named")
    monkeypatch.setattr(seed_fakes, "HOW", {})
    monkeypatch.setattr(seed_fakes, "SPREAD", {})
    # Layers, points and images that NumPy does at once.
    monkeypatch.setattr(ablation, "PAPER_BATCH", 1)
    monkeypatch.setattr(ablation, "LAYER_NAMES", ("conv11", "conv12"))
    monkeypatch.setattr(sweeps, "BASE", SMALL)
    monkeypatch.setattr(sweeps, "SWEEPS", {"size": (6, 9), "kernel_size": (1, 3)})
    monkeypatch.setattr(unfold_table, "PROBLEM", SMALL)
    return engine


def run(module, tmp_path, expected=0):
    file = tmp_path / "results.json"
    assert module.main(["--json", str(file)]) == expected
    return json.loads(file.read_text())


def test_the_ablation_compares_the_whole_with_each_part_left_out(tmp_path, capsys):
    document = run(ablation, tmp_path)
    assert [(row["layer"], row["system"]) for row in document["rows"]] == [
        (layer, name) for layer in ("conv11", "conv12") for name in ablation.NAMES
    ]
    assert {row["state"] for row in document["rows"]} == {"measured"}
    assert ablation.worth(document, "without_prefetch") == pytest.approx([1.2, 1.2])
    out, err = capsys.readouterr()
    assert "| without the micro-kernel | 12.00 | 12.00 to 12.00 | 2 |" in out
    assert "8 of 8" in err
    assert document["environment"]["command"].startswith("python -m convlab.bench.ablation --json")


def test_a_variant_is_s11_with_one_switch_off():
    small = ConvProblem(1, 4, 8, 8, 8, 3)
    for name, (switch, _) in ablation.VARIANTS.items():
        assert ablation.variant(name).name == name
        assert switch in ablation.stage_named(ablation.WHOLE).switches
    whole = ablation.stage_named(ablation.WHOLE)
    tile = whole.tiny_tile
    programs = {
        name: whole.prepare(small, tile, **({ablation.VARIANTS[name][0]: False} if name in
        ablation.VARIANTS else {})) for name in ablation.NAMES
    }  # fmt: skip
    assert programs["without_microkernel"].tile.M_T == programs["without_microkernel"].tile.N_T == 1
    assert programs[ablation.WHOLE].tile.M_T > 1


def test_a_laboratory_hands_the_switch_to_the_kernel(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "convlab.bench.systems.PreparedStage",
        lambda stage, problem, input, weight, **switches: seen.append((stage.name, switches)),
    )
    for name in ablation.NAMES:
        ablation.variant(name).prepare(SMALL, None, None, None)
    assert seen == [
        ("s11_im2win_full", {}),
        ("s11_im2win_full", {"prefetch": False}),
        ("s11_im2win_full", {"vectorized": False}),
        ("s11_im2win_full", {"microkernel": False}),
    ]


@pytest.mark.parametrize(
    ("laboratory", "module", "lookup", "name"),
    [
        (ablation.Variants, ablation, "variant", "without_prefetch"),
        (unfold_table.Rows, unfold_table, "row_system", unfold_table.CUPY),
    ],
)
def test_a_laboratory_compiles_what_only_it_knows(monkeypatch, laboratory, module, lookup, name):
    compiled = []

    def named(asked):
        return SimpleNamespace(compile=lambda problem: compiled.append((asked, problem)))

    monkeypatch.setattr(module, lookup, named)
    object.__new__(laboratory).compile(name, SMALL)  # not made: that takes a GPU
    assert compiled == [(name, SMALL)]


def test_a_wrong_variant_has_a_reason_and_no_number(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(seed_fakes.HOW, "without_prefetch", "wrong")
    document = run(ablation, tmp_path, expected=1)
    assert document["ok"] is False
    row = row_of(document, "conv12", "without_prefetch")
    assert row["state"] == "wrong"
    assert row["time_ms"] is row["tflops"] is None
    assert ablation.worth(document, "without_prefetch") == []
    said = capsys.readouterr().out
    assert "- without_prefetch on conv12: wrong, the error is " in said
    assert "| conv12 | 0.0 | - |" in said


def test_the_sweeps_are_over_cpp(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(seed_fakes.HOW, "cutlass_optimized", "unsupported")
    monkeypatch.setattr(
        seed_fakes, "SLOW", {sweeps.BASELINE: 900.0, "s02_cin": 5.0, "torch_compile_fp32": 2000.0}
    )
    document = run(sweeps, tmp_path)
    # The base is in both sweeps and measured once.
    assert len(document["rows"]) == 3 * len(sweeps.SYSTEMS)
    assert len(document["points"]) == 4
    assert sweeps.speedups(document, "size", "s02_cin") == [180.0, 180.0]
    assert sweeps.speedups(document, "kernel_size", "torch_compile_fp32") == [0.45, 0.45]
    assert sweeps.speedups(document, "size", "cutlass_optimized") == [None, None]
    said = capsys.readouterr().out
    assert "- CUTLASS optimized at 6, 9: unsupported, CUDNN_STATUS_NOT_SUPPORTED" in said
    assert "| 6 | 900 | " in said
    assert sweeps.SYSTEMS.keys() >= {
        "cpp_seven_loops", "s02_cin_naive", "s02_cin", "s02_cout", "cutlass_analytic",
        "cutlass_optimized", "torch_compile_fp32",
    }  # fmt: skip


def test_sweeps_change_one_size():
    assert sweeps.problem_at("size", 9) == ConvProblem(1, 2, 9, 9, 3, 3)
    assert sweeps.problem_at("kernel_size", 1) == ConvProblem(1, 2, 6, 6, 3, 1)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted, the same command goes on"),
        (pool.WorkerDied("its process ended"), 2, "no process can measure here: its process ended"),
    ],
)
def test_what_stops_a_benchmark_is_one_line(monkeypatch, tmp_path, capsys, error, code, said):
    def stopped(cases, laboratory, **more):
        raise error

    monkeypatch.setattr(seed_runs, "measure_cases", stopped)
    file = tmp_path / "sweeps.json"
    assert sweeps.main(["--json", str(file)]) == code
    assert capsys.readouterr().err == f"convlab: {said}\n"
    assert not file.exists()


def cells(said, first):
    """The table's row that begins with this cell."""
    (line,) = (line for line in said.splitlines() if line.startswith(f"| {first} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_did_not_settle_is_marked_in_the_ablation(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(seed_fakes.SPREAD, "without_prefetch", 2.5)
    run(ablation, tmp_path)
    said = capsys.readouterr().out
    marks = [cell.startswith("~") for cell in cells(said, "conv11")[1:]]
    assert marks == [name == "without_prefetch" for name in ablation.NAMES]
    assert "~ where the runs' spread stayed above 2 %" in said


@pytest.mark.parametrize("noisy", ["s02_cin", sweeps.BASELINE])
def test_what_did_not_settle_is_marked_in_the_sweeps(monkeypatch, tmp_path, capsys, noisy):
    """A ratio where its own time is; C++'s swings mark C++'s times alone."""
    monkeypatch.setitem(seed_fakes.SPREAD, noisy, 14.5)
    monkeypatch.setitem(seed_fakes.HOW, "cutlass_optimized", "unsupported")
    document = run(sweeps, tmp_path)
    found = dict(zip(sweeps.SYSTEMS, cells(capsys.readouterr().out, "9")[1:], strict=True))
    marks = {name for name, cell in found.items() if cell.startswith("~")}
    assert marks == {noisy}
    assert found["cutlass_optimized"] == "-"
    assert "~ stands where the runs' spread" in sweeps.heading(document)


def test_what_did_not_settle_is_marked_in_the_unfold_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(unfold_table, "first_calls", lambda names: {})
    monkeypatch.setitem(seed_fakes.SPREAD, "conv2d", 3.0)
    run(unfold_table, tmp_path)
    said = capsys.readouterr().out
    assert cells(said, "F.conv2d | no")[-1] == "~10.000"
    assert said.count("~") == 2  # that, and what it means


MODULES = pytest.mark.parametrize("module", [ablation, sweeps, unfold_table])


def interrupt(monkeypatch, after):
    """Ctrl-C once so many rows are there."""
    whole = cases.run

    def interrupted(*arguments):
        for number, row in enumerate(whole(*arguments)):
            if number == after:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(cases, "run", interrupted)
    return lambda: monkeypatch.setattr(cases, "run", whole)


@MODULES
def test_an_interrupted_run_goes_on_where_it_was(monkeypatch, tmp_path, capsys, module):
    monkeypatch.setattr(
        unfold_table, "first_calls", lambda names: {name: {"ms": 9.0} for name in names}
    )
    as_before = interrupt(monkeypatch, after=3)
    kept = run(module, tmp_path, expected=130)
    assert capsys.readouterr().err.endswith("convlab: interrupted, the same command goes on\n")
    assert len(kept["rows"]) == 3
    as_before()
    calls = []
    monkeypatch.setattr(unfold_table, "first_calls", lambda names: calls.append(names) or {})
    document = run(module, tmp_path)
    assert document["rows"][:3] == kept["rows"]
    cells = [(row["problem"], row["system"]) for row in document["rows"]]
    assert len(cells) == len(set(cells)) > 3
    assert not calls  # they are kept as rows are
    assert "3 are there" in capsys.readouterr().err
    assert module.show(document)


@MODULES
def test_rows_of_other_code_are_put_aside(monkeypatch, tmp_path, capsys, module):
    """So nothing that was measured is lost."""
    monkeypatch.setattr(unfold_table, "first_calls", lambda names: {})
    older = run(module, tmp_path)
    older["identity"] = "other"
    older["rows"] = [row | {"identity": "other"} for row in older["rows"]]
    (tmp_path / "results.json").write_text(json.dumps(older))
    document = run(module, tmp_path)
    assert json.loads((tmp_path / "results-other.json").read_text()) == older
    assert "other" not in {row["identity"] for row in document["rows"]}
    assert len(document["rows"]) == len(older["rows"])
    said = capsys.readouterr().err
    assert f"of another machine, other versions or other code: now in {tmp_path}" in said


def test_nothing_is_put_aside_before_there_is_a_row(monkeypatch, tmp_path):
    older = run(sweeps, tmp_path)
    older["identity"] = "other"
    older["rows"] = [row | {"identity": "other"} for row in older["rows"]]
    (tmp_path / "results.json").write_text(json.dumps(older))
    interrupt(monkeypatch, after=0)
    assert run(sweeps, tmp_path, expected=130) == older
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_failed_first_calls_are_tried_again(monkeypatch):
    monkeypatch.setattr(unfold_table, "first_calls", lambda names: {name: {} for name in names})
    six = [name for name, line in unfold_table.LINES.items() if line.claimed_ms is not None]
    whole = {"first_calls": {name: {"ms": 1.0} for name in six}}
    assert unfold_table.first_calls_once(whole) == whole
    broken = {"first_calls": whole["first_calls"] | {"conv2d": {"reason": "its process ended"}}}
    for older in (None, {}, broken):
        assert unfold_table.first_calls_once(older) == {"first_calls": {name: {} for name in six}}


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"identity": "a", "rows": [{"layer": "b"}]}']
)
def test_a_file_of_something_else_is_left_alone(tmp_path, capsys, content):
    file = tmp_path / "results.json"
    file.write_text(content)
    assert ablation.main(["--json", str(file)]) == 2
    err = capsys.readouterr().err
    assert "results.json', no file of this benchmark: " in err
    assert err.count("\n") == 1
    assert file.read_text() == content


def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(seed_runs, "measure_cases", None)
    (tmp_path / "file").write_text("")
    assert ablation.main(["--json", str(tmp_path / "file" / "results.json")]) == 2
    err = capsys.readouterr().err
    assert "results.json', which cannot be written" in err
    assert err.count("\n") == 1


@MODULES
def test_it_needs_a_gpu(monkeypatch, capsys, module):
    def choose(name):
        raise EngineUnavailable("there is none")

    monkeypatch.setattr(seed_runs, "choose", choose)
    assert module.main([]) == 2
    assert capsys.readouterr().err == (
        "convlab: there is none: its times mean nothing without one\n"
    )


def test_without_a_baseline_there_is_no_speedup(monkeypatch, tmp_path):
    monkeypatch.setitem(seed_fakes.HOW, sweeps.BASELINE, "absent")
    document = run(sweeps, tmp_path)
    assert sweeps.speedups(document, "size", "s02_cin") == [None, None]
    assert [entry[:2] for entry in numberless(document)] == [(sweeps.BASELINE, "absent")]


def test_the_host_is_timed_briefly(monkeypatch):
    timer = ModuleType("convlab.timer")
    timer.measure_host = lambda call, before, at_most_ms: SimpleNamespace(median_ms=at_most_ms)
    monkeypatch.setitem(sys.modules, "convlab.timer", timer)
    monkeypatch.setattr("convlab.timer", timer, raising=False)
    place = sweeps.Sweeping.__new__(sweeps.Sweeping)
    prepared = SimpleNamespace(run=None, poison=None)
    assert place.time(prepared, on_gpu=False).median_ms == sweeps.HOST_MS


def test_the_unfold_table_has_six_rows_and_ours(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(seed_fakes.HOW, "fast_unfoldnd", "absent")
    monkeypatch.setattr(
        unfold_table, "first_calls", lambda names: {name: {"ms": 99.5} for name in names[:5]}
    )
    document = run(unfold_table, tmp_path)
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 10
    assert rows[0].startswith("| F.conv2d | no | no | 121.819 | 99.500 | 10.000 |")
    assert rows[4].startswith("| conv2d_fast, unfoldNd | yes | no | 60.777 | 99.500 | - |")
    assert rows[5].startswith("| conv2d_fast, unfoldNd | yes | yes | 22.265 | - | 10.000 |")
    assert number_of(document, str(SMALL), "conv2d", "time_ms") == 10.0


def test_where_tf32_may_round_the_row_is_judged_as_tf32():
    precisions = {name: unfold_table.row_system(name).precision for name in unfold_table.LINES}
    assert precisions == {
        "conv2d": "fp32",
        "conv2d_tf32": "tf32",
        "fast_torch": "fp32",  # no convolution in it, and its product in fp32
        "fast_torch_tf32": "tf32",
        "fast_unfoldnd": "tf32",
        "fast_unfoldnd_tf32": "tf32",
        "unfold_einsum": "fp32",
        "unfold_einsum_tf32": "tf32",
    }
    assert unfold_table.row_system("s11").kind == "stage"


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(unfold_table, "find_spec", lambda name: None)
    for name, package in (("fast_unfoldnd", "unfoldNd"), ("unfold_einsum", "array-api-compat")):
        assert f"pip install {package}" in unfold_table.row_system(name).why_absent()


def test_first_calls_tell_of_each_row_in_turn(monkeypatch):
    reasons = {"conv2d": None, "fast_unfoldnd": "unfoldNd is not installed"}
    monkeypatch.setattr(
        first_calls, "row_system", lambda name: SimpleNamespace(why_absent=lambda: reasons[name])
    )
    monkeypatch.setattr(first_calls, "_tensors", lambda: [np.zeros(1), np.zeros(1)])
    monkeypatch.setattr(first_calls, "computation", lambda *_: lambda: None)
    assert first_calls.measure([*reasons], lambda call: 7.5) == {
        "conv2d": {"ms": 7.5},
        "fast_unfoldnd": {"reason": "unfoldNd is not installed"},
    }


def test_a_process_of_first_calls_that_says_nothing_is_a_reason(monkeypatch):
    monkeypatch.setattr(
        unfold_table.subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="", returncode=1)
    )
    assert unfold_table.first_calls(["conv2d"]) == {
        "conv2d": {"reason": "its process ended with IndexError"}
    }


def test_the_rows_compute_the_convolution():
    """Each row's own calls, by PyTorch on the CPU."""
    torch = pytest.importorskip("torch")
    from convlab.oracle import Oracle, random_tensors

    input, weight, _ = random_tensors(SMALL, 0, bias=False)
    oracle = Oracle(SMALL, input, weight)
    for name, line in unfold_table.LINES.items():
        if line.by == "unfoldnd":
            pytest.importorskip("unfoldNd")
        tensors = [torch.from_numpy(array) for array in (input, weight)]
        output = unfold_table.computation(line, SMALL, *tensors)()
        assert oracle.check(output.numpy()).ok, name


# Beside `convlab bench`.


def apart(*times_ms: tuple[str, float | None]):
    """Results of the ablation for s11, measured with other code than a sample of bench."""
    rows = [
        {"layer": layer, "batch": 128, "system": ablation.WHOLE, "time_ms": time_ms}
        for layer, time_ms in times_ms
    ]
    return {"identity": "other", "rows": rows}


def test_results_of_other_code_than_the_bench_say_how_far_they_differ():
    bench = sample()
    there = {layer: bench.row(layer, 128, ablation.WHOLE).time_ms for layer in ("conv8", "conv9")}
    document = apart(("conv8", 1.25 * there["conv8"]), ("conv9", 0.95 * there["conv9"]))
    assert beside_bench(document, bench, ablation.WHOLE) == (
        "Measured with other code or versions, or elsewhere, than the run of `convlab bench`: here "
        "s11_im2win_full takes 0.95 to 1.25 times as long as there, more than 10 % off on conv8.\n"
    )
    document["identity"] = bench.identity
    assert beside_bench(document, bench, ablation.WHOLE) == ""


def test_results_without_a_common_time_only_say_that_they_are_of_other_code():
    assert beside_bench(apart(("conv8", None), ("1x2", 3.0)), sample(), ablation.WHOLE) == (
        "Measured with other code or versions, or elsewhere, than the run of `convlab bench`.\n"
    )


def test_the_page_says_which_results_are_of_other_code(tmp_path):
    page = (ROOT / seed_results.PAGE).read_text(encoding="utf-8")
    bench = open_results(ROOT / "docs/results/bench_h200.json")
    for marker in seed_results.APART:
        file = seed_results.FILES[seed_results.SECTIONS[marker][0]][0]
        document = json.loads((ROOT / "docs/results" / file).read_text(encoding="utf-8"))
        section = page.split(f"<!-- {marker}:begin -->")[1].split(f"<!-- {marker}:end -->")[0]
        note = beside_bench(document, bench, ablation.WHOLE)
        assert note in section
        assert ("Measured with other code" in section) == bool(note)
