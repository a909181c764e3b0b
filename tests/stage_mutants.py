"""Mutants made from each stage's own source, and which of them ``convlab check`` rejects.

    PYTHONPATH=src:tests python -m stage_mutants              # all, into docs/results
    PYTHONPATH=src:tests python -m stage_mutants --only s05 --kind synchronisation
    PYTHONPATH=src:tests python -m stage_mutants --sample 60 --new   # more of each file

Each run puts its results in the place of older ones of the same mutants.

A mutant has one place of a kernel changed: a barrier, fence, wait or commit removed or weakened,
two indices swapped, a bound shifted by one, a constant taken for another. ``make results`` shows
the stored numbers in docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from test_mutants import imports_of, remade, source_of

from convlab.checking import checker
from convlab.doctor import environment
from convlab.problem import ConvProblem
from convlab.stages import LADDER, Launch, Stage, stage_named

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "stage_mutants.json"
REJECTED, TOLD, SURVIVED = "rejected", "told", "survived"
# What is counted: quicker than the command's problem.
COUNTED = ConvProblem(1, 4, 12, 12, 32, 3, padding=1)
SYNCHRONISATION = {
    "syncthreads", "syncwarp", "threadfence", "threadfence_block", "fence_shared",
    "commit_copies", "wait_copies",
}  # fmt: skip
SHIFTED = ast.Lt | ast.LtE | ast.Gt | ast.GtE
# What a constant may be taken for.
TAKEN_FOR = {
    "M_B": ("N_B", "K_B"), "N_B": ("M_B", "K_B"), "K_B": ("M_B", "N_B"),
    "M_T": ("N_T",), "N_T": ("M_T",), "ROWS": ("COLUMNS",), "COLUMNS": ("ROWS",),
    "THREADS": ("M_B", "N_B"), "M": ("N",), "N": ("M",), "K": ("K_B",), "K_P": ("K_W",),
    "PITCH": ("N_B",), "F_SLICE": ("I_SLICE",), "I_SLICE": ("F_SLICE",), "SLICES": ("DEPTH",),
    "DEPTH": ("SLICES",), "C_i": ("C_o",), "C_o": ("C_i",),
    **{f"{a}_{x}": (f"{a}_{y}",) for a in "HW" for x, y in ("io", "oi")},
    **{f"{a}_{x}": (f"{a}_{y}",) for a in "spd" for x, y in ("hw", "wh")},
    "H_f": ("W_f",), "W_f": ("H_f",), "H_o": ("W_o",), "W_o": ("H_o",),
}  # fmt: skip


# Mutants that compute the same, by the line's source and the change: why.
EQUIVALENT = [
    (r"range\(0, [MN]_T, FLOAT4\)", r"([MN]_T) -> \(\1\) - 1",
     "the last of the steps of four begins before it"),
    (r"range\(.*, 2\)", r"(.*) -> \(\1\) - 1", "the last of the steps of two begins before it"),
    (r"range\(0, K_B, MMA_K\)", r"K_B -> \(K_B\) - 1",
     "the last of the steps of eight begins before it"),
    (r"local\.array", r"[MN]_T -> [MN]_T", "the array is longer than its use"),
    (r"range\(0, K, K_B\)", r"K -> \(K\) \+ 1", "one more slice, of zeros, where K_B divides K"),
    (r"k \* PITCH|K_B \* PITCH", "PITCH -> N_B", "PITCH is N_B"),
    (r"< N_B:|e < I_ALL:|range\(t, M_B \* K_B", r"(.*) -> \(\1\) \+ 1",
     "one more, which is padding"),
    (r"range\(0, ELEMENTS, THREADS\)", r"ELEMENTS -> \(ELEMENTS\) \+ 1",
     "one more turn, for which no element is left"),
    (r"^ +if e < K:$", r"K -> \(K\) - 1", "the last term is the last in both orders"),
    (r"line < C_i|line < M_P", r"(.*) -> \(\1\) [+-] 1", "lines and what they count come in fours"),
    (r"range\(t, M_B \* K_B", "THREADS -> N_B",
     "loads are repeated where N_B < THREADS, and the counted tile has as many"),
]  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: ``old`` at ``line`` and ``column`` of the module's file becomes ``new``."""

    module: str
    line: int
    column: int
    kind: str
    old: str
    new: str

    @property
    def text(self) -> str:
        """The whole source with the change."""
        lines = source_of(self.module).splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        whole = "".join(lines)
        return whole[:start] + self.new + whole[start + len(self.old) :]

    @property
    def equivalent(self) -> str | None:
        """Why it computes the same; None where it does not, or where that is not known."""
        code = source_of(self.module).splitlines()[self.line - 1]
        change = f"{self.old} -> {self.new}"
        reasons = (
            why for line, what, why in EQUIVALENT
            if re.search(line, code) and re.fullmatch(what, change)
        )  # fmt: skip
        return next(reasons, None)


