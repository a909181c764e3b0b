"""Run generated mutants under ``convlab check``, and store which of them it rejects.

    PYTHONPATH=src:tests python -m stage_mutants              # all, into docs/results
    PYTHONPATH=src:tests python -m stage_mutants --only m03 --kind synchronisation
    PYTHONPATH=src:tests python -m stage_mutants --sample 60  # of each file, at random

Each run puts its results in the place of older ones of the same mutants. ``make results`` shows the
stored numbers in docs/mutants.md.
"""

from __future__ import annotations

import argparse
import sys
from itertools import groupby

from convlab.measuring.machine import environment
from stage_mutants.generated import Generated, modules, mutants_of
from stage_mutants.results import (
    REJECTED,
    SURVIVED,
    TOLD,
    document,
    run,
    sampled,
    stored,
    stored_results,
)


def _short(module: str) -> str:
    return module.rpartition(".")[2]


def line_of(module: str, results: dict[Generated, str]) -> str:
    """``m03_shared_memory: 80 of 82 rejected, 1 told ...``, and the survivors."""
    found = [*results.values()]
    head = f"{_short(module)}: {len(results)} mutants"
    head += "".join(f", {found.count(one)} {one}" for one in (REJECTED, TOLD, SURVIVED))
    survivors = (
        f"  line {one.line}, {one.kind}, {one.equivalent or result}: {one.old} -> {one.new}"
        for one, result in results.items()
        if result != REJECTED
    )
    return "\n".join([head, *survivors])


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", default="", help="modules whose names begin so")
    parser.add_argument("--kind", default="", help="synchronisation, index, bound or constant")
    parser.add_argument("--sample", metavar="N", type=int, help="at most N of each, at random")
    parser.add_argument("--new", action="store_true", help="only those without a stored result")
    parser.add_argument("--left", action="store_true", help="only those not rejected or explained")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--dask", metavar="ADDRESS", help="a scheduler whose workers run them")
    chosen = parser.parse_args(arguments)
    every = {name: [*mutants_of(name)] for name in modules()}
    of_kind = (
        [one for one in of_it if chosen.kind in ("", one.kind)]
        for name, of_it in every.items() if _short(name).startswith(chosen.only)
    )  # fmt: skip
    mutants = [one for of_it in of_kind for one in sampled(of_it, chosen.sample)]
    known = stored_results()
    if chosen.left:
        mutants = [one for one in mutants if known.get(one) != REJECTED and not one.equivalent]
    if known and len(mutants) < sum(map(len, every.values())):
        told = document()["environment"]  # that of the run of all
    else:
        words = sys.argv[1:] if arguments is None else arguments
        told = environment([]) | {"command": " ".join(["python -m stage_mutants", *words])}
        del told["gpu"], told["clocks_mhz"]  # neither plays a part
    if chosen.new:
        mutants = [one for one in mutants if one not in known]
    pairs = run(mutants, chosen.jobs, chosen.dask)
    for module, results in groupby(pairs, key=lambda pair: pair[0].module):
        done = dict(results)
        stored(done, told)
        print(line_of(module, done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
