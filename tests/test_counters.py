"""The comparison with ncu: what it reads, when it says that counts differ, what it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convlab.bench import counters, ncu, textbook
from convlab.bench.counters import METRICS, Row
from convlab.engines import unavailable
from convlab.stages import LADDER

pytestmark = pytest.mark.same_in_cudasim

STORED = json.loads(
    (Path(__file__).parents[1] / "docs/results/counters_h200.json").read_text(encoding="utf-8")
)
NONE = dict.fromkeys(METRICS, 0)


def row(counted: dict[str, int], traced: dict[str, int]) -> Row:
    return Row("s01", "direct", None, None, NONE | counted, NONE | traced)


def test_global_counts_must_be_equal_and_passes_nearly():
    assert row({}, {}).off() == []
    assert row({"load_sectors": 1000}, {"load_sectors": 999}).off() == ["load_sectors"]
    assert row({"shared_load_passes": 106}, {"shared_load_passes": 100}).off() == []
    assert row({"shared_load_passes": 107}, {"shared_load_passes": 100}).off()
    assert row({"shared_load_passes": 100}, {"shared_load_passes": 107}).off()
    assert row({}, {"store_requests": 1}).off() == ["store_requests"]


def test_the_stored_comparison_is_of_every_stage_and_agrees():
    rows = [Row(**entry) for entry in STORED["rows"]]
    assert {row.name for row in rows} >= {s.name for s in LADDER if not s.needs_library}
    assert [row.name for row in rows if row.off()] == []
    assert sum(row.counted["load_requests"] for row in rows) > 100_000


def test_ncus_page_is_read():
    metrics = [metric for group in METRICS.values() for metric in group]
    head = ",".join(f'"{name}"' for name in ["ID", "Kernel Name", *metrics])
    units = ",".join('""' for _ in range(len(metrics) + 2))
    values = ",".join(f'"{1000 * n:,}"' for n in range(len(metrics)))
    text = f'==PROF== Connected\n{head}\n{units}\n"0","direct_v1",{values}\n'
    ((kernel, counts),) = ncu.parsed(text, metrics)
    assert kernel == "direct_v1"
    assert counts == {metric: 1000 * n for n, metric in enumerate(metrics)}
    assert counters.by_metrics_names(counts) == {
        "load_requests": 0, "load_sectors": 1000, "store_requests": 2000, "store_sectors": 3000,
        "atomic_requests": 4000 + 5000, "shared_load_passes": 6000, "shared_store_passes": 7000,
    }  # fmt: skip


def test_ncu_watches_the_launches_that_are_traced(monkeypatch):
    """A stand-in for the program: it is given the module and its options, and writes the page."""

    def run(command, check):
        log = Path(command[command.index("--log-file") + 1])
        log.write_text(f'"ID","Kernel Name","one"\n"","",""\n"0","{command[-3:]}","7"\n')

    monkeypatch.setattr("subprocess.run", run)
    assert ncu.counted(["one"], "module", "--only", "s02") == [
        ("['module', '--only', 's02']", {"one": 7})
    ]


def test_a_part_can_be_chosen_by_name():
    everything = counters.cases()
    assert {case.name for case in everything.textbook} == {case.name for case in textbook.CASES}
    chosen = counters.cases(["s02_c", "transpose"])
    assert {stage.name for stage, _, _ in chosen.stages} == {"s02_cin_naive", "s02_cin", "s02_cout"}
    assert len(chosen.stages) == 3 * 3
    assert len(chosen.textbook) == 3
    with pytest.raises(ValueError, match="only is 's99': it must begin one of copy, "):
        counters.cases(["s99"])


def test_launches_that_do_not_match_are_refused():
    chosen = counters.Cases((), ())
    with pytest.raises(RuntimeError, match="ncu saw 1 launches, the simulator 0"):
        counters.compared([("k", NONE)], chosen, (9, 0))


def test_the_table_shows_both_numbers_where_they_differ():
    document = json.loads(json.dumps(STORED))
    document["rows"] = document["rows"][:1]
    document["rows"][0]["traced"]["load_sectors"] = 7
    table = counters.table(document)
    assert "| copy |  |  | 32 | 125 / 7 | 32 | 125 |" in table
    assert "NVIDIA H200" in table


@pytest.mark.skipif(unavailable("gpu") is None, reason="there is a GPU here")
def test_without_a_gpu_it_says_so(capsys):
    assert counters.main([]) == 2
    assert "cannot run here" in capsys.readouterr().err
