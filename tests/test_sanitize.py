"""What compute-sanitizer watches: every kernel that a stage has, split sums included."""

from __future__ import annotations

import pytest

from convlab.bench import sanitize
from convlab.stages import LADDER, stage_named

S12 = stage_named("s12")


def test_every_stage_runs_with_its_production_tile_and_its_tiny_one() -> None:
    found = {(stage.name, tile) for _, stage, tile, _ in sanitize.cases(LADDER)}
    for stage in LADDER:
        assert (stage.name, stage.tiny_tile) in found
        assert {tile for name, tile in found if name == stage.name} - {stage.tiny_tile} or (
            stage.tiny_tile is None
        )


def test_split_sums_are_among_them_and_whole_ones() -> None:
    kernels = [
        [launch.name for launch in S12.prepare(problem, tile).launches]
        for problem, _, tile, _ in sanitize.cases((S12,))
    ]
    assert any("clear" in names for names in kernels)
    assert any("clear" not in names for names in kernels)


def test_an_unknown_stage_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sanitize.main(["--stage", "s99"])
    assert ended.value.code == 2
    assert "s99" in capsys.readouterr().err
