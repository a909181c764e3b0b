"""The result of ``convlab check`` on generated mutants, and the file that stores the results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from convlab.checking import checker
from convlab.checking.launches import SPLIT_TOO, planned
from convlab.ladder import Stage, stage_named
from convlab.problems.problem import ConvProblem
from convlab.support.dask_workers import dask_workers
from stage_mutants import own_problems
from stage_mutants.generated import KEY, Generated, modules, mutants_of
from stage_mutants.mutant import Mutant

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stage_mutants.json"
REJECTED, TOLD, SURVIVED = "rejected", "told", "survived"
# Problems that reject most mutants. Split-K, where a stage has it, may have a kernel of its own.
FIRST = SPLIT_TOO, "everything at once"
# What is counted: quicker than the command's problem.
COUNTED = ConvProblem(1, 4, 12, 14, 32, 3, padding=1)


SEED = 0  # of samples


def sampled(mutants: list[Generated], most: int | None) -> list[Generated]:
    """At most so many of them at random, but all of synchronisation, in their order. A larger
    sample has those of a smaller one, and others."""
    if most is None:
        return mutants
    synchronisation = [one for one in mutants if one.kind == "synchronisation"]
    others = [one for one in mutants if one.kind != "synchronisation"]
    Random(SEED).shuffle(others)
    chosen = {*synchronisation, *others[: max(0, most - len(synchronisation))]}
    return [one for one in mutants if one in chosen]


def result_of(mutant: Mutant) -> str:
    """Return the result of ``convlab check`` on a mutant, by the first stage that rejects it."""
    found = set()
    for name in modules()[mutant.module]:
        found.add(_checked_as(mutant, name))
        if REJECTED in found:
            return REJECTED
    return TOLD if TOLD in found else SURVIVED


def _checked_as(mutant: Mutant, name: str) -> str:
    if name in own_problems.stages():
        return _checked_on_own_problems(mutant, own_problems.stages()[name])
    stage = stage_named(name)
    model = stage.adapted(COUNTED)
    with TemporaryDirectory() as folder:
        try:
            made = mutant.stage(stage.module, Path(folder))
            make = checker.maker(made.prepare, stage)
            tried = planned(stage, make, FIRST)
            for answer, findings, counted in checker.attempts(stage, make, 0, model, tried=tried):
                counts = counted
                if not answer.ok or findings:
                    return REJECTED
        except (ValueError, NameError, IndexError, TypeError, SyntaxError):
            return REJECTED  # refused with its reason
    compared = checker.compared_with(stage, counts, model, 0)
    return TOLD if any(not one.ok or one.fewer_barriers for one in compared) else SURVIVED


def _checked_on_own_problems(mutant: Mutant, stage: Stage) -> str:
    with TemporaryDirectory() as folder:
        try:
            made = mutant.stage(stage.module, Path(folder))
        except (ValueError, NameError, IndexError, TypeError, SyntaxError):
            return REJECTED
        right = all(own_problems.attempts(stage, made.prepare))
        return SURVIVED if right else REJECTED


def run(
    chosen: list[Generated], jobs: int, scheduler: str | None = None
) -> Iterator[tuple[Generated, str]]:
    """Yield each mutant and its result, by so many processes or by a Dask scheduler's workers."""
    with ExitStack() as held:
        pool: Executor
        if scheduler is None:
            pool = held.enter_context(ProcessPoolExecutor(jobs))
        else:
            pool = held.enter_context(dask_workers(scheduler)).executor
        yield from zip(chosen, pool.map(result_of, chosen), strict=True)


def stored(results: dict[Generated, str], environment: dict) -> None:
    """Put results into the stored ones, in the place of older ones of the same mutants. Rows of
    mutants that are no longer made go, and each that is not rejected gets the reason that
    EQUIVALENT has now."""
    made = {name: [*mutants_of(name)] for name in modules()}
    every = stored_results() | results
    rows = [
        {name: getattr(one, name) for name in KEY}
        | {"result": (result := every[one])}
        | {"equivalent": None if result == REJECTED else one.equivalent}
        for of_it in made.values() for one in of_it if one in every
    ]  # fmt: skip
    counts = {name: len(of_it) for name, of_it in made.items()}
    head = json.dumps({"environment": environment, "made": counts}, indent=1)
    lines = ",\n".join(map(json.dumps, rows))  # a row a line
    RESULTS.write_text(f'{head[:-2]},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def document() -> dict:
    """Return the document that is stored."""
    return json.loads(RESULTS.read_text(encoding="utf-8"))


def stored_results() -> dict[Generated, str]:
    """The result of each mutant that was run before."""
    rows = document()["rows"] if RESULTS.is_file() else []
    results = {tuple(row[name] for name in KEY): row["result"] for row in rows}
    made = (one for name in modules() for one in mutants_of(name))
    return {one: results[one.key] for one in made if one.key in results}
