"""Mutants made from each stage's own source, and which of them ``convlab check`` rejects.

    PYTHONPATH=src:tests python -m stage_mutants              # all, into docs/results
    PYTHONPATH=src:tests python -m stage_mutants --only m03 --kind synchronisation
    PYTHONPATH=src:tests python -m stage_mutants --sample 60  # of each file

Each run puts its results in the place of older ones of the same mutants.

A mutant has one place of a kernel changed: a barrier, fence, wait or commit removed or weakened,
two indices swapped, a bound shifted by one, a constant taken for another. ``make results`` shows
the stored numbers in docs/mutants.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from test_mutants import imports_of, remade, source_of

from convlab.checking import checker
from convlab.ladder import LADDER, Launch, stage_named
from convlab.measuring.machine import environment
from convlab.problems.problem import ConvProblem

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "stage_mutants.json"
REJECTED, TOLD, SURVIVED = "rejected", "told", "survived"
# What is counted: quicker than the command's problem.
COUNTED = ConvProblem(1, 4, 12, 14, 32, 3, padding=1)
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


# Mutants that compute the same, some of them at a higher cost: what is sought in ``Mutant.what``,
# and why.
EQUIVALENT = [
    (r"range\(0, (.*), (FLOAT4|2|MMA_K|SIDE)\):.* => \1 -> \(\1\) - 1$",
     "the last step begins before it"),
    (r"if .*(line|column|k|g|FLOAT4) < (C_i|M_P|K_W|PITCH|G|(K_B \* )?WIDTH)\b.* => \2 -> .* - 1$",
     "both sides come in fours"),
    (r"range\(0, (ELEMENTS|STEPS|C_i|H_f|W_f), .* => \1 -> \(\1\) \+ 1$",
     "one more turn, for which no element is left"),
    (r"^(m0[345]|t01)_.*range\(0, K, K_B\):.* => K -> \(K\) \+ 1$",
     "one more slice, of zeros, where K_B divides K"),
    (r"^(m1[1-4]_.* < (N_B|I_ALL)\b.* => (N_B|I_ALL)|t01_.*range\(t, .* => M_B \* K_B) -> .* \+ 1$",
     "one more, which is padding"),
    (r"(there and column < COLUMNS .* => COLUMNS|AHEAD and v \+ 1 < W_f:.* => W_f) -> .* \+ 1$",
     "one more is loaded, and not used"),
    (r"range\(t.*THREADS.* => THREADS -> N_B$|^m03.* => THREADS -> M_B$",
     "loads repeat: THREADS is a multiple of it"),
    (r"range\((DEPTH - 1|AT_FIRST)\):.* => \1 -> \(\1\) \+ 1$",
     "a slice is copied twice, to the same place"),
    (r"if SLICES > AT_FIRST:.* => (AT_FIRST|SLICES -> DEPTH)",
     "what it skips copies nothing, or a slice again"),
    (r"^m(0[789]|1[01])_.* (\[1\] if .*: for f|if .*: k0 =).* => SLICES -> \(SLICES\) \+ 1$",
     "what is stored behind the last slice is not used"),
    (r"^m0[34]_.*if m < M and n < N:.* => N -> \(N\) \+ 1$", "the last output is stored twice"),
    (r"^m1[345]_.*(\(k \* PITCH|K_B \* PITCH\)).* => PITCH -> N_B$", "PITCH is N_B"),
    (r"^m15_.*if splits > 1:.* => 1 -> \(1\) - 1$", "one split has all slices"),
    (r"^depth_last_layout: (\[\d\] )?(seen|odd) ", "only the order of loads depends on it"),
    (r"^(filter_layout: if e < K:.* => K ->|im2win_layout: if TAIL > 0 .* => W_f \* G -> .* - 1$)",
     "both orders agree at the bound"),
    (r"row < ROWS .* => ROWS -> \(ROWS\) \+ 1$", "no window sees that row"),
    (r"ELEMENTS < G and .* => G -> \(G\) \+ 1$|TAIL > 0 and .* => 0 -> \(0\) - 1$",
     "the other condition is false there"),
    (r"INFINITY.* => INFINITY -> ", "infinity plus or minus one is infinity"),
]  # fmt: skip


# What a stored result is found by: the code that is changed, wherever it stands, and however many
# comments stand around it.
KEY = ("module", "function", "code", "nth", "kind", "old", "new")


@dataclass(frozen=True)
class Mutant:
    """One change: ``old`` in the line ``code`` of a kernel becomes ``new``; it is the ``nth`` of
    equal changes in equal lines. ``line`` and ``column`` say where that is today."""

    module: str
    function: str
    code: str
    nth: int
    kind: str
    old: str
    new: str
    line: int = field(compare=False)
    column: int = field(compare=False)

    @property
    def text(self) -> str:
        """The whole source with the change."""
        lines = source_of(self.module).splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        whole = "".join(lines)
        return whole[:start] + self.new + whole[start + len(self.old) :]

    @property
    def what(self) -> str:
        """``NAME: LINE NEXT_LINE => OLD -> NEW``, with the module's name, without comments; with
        ``[1]`` before the line for the second of equal changes, and so on."""
        after = next(filter(None, code_lines(source_of(self.module))[self.line :]), "")
        again = f"[{self.nth}] " if self.nth else ""
        return f"{_short(self.module)}: {again}{self.code} {after} => {self.old} -> {self.new}"

    @property
    def equivalent(self) -> str | None:
        """Why it computes the same; None where it does not, or where that is not known."""
        return next((why for sought, why in EQUIVALENT if re.search(sought, self.what)), None)

    @property
    def key(self) -> tuple[str | int, ...]:
        return tuple(getattr(self, name) for name in KEY)


@cache
def code_lines(source: str) -> list[str]:
    """The lines of a source without comments and indentation."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column]
    return [line.strip() for line in lines]


