"""``python -m convlab.bench.simulators``: its table and its JSON."""

from __future__ import annotations

import json

import pytest

from convlab.bench import simulators


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    """Once each, and Numba's slow simulator not at all."""
    monkeypatch.setattr(simulators, "REPEATS", 1)
    monkeypatch.setattr(simulators, "of_numba", lambda: dict.fromkeys(simulators.KERNELS, 1000.0))


def test_table_and_json_say_the_same(capsys, tmp_path) -> None:
    path = tmp_path / "simulators.json"
    assert simulators.main(["--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["environment"]["command"].endswith(f"--runs 1 --json {path}")
    (rows,) = document["runs"]
    assert [row["kernel"] for row in rows] == list(simulators.KERNELS)
    shown = capsys.readouterr().out
    for row in rows:
        assert f"{row['strict_per_second']:,.0f} |" in shown
        assert row["unchecked_speedup"] == row["unchecked_per_second"] / 1000


def test_several_runs_are_a_median_and_what_they_swing_between(monkeypatch, capsys) -> None:
    speeds = iter([2000.0, 8000.0, 4000.0])

    def measure() -> list[simulators.Row]:
        return [simulators.Row("tiled", 100.0, next(speeds), 700.0)]

    monkeypatch.setattr(simulators, "measure", measure)
    assert simulators.main(["--runs", "3"]) == 0
    (line,) = (one for one in capsys.readouterr().out.splitlines() if "tiled" in one)
    assert "| 100 (100 to 100) | 4,000 (2,000 to 8,000) | 40 times (20 to 80) |" in line


def test_no_runs_are_refused(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        simulators.main(["--runs", "0"])
    assert "--runs is 0: it must be 1 or more" in capsys.readouterr().err


def test_interrupted_it_writes_nothing(monkeypatch, capsys, tmp_path) -> None:
    def interrupted() -> list[simulators.Row]:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulators, "measure", interrupted)
    path = tmp_path / "simulators.json"
    assert simulators.main(["--json", str(path)]) == simulators.INTERRUPTED
    assert not path.exists()
    assert "nothing was written" in capsys.readouterr().err
