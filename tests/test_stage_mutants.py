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
    same = Mutant(M03, "", "", 0, "nothing", '"""s', '"""s', line=1, column=0)
    assert stage_mutants.result_of(same) == stage_mutants.SURVIVED


def test_each_kind_of_change_is_made_and_stands_where_it_says():
    made = made_of(M12)
    assert {one.kind for one in made} == {"synchronisation", "index", "bound", "constant"}
    removed = [one for one in made if one.new == "pass"]
    assert len(removed) == 6  # two barriers, two waits, two commits
    assert all(one.text.splitlines()[one.line - 1].strip().startswith("pass") for one in removed)


def test_all_mutants_are_tried_and_rejected_or_right_for_a_reason():
    results = stage_mutants.stored_results()
    assert [row["code"] for row in stage_mutants.document()["rows"]] == [
        one.code for one in results
    ]
    for module, count in stage_mutants.document()["made"].items():
        made = made_of(module)
        assert len(made) == count
        assert not [one for one in made if one not in results], "run stage_mutants --new"
        rejected = [one for one in made if results[one] == stage_mutants.REJECTED]
        unexplained = [one for one in made if one not in rejected and not one.equivalent]
        assert len(rejected) >= 0.95 * (len(rejected) + len(unexplained)), module
        assert not any(one.equivalent for one in rejected)
    assert {result for one, result in results.items() if one.kind == "synchronisation"} == {
        stage_mutants.REJECTED
    }


def test_a_result_is_found_by_the_code_that_is_changed(monkeypatch):
    before = made_of(M03)
    assert len(set(before)) == len(before)
    text = stage_mutants.source_of(M03).replace(
        "cuda.syncthreads()", "# A comment.\n" + 12 * " " + "cuda.syncthreads()  # another"
    )
    monkeypatch.setattr(stage_mutants, "source_of", lambda module: text)
    after = [*stage_mutants.mutants_of(M03)]
    assert after == before
    assert [one.line for one in after] != [one.line for one in before]