def sampled(mutants: list[Mutant], most: int | None) -> list[Mutant]:
    """At most so many of them, evenly spaced: every kind in its place of the file."""
    if most is None or len(mutants) <= most:
        return mutants
    return [mutants[at * len(mutants) // most] for at in range(most)]


def mutants_of(module: str) -> Iterator[Mutant]:
    """All mutants of the kernels in a module's source."""
    source = source_of(module)
    for function, names in _kernels(ast.parse(source), frozenset()):
        seen = set()
        for statement in function.body:
            for node in ast.walk(statement):
                for kind, place, new in _changes(node, names, source):
                    old = _segment(source, place)
                    made = Mutant(module, place.lineno, place.col_offset, kind, old or "", new)
                    if old and new != old and made not in seen:
                        seen.add(made)
                        yield made


def _kernels(node, names):
    """Functions below ``@cuda.jit`` with the names that their surroundings bind."""
    bound = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    if isinstance(node, ast.FunctionDef):
        bound |= {argument.arg for argument in node.args.args}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            if any("cuda.jit" in ast.unparse(one) for one in child.decorator_list):
                yield child, names | bound
            else:
                yield from _kernels(child, names | bound)
        elif isinstance(child, ast.If | ast.For | ast.With):
            yield from _kernels(child, names | bound)


def _changes(node, names, source):
    """What may be changed at a node: the kind, the node to replace, its new text."""

    def text(part):
        return _segment(source, part) or ast.unparse(part)

    match node:
        case ast.Expr(value=ast.Call() as call) if _called(call) in SYNCHRONISATION:
            yield "synchronisation", call, "pass"
            if _called(call) == "syncthreads":
                yield "synchronisation", call, "cuda.syncwarp()"
            if call.args:
                yield "synchronisation", call.args[0], f"{text(call.args[0])} + 1"
        case ast.Compare():
            operands = [node.left, *node.comparators]
            for op, (before, after) in zip(node.ops, pairwise(operands), strict=True):
                if isinstance(op, SHIFTED):
                    place = before if isinstance(before, ast.Constant) else after
                    yield "bound", place, f"({text(place)}) + 1"
                    yield "bound", place, f"({text(place)}) - 1"
        case ast.Call(func=ast.Name(id="range" | "min"), args=[*_, _] as arguments):
            stop = arguments[min(1, len(arguments) - 1)]
            yield "bound", stop, f"({text(stop)}) + 1"
            yield "bound", stop, f"({text(stop)}) - 1"
        case ast.Subscript(slice=ast.Tuple(elts=parts) as index):
            for at, (one, two) in enumerate(pairwise(parts)):
                swapped = [*parts[:at], two, one, *parts[at + 2 :]]
                yield "index", index, ", ".join(map(text, swapped))
        case ast.Assign(value=ast.Tuple(elts=[one, two]) as value) if not any(
            isinstance(part, ast.Call) for part in (one, two)
        ):
            yield "index", value, f"{text(two)}, {text(one)}"
        case ast.BinOp(op=ast.Add(), left=ast.BinOp(op=ast.Mult()) as product, right=rest):
            yield (
                "index",
                node,
                f"({text(rest)}) * {_tight(text(product.right))} + {text(product.left)}",
            )
        case ast.Attribute(value=ast.Attribute(attr="threadIdx" | "blockIdx"), attr="x" | "y"):
            yield "index", node, f"{text(node.value)}.{'y' if node.attr == 'x' else 'x'}"
        case ast.Name(id=name, ctx=ast.Load()):
            for other in TAKEN_FOR.get(name, ()):
                if other in names:
                    yield "constant", node, other


lines_of = cache(str.splitlines)


def _segment(source, node):
    """Python's own, which splits the source into lines each time, for what is in one line."""
    if node.lineno != node.end_lineno:
        return ast.get_source_segment(source, node)
    line = lines_of(source)[node.lineno - 1].encode()
    return line[node.col_offset : node.end_col_offset].decode()


def _called(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _tight(text):
    return text if re.fullmatch(r"[\w.]+|\(.*\)", text) else f"({text})"


@cache
def modules() -> dict[str, tuple[str, ...]]:
    """The modules with kernels, and as which stages their mutants are checked: a stage's own; for
    what several share, those that import it."""
    stages = [stage for stage in LADDER if not _by_library(stage)]
    found: dict[str, list[str]] = {stage.module: [stage.name] for stage in stages}
    for stage in stages:
        for one in imports_of(stage.module):
            if one.startswith("convlab.kernels."):
                found.setdefault(one, []).append(stage.name)
    return {module: tuple(names) for module, names in found.items()}


def _by_library(stage: Stage) -> bool:
    return not isinstance(stage.prepare(checker.PIXEL, stage.tiny_tile).launches[-1], Launch)


def result_of(mutant: Mutant) -> str:
    """What ``convlab check`` makes of a mutant, as the first of its stages that rejects it."""
    results = map(partial(_checked_as, mutant), modules()[mutant.module])
    best = SURVIVED
    for result in results:
        if result == REJECTED:
            return result
        best = TOLD if TOLD in (best, result) else best
    return best


def _checked_as(mutant: Mutant, name: str) -> str:
    stage = stage_named(name)
    with TemporaryDirectory() as folder:
        try:
            made = remade(stage.module, {mutant.module: mutant.text}, Path(folder))
            make = checker.maker(made.prepare, stage)
            for answer, findings, counted in checker.attempts(stage, make, 0, COUNTED):
                counts = counted
                if not answer.ok or findings:
                    return REJECTED
        except (ValueError, NameError, IndexError, TypeError, SyntaxError):
            return REJECTED  # refused with its reason
    compared = checker.compared_with(stage, counts, COUNTED, 0)
    return TOLD if any(not one.ok or one.fewer_barriers for one in compared) else SURVIVED


def run(chosen: list[Mutant], jobs: int) -> Iterator[dict]:
    """Each mutant and its result."""
    with ProcessPoolExecutor(jobs) as pool:
        for mutant, result in zip(chosen, pool.map(result_of, chosen), strict=True):
            yield asdict(mutant) | {"result": result}


def stored(rows: list[dict], arguments: list[str]) -> None:
    """Put rows into the stored ones, in the place of older results of the same mutants. Rows of
    mutants that are no longer made go, and each gets the reason that EQUIVALENT has now."""
    results = stored_results() | {_mutant(row): row["result"] for row in rows}
    made = {name: [*mutants_of(name)] for name in modules()}
    command = " ".join(["python -m stage_mutants", *arguments])
    document = {
        "environment": environment([]) | {"command": command},
        "made": {name: len(of_it) for name, of_it in made.items()},
        "rows": [
            asdict(one)
            | {"result": (result := results[one])}
            | {"equivalent": one.equivalent if result == SURVIVED else None}
            for of_it in made.values() for one in of_it if one in results
        ],
    }  # fmt: skip
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def stored_results() -> dict[Mutant, str]:
    """The result of each mutant that was run before."""
    there = json.loads(RESULTS.read_text(encoding="utf-8"))["rows"] if RESULTS.is_file() else []
    return {_mutant(row): row["result"] for row in there}


def _mutant(row: dict) -> Mutant:
    return Mutant(**{key: row[key] for key in Mutant.__dataclass_fields__})


def line_of(module: str, rows: list[dict]) -> str:
    """``s05_shared_memory: 80 of 82 rejected, 1 told ...``, and the survivors."""
    results = [row["result"] for row in rows]
    head = f"{module.rpartition('.')[2]}: {len(rows)} mutants"
    head += "".join(f", {results.count(one)} {one}" for one in (REJECTED, TOLD, SURVIVED))
    survivors = (
        f"  line {row['line']}, {row['kind']}, {_mutant(row).equivalent or row['result']}: "
        f"{row['old']} -> {row['new']}"
        for row in rows
        if row["result"] != REJECTED
    )
    return "\n".join([head, *survivors])


def main(arguments: list[str] | None = None) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="NAME", default="", help="modules whose names begin so")
    parser.add_argument("--kind", default="", help="synchronisation, index, bound or constant")
    parser.add_argument("--sample", metavar="N", type=int, help="at most N of each")
    parser.add_argument("--new", action="store_true", help="only those without a stored result")
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args(arguments)
    names = [one for one in modules() if one.rpartition(".")[2].startswith(chosen.only)]
    of_kind = [[m for m in mutants_of(name) if chosen.kind in ("", m.kind)] for name in names]
    mutants = [m for of_it in of_kind for m in sampled(of_it, chosen.sample)]
    if chosen.new:
        known = stored_results()
        mutants = [mutant for mutant in mutants if mutant not in known]
    rows = run(mutants, chosen.jobs)
    for module, results in groupby(rows, key=lambda row: row["module"]):
        done = list(results)
        stored(done, sys.argv[1:] if arguments is None else arguments)
        print(line_of(module, done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
