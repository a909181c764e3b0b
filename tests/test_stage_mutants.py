"""Mutants made from the stages' own sources: a sample; ``stage_mutants`` checks them all."""

from __future__ import annotations

from functools import cache

import pytest
import stage_mutants
from stage_mutants import Mutant

pytestmark = pytest.mark.same_in_cudasim

M03, M12 = "convlab.ladder.main.m03_shared_memory", "convlab.ladder.main.m12_async_copies"


made_of = cache(lambda module: [*stage_mutants.mutants_of(module)])


def changes(module: str, kind: str) -> list[Mutant]:
    return [mutant for mutant in made_of(module) if mutant.kind == kind]


@pytest.mark.parametrize(
    "mutant",
    [
        *changes(M03, "synchronisation"), *changes(M03, "index"), *changes(M03, "bound")[::5],
        *changes(M03, "constant")[::9],
        # What weakens a barrier is found last, after seconds: of m03 alone, and by test_checking.
        *(one for one in changes(M12, "synchronisation") if "syncwarp" not in one.new),
        *changes(M12, "constant")[12::48],
    ],
    ids=lambda one: f"{one.module[-11:]}:{one.line}:{one.column}:{one.new}",
)  # fmt: skip
def test_a_sample_of_the_mutants_is_rejected(mutant):
    assert stage_mutants.result_of(mutant) == stage_mutants.REJECTED or mutant.equivalent


def test_a_stage_that_is_not_changed_is_not_rejected():
    same = Mutant(M03, 1, 0, "nothing", '"""s', '"""s')
    assert stage_mutants.result_of(same) == stage_mutants.SURVIVED


def test_each_kind_of_change_is_made_and_stands_where_it_says():
    made = made_of(M12)
    assert {one.kind for one in made} == {"synchronisation", "index", "bound", "constant"}
    removed = [one for one in made if one.new == "pass"]
    assert len(removed) == 6  # two barriers, two waits, two commits
    assert all(one.text.splitlines()[one.line - 1].strip().startswith("pass") for one in removed)


def test_all_mutants_are_tried_and_rejected_or_right_for_a_reason():
    document = stage_mutants.document()
    for module, made in document["made"].items():
        rows = [row for row in document["rows"] if row["module"] == module]
        rejected = [row for row in rows if row["result"] == stage_mutants.REJECTED]
        unexplained = [row for row in rows if row not in rejected and not row["equivalent"]]
        assert len(rows) == made == len(made_of(module))
        assert len(rejected) >= 0.95 * (len(rejected) + len(unexplained)), module
        assert not any(stage_mutants.of_row(row).equivalent for row in rejected)
    assert all(
        row["result"] == stage_mutants.REJECTED
        for row in document["rows"] if row["kind"] == "synchronisation"
    )  # fmt: skip
