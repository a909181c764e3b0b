"""Stages that are wrong on purpose are rejected: mistakes made by hand by the oracle on small
problems, a sample of the generated changes by ``convlab check``."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from stage_mutants import engines, results, sources
from stage_mutants.by_hand import MISTAKES, find_mistake, mistakes_of
from stage_mutants.generated import Generated, mutants_of
from stage_mutants.mutant import Mutant
from strategies import Tensors, tensors

from convlab import ConvProblem, Stage, Tile
from convlab.checking import loop_limits
from convlab.ladder import stage_named

pytestmark = pytest.mark.same_in_cudasim

# Nothing divides anything: two images, remainders in M, N and K of every tiny tile; windows that
# read all four paddings.
PROBLEM = ConvProblem(2, 5, 5, 8, 5, (2, 3), stride=(2, 3), padding=(1, 2), dilation=(1, 2))
INSTEAD = {
    # Blocks that take several channels at a time: more than one block's worth, and a remainder.
    "c0": (ConvProblem(1, 9, 4, 66, 2, (2, 3), stride=(1, 2), padding=(1, 2)),),
    # Two whole slices of the depth, and one of pitch 12.
    "i03_im2col_depth_last": (ConvProblem(2, 43, 4, 5, 3, (2, 3), padding=(0, 1)),),
    # Few channels with dilation and without, which leaves several rows to a tile; many channels.
    "m11": (
        PROBLEM,
        ConvProblem(2, 1, 41, 4, 5, (3, 2), stride=(2, 1), padding=(1, 2)),
        ConvProblem(2, 12, 5, 5, 5, (3, 2), stride=(2, 1), padding=(1, 2)),
        ConvProblem(1, 3, 4, 5, 21, 2),  # two rows of blocks
    ),
}

# The tile of a stage's mutants where it is not the tiny one: slices of an odd depth.
TILES = {"m15_split_k": Tile(16, 32, 3, 4, 4)}


@cache
def numbers_for(problem: ConvProblem) -> list[Tensors]:
    """Return tensors of every kind that shows a mistake."""
    kinds = ("integers", "normal", "infinities")
    made = [tensors(problem, kind, 8, bias=True) for kind in (*kinds, "integers")]
    made[-1][0][:, :, 3] = np.inf  # one row's alone, for PROBLEM the last that a window reaches
    return made


Case = tuple[ConvProblem, int]  # and which kind of numbers


def cases(name: str) -> list[Case]:
    """All that a stage and its mutants are checked on, the plainest numbers first."""
    instead = (INSTEAD[start] for start in INSTEAD if name.startswith(start))
    return [(problem, kind) for kind in range(4) for problem in next(instead, (PROBLEM,))]


def is_right(stage: Stage, case: Case, checked) -> bool:
    """Return whether a stage is right on these numbers, with nothing raised."""
    problem, kind = case
    try:
        tile = TILES.get(stage.name, stage.tiny_tile)
        return checked(problem, stage, numbers_for(problem)[kind], tile).ok
    except (IndexError, OverflowError, RuntimeError, ValueError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_caught_and_the_original_is_right(
    name: str, checked_in_simulator, tmp_path: Path
) -> None:
    """The original is right on each case that catches one: or mutants would be caught for nothing,
    as by a mistake in how they are made."""
    module = stage_named(name).module
    caught: set[Case] = set()
    for mistake in mistakes_of(name):
        made = mistake.stage(module, tmp_path)
        wrong = (case for case in cases(name) if not is_right(made, case, checked_in_simulator))
        case = next(wrong, None)
        assert case is not None, f"{mistake.what}: nobody sees it"
        caught.add(case)
    original = sources.remade(module, {module: sources.code_of(module)}, tmp_path)
    for case in caught:
        assert is_right(original, case, checked_in_simulator), case


M03, M12 = "convlab.ladder.main.m03_shared_memory", "convlab.ladder.main.m12_async_copies"


made_of = cache(lambda module: [*mutants_of(module)])


def changes(module: str, kind: str) -> list[Generated]:
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
    assert results.result_of(mutant) == results.REJECTED or mutant.equivalent


@pytest.mark.slow
def test_a_stage_that_is_not_changed_is_not_rejected():
    same = Mutant(module=M03, old='"""m', new='"""m', line=1, column=0)
    assert results.result_of(same) == results.SURVIVED


@pytest.mark.slow
def test_a_part_that_is_not_changed_is_not_rejected():
    """By none of the stages that import it, of which some leave the rest to a library."""
    module = "convlab.ladder.im2col.batch_slices"
    same = Mutant(module=module, old='"""', new='"""', line=1, column=0)
    assert results.result_of(same) == results.SURVIVED


G03 = "convlab.ladder.gradients.g03_shared_pixels"


@pytest.mark.slow
def test_mutants_of_gradients_are_rejected_and_the_stage_is_not():
    same = Mutant(module=G03, old='"""g', new='"""g', line=1, column=0)
    assert results.result_of(same) == results.SURVIVED
    # Channels that no block stores: their sums are added up from numbers that nobody wrote.
    lost = [one for one in changes(G03, "bound") if (one.old, one.new) == ("M", "(M) - 1")]
    assert results.result_of(next(one for one in lost if one.code == "if m < M:")) == "rejected"


def test_a_sample_has_all_of_synchronisation_and_what_a_smaller_one_has():
    made = made_of(M12)
    small, large = results.sampled(made, 30), results.sampled(made, 60)
    assert (len(small), len(large)) == (30, 60)
    assert set(changes(M12, "synchronisation")) < set(small) < set(large)
    assert large == [one for one in made if one in large]
    assert results.sampled(made, None) == results.sampled(made, len(made)) == made


def test_each_kind_of_change_is_made_and_stands_where_it_says():
    made = made_of(M12)
    assert {one.kind for one in made} == {"synchronisation", "index", "bound", "constant"}
    removed = [one for one in made if one.new == "pass"]
    assert len(removed) == 6  # two barriers, two waits, two commits
    assert all(one.text.splitlines()[one.line - 1].strip().startswith("pass") for one in removed)


LEAST_TRIED = 12  # of a module, in a sample


@pytest.mark.slow
def test_all_mutants_are_tried_and_rejected_or_right_for_a_reason():
    stored = results.stored_results()
    assert [row["code"] for row in results.document()["rows"]] == [one.code for one in stored]
    for module, count in results.document()["made"].items():
        made = made_of(module)
        assert len(made) == count
        tried = [one for one in made if one in stored]
        assert len(tried) >= min(LEAST_TRIED, count), f"run stage_mutants --new --only {module}"
        assert tried == results.sampled(made, len(tried)), module
        rejected = [one for one in tried if stored[one] == results.REJECTED]
        unexplained = [one for one in tried if one not in rejected and not one.equivalent]
        assert len(rejected) >= 0.95 * (len(rejected) + len(unexplained)), module
        assert not any(one.equivalent for one in rejected)
    of_barriers = [one for one in stored if one.kind == "synchronisation"]
    assert all(stored[one] == results.REJECTED or one.equivalent for one in of_barriers)


def test_a_result_is_found_by_the_code_that_is_changed(monkeypatch):
    before = made_of(M03)
    assert len(set(before)) == len(before)
    text = sources.source_of(M03).replace(
        "cuda.syncthreads()", "# A comment.\n" + 12 * " " + "cuda.syncthreads()  # another"
    )
    monkeypatch.setattr(sources, "source_of", lambda module: text)
    after = [*mutants_of(M03)]
    assert after == before
    assert [one.line for one in after] != [one.line for one in before]


def test_a_mistake_is_found_by_the_code_around_comments(monkeypatch):
    before = {one.what: one.text.split() for one in mistakes_of("m03")}
    text = sources.source_of(M03).replace(
        "            cuda.syncthreads()  #",
        "            # A comment.\n            cuda.syncthreads()  # another\n            #",
    )
    assert text != sources.source_of(M03)
    monkeypatch.setattr(sources, "source_of", lambda module: text)
    assert {one.what: one.text.split() for one in mistakes_of("m03")} == before
    with pytest.raises(AssertionError, match="is found 0 times in m03"):
        find_mistake("m03", "a barrier that is not there", "cuda.nothing()", "pass")


def test_results_of_machine_code_are_kept_as_they_come(tmp_path, monkeypatch):
    mutants = [*mutants_of(G03)][:3]
    file = tmp_path / "engines.jsonl"
    monkeypatch.setattr(engines, "ProcessPoolExecutor", lambda jobs: ThreadPoolExecutor(1))
    made = {one: engines.Judged(results.REJECTED, Counter(found=2), 1.5) for one in mutants}
    monkeypatch.setattr(engines, "judged", made.__getitem__)
    assert engines.known_results(file) == {}
    for number, (one, now) in enumerate(engines.judged_by_processes(mutants, 1, file), 1):
        assert now == made[one]
        assert len(engines.known_results(file)) == number
    assert engines.known_results(file) == {one.key: made[one] for one in mutants}


def test_results_of_machine_code_are_summed_up() -> None:
    wrong, lost, right = [*mutants_of(G03)][:3]
    now = {
        wrong: engines.Judged(results.REJECTED, Counter(found=1, compiled=3), 1.5),
        lost: engines.Judged(results.SURVIVED, Counter({"a tensor core": 4}), 2.7),
    }
    stored = {wrong: results.REJECTED, lost: results.REJECTED, right: results.SURVIVED}
    document = json.loads(engines.summary(now, stored))
    assert document["stored"] == {results.REJECTED: 2, results.SURVIVED: 1}
    assert document["launches"] == {"a tensor core": 4, "compiled": 3, "found": 1}
    assert [tuple(row.values()) for row in document["rows"]] == [
        (results.REJECTED, results.REJECTED, 1, 0, 2),
        (results.REJECTED, results.SURVIVED, 1, 1, 3),
    ]


SEEMS_ENDLESS = "the other engine must check a loop that does not end"


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, engines.MORE_STEPS], ids=["as Python", "as machine code"])
def test_a_right_stage_is_not_rejected_as_machine_code_for_many_iterations(monkeypatch, times):
    """The check's limit grows with the stage's own loops."""
    monkeypatch.setattr(loop_limits, "ITERATIONS", 2_000)
    monkeypatch.setattr(engines, "MORE_STEPS", times)
    same = Mutant(module=M03, old='"""m', new='"""m', line=1, column=0)
    now = engines.judged(same)
    assert now.result == results.SURVIVED
    assert set(now.ends) == {"compiled"} | ({SEEMS_ENDLESS} if times == 1 else set())