def _short(module: str) -> str:
    return module.rpartition(".")[2]


def sampled(mutants: list[Mutant], most: int | None) -> list[Mutant]:
    """At most so many of them, evenly spaced: every kind in its place of the file."""
    if most is None or len(mutants) <= most:
        return mutants
    return [mutants[at * len(mutants) // most] for at in range(most)]


def mutants_of(module: str) -> Iterator[Mutant]:
    """All mutants of the kernels in a module's source."""
    source = source_of(module)
    code = code_lines(source)
    equal: Counter[tuple[str, ...]] = Counter()
    for function, names in _kernels(ast.parse(source), frozenset()):
        seen = set()
        for statement in function.body:
            for node in ast.walk(statement):
                for kind, place, new in _changes(node, names, source):
                    old, at = _segment(source, place), (place.lineno, place.col_offset)
                    if not old or new == old or (at, kind, old, new) in seen:
                        continue
                    seen.add((at, kind, old, new))
                    alike = (function.name, code[place.lineno - 1], kind, old, new)
                    name, line, *change = alike
                    yield Mutant(module, name, line, equal[alike], *change, *at)
                    equal[alike] += 1


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
    """Yield the changes of a node: the kind, the node to replace, its new text."""

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
            row, width, column = map(text, (product.left, product.right, rest))
            if row != column:
                yield "index", node, f"({column}) * {_tight(width)} + {row}"
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
    """The modules with kernels, and as which stages their mutants are checked: a stage's own first,
    then those that import the module, also where a library does the rest."""
    own, importing = {}, defaultdict(tuple)
    for stage in LADDER:
        steps = stage.prepare(checker.PIXEL, stage.tiny_tile).launches
        if isinstance(steps[-1], Launch):
            own[stage.module] = (stage.name,)
        for one in imports_of(stage.module):
            importing[one] += (stage.name,)
    return {one: own.get(one, ()) + importing[one] for one in (*own, *importing)}


def result_of(mutant: Mutant) -> str:
    """Return the result of ``convlab check`` on a mutant, by the first stage that rejects it."""
    found = set()
    for name in modules()[mutant.module]:
        found.add(_checked_as(mutant, name))
        if REJECTED in found:
            return REJECTED
    return TOLD if TOLD in found else SURVIVED


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


def run(chosen: list[Mutant], jobs: int) -> Iterator[tuple[Mutant, str]]:
    """Each mutant and its result."""
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(chosen, pool.map(result_of, chosen), strict=True)


def stored(results: dict[Mutant, str], environment: dict) -> None:
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


def stored_results() -> dict[Mutant, str]:
    """The result of each mutant that was run before."""
    rows = document()["rows"] if RESULTS.is_file() else []
    results = {tuple(row[name] for name in KEY): row["result"] for row in rows}
    made = (one for name in modules() for one in mutants_of(name))
    return {one: results[one.key] for one in made if one.key in results}


def line_of(module: str, results: dict[Mutant, str]) -> str:
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
    parser.add_argument("--sample", metavar="N", type=int, help="at most N of each")
    parser.add_argument("--new", action="store_true", help="only those without a stored result")
    parser.add_argument("--left", action="store_true", help="only those not rejected or explained")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
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
    pairs = run(mutants, chosen.jobs)
    for module, results in groupby(pairs, key=lambda pair: pair[0].module):
        done = dict(results)
        stored(done, told)
        print(line_of(module, done), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
