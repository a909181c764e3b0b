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
    rows = json.loads(path.read_text())
    assert [row["kernel"] for row in rows] == list(simulators.KERNELS)
    shown = capsys.readouterr().out
    for row in rows:
        assert f"{row['strict_per_second']:,.0f}" in shown
        assert row["unchecked_speedup"] == row["unchecked_per_second"] / 1000


def test_json_on_standard_output_is_alone_there(capsys) -> None:
    assert simulators.main(["--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
