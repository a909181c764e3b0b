"""All changes of some kinds in every kernel of the ladder.

A barrier, fence, wait or commit is removed or weakened, two indices are swapped, a bound is shifted
by one, or a constant is taken for another.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from convlab.ladder import BACKWARD, LADDER
from stage_mutants.mutant import Mutant
from stage_mutants.sources import code_of, imports_of

# Calls that are removed, each with what its arguments become instead: the number of an argument,
# and its new text.
SYNCHRONISATION: dict[str, tuple[tuple[int, str], ...]] = {
    **dict.fromkeys(("syncthreads", "syncwarp", "threadfence", "threadfence_block"), ()),
    **dict.fromkeys(("fence_shared", "fence_barriers", "commit_copies"), ()),
    **dict.fromkeys(("finish_product", "arrive_barrier", "sync_threads_of"), ()),
    "wait_copies": ((0, "{} + 1"),),  # one more may be in flight
    "wait_products": ((2, "{} + 1"),),
    "wait_barrier": ((2, "1 - ({})"),),  # the other phase
    "init_barrier": ((2, "{} + 1"), (2, "{} - 1")),  # arrivals
    "expect_bytes": ((2, "{} + 1"), (2, "{} - 1")),
}
BARRIERS = {"syncthreads", "sync_threads_of"}  # of threads, of which a warp's barrier is a part
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
    "LAST_TERMS": ("TERMS",), "TILES_M": ("TILES_N",), "TILES_N": ("TILES_M",),
    "FILTER_BEGIN": ("WINDOWS_64",), "WINDOWS_64": ("FILTER_BEGIN",), "ROW_PITCH": ("PITCH",),
    "PARTS": ("WIDTH",), "WIDTH": ("PARTS",), "RUN": ("STRIP",), "STRIP": ("RUN",),
    "H_f": ("W_f",), "W_f": ("H_f",), "H_o": ("W_o",), "W_o": ("H_o",),
    "CHANNELS": ("PADDED",), "VALID": ("TOTAL",),
}  # fmt: skip


# Mutants that compute the same, some of them at a higher cost: a pattern of ``Generated.what``, and
# the reason.
EQUIVALENT = [
    (r"range\(0, (.*), (FLOAT4|2|MMA_K|SIDE)\):.* => \1 -> \(\1\) - 1$",
     "the last step begins before it"),
    (r"if .*(line|column|k|term|g|FLOAT4) < (C_i|M_P|K_W|PITCH|G|(K_B \* )?WIDTH)\b"
     r".* => \2 -> .* - 1$",
     "both sides come in fours"),
    (r"^h05_tf32_panels: if m < M: .* => M -> \(M\) - 1$", "both sides come in fours"),
    (r"^g03_shared_pixels: if k < K: .* => K -> \(K\) - 1$", "both sides come in fours"),
    (r"^g03_shared_pixels: for j in range\(TIMES\): channel = .* => TIMES -> \(TIMES\) \+ 1$",
     "one more turn, for which no channel is left"),
    (r"^g02_exchanged_roles: \[1\] for q in range\(PIXELS\): w = .* => PIXELS -> \(PIXELS\) \+ 1$",
     "one more turn, for which no column is left"),
    (r"range\(0, (ELEMENTS|STEPS|C_i|H_f|W_f), .* => \1 -> \(\1\) \+ 1$",
     "one more turn, for which no element is left"),
    (r"^(m0[345]|t01)_.*range\(0, K, K_B\):.* => K -> \(K\) \+ 1$",
     "one more slice, of zeros, where K_B divides K"),
    (r"^(m1[1-4]_.* < (N_B|I_ALL)\b.* => (N_B|I_ALL)|t01_.*range\(t, .* => M_B \* K_B) -> .* \+ 1$",
     "one more, which is padding"),
    (r"(there and column < COLUMNS .* => COLUMNS|AHEAD and v \+ 1 < W_f:.* => W_f) -> .* \+ 1$",
     "one more is loaded, and not used"),
    (r"range\(t.*THREADS.* => THREADS -> N_B$|^(m03|h04_stem: i =).* => THREADS -> M_B$",
     "loads repeat: THREADS is a multiple of it"),
    (r"range\((DEPTH - 1|AT_FIRST|AHEAD)\):.* => \1 -> \(\1\) \+ 1$",
     "a slice is copied twice, to the same place"),
    (r"if SLICES > AT_FIRST:.* => (AT_FIRST|SLICES -> DEPTH)",
     "what it skips copies nothing, or a slice again"),
    (r"^m(0[789]|1[01])_.* (\[1\] if .*: for f|if .*: row0 =).* => SLICES -> \(SLICES\) \+ 1$",
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
    (r"^h01_panels: .*valid = .* r < C_i .* => C_i -> \(C_i\) - 1$", "both sides come in eights"),
    (r"^h01_panels: if m < M( and n \+ 8 \* row < N)?: .* => M -> \(M\) - 1$"
     r"|^h04_stem: (if WHOLE or m < C_o|while i < FILTER): .* => \w+ -> .* - 1$",
     "both sides come in eights"),
    (r"^h04_stem: if PARTLY and .* => end -> \(end\) \+ 1$", "both branches give zero there"),
    (r"^h04_stem: if at \+ 2 <= FEWEST_IN_RUN .* => FEWEST_IN_RUN -> .* - 1$",
     "the general way leaves a pair within the run as it is, too"),
    (r"^h04_stem: exists = .* => TOTAL -> \(TOTAL\) \+ 1$", "the last output is stored twice"),
    (r"^h04_stem: in_run = .* => STRIP -> RUN$", "no number behind the strip is read"),
    (r"^h04_stem: if (tile_index|soon) < TILES: .* => TILES -> \(TILES\) \+ 1$",
     "one more is loaded, and not used"),
    (r"^h03_.*if LAST_TERMS < TERMS: .* => TERMS -> \(TERMS\) - 1$", "terms come in 16s"),
    (r"^h06_window_rows: if i < TOTAL: .* => TOTAL -> \(TOTAL\) \+ 1$",
     "TOTAL is a multiple of the threads"),
    (r"^h06_window_rows: if i < TOTAL: .* => TOTAL -> \(TOTAL\) - 1$",
     "no product reads the last zeros"),
    (r"^h07_any_channels: elif i < TOTAL: .* => TOTAL -> \(TOTAL\) - 1$",
     "the last zeros are of a channel that no output has"),
    (r"^h07_any_channels: count = .* if n < N else 0 .* => N -> \(N\) \+ 1$",
     "both branches give zero there"),
    (r"^h08_padded_input: if count > 0: .* => 0 -> \(0\) \+ 1$", "whole pieces there"),
    (r"^h08_padded_input: if count <= 0: .* => 0 -> \(0\) - 1$",
     "with no number to copy, the general way gives zeros too"),
    (r"^h08_padded_input: if at \+ 2 \* EIGHT > NUMBERS: .* => NUMBERS -> \(NUMBERS\) - 1$",
     "a load that would fit is scalar"),
    (r"^stem_filter: inside = .* => STEPS -> \(STEPS\) \+ 1$", "no product reads the step"),
    (r"^stem_filter: if i >= TOTAL: .* => TOTAL -> \(TOTAL\) \+ 1$",
     "TOTAL is a multiple of the threads"),
    (r"^t07_tf32: return float32\(-LARGEST_TF32\) if value < .* => float32\(0\) -> ",
     "the number is as large as a float32 can be"),
    (r"^t06_split_k: \[1\] cuda\.threadfence\(\) for z .* -> pass$",
     "a barrier follows the count, as in CUDA's sample threadFenceReduction"),
    (r"^g03_shared_pixels: if t // 4 \+ j \* STEP < M_B .* => M_B -> \(M_B\) \+ 1$"
     r"|^g03_shared_pixels: if (slice_ \+ 2|begin \+ 1) < end: .* => end -> \(end\) \+ 1$",
     "one more is loaded, and not used"),
    (r"^g03_shared_pixels: \[1\] if slice_ \+ 1 < end: .* => end -> \(end\) \+ 1$",
     "one more is stored, and not read"),
]  # fmt: skip


# What a stored result is found by: the code that is changed, wherever it stands, and however many
# comments stand around it.
KEY = ("module", "function", "code", "nth", "kind", "old", "new")


@dataclass(frozen=True, kw_only=True)
class Generated(Mutant):
    """A change of the line ``code`` in a kernel ``function``: the ``nth`` of equal changes in equal
    lines."""

    function: str
    code: str
    nth: int
    kind: str

    @property
    def what(self) -> str:
        """``NAME: LINE NEXT_LINE => OLD -> NEW``, with the module's name, without comments; with
        ``[1]`` before the line for the second of equal changes, and so on."""
        after = next(filter(None, code_lines(self.module)[self.line :]), "")
        again = f"[{self.nth}] " if self.nth else ""
        module = self.module.rpartition(".")[2]
        return f"{module}: {again}{self.code} {after} => {self.old} -> {self.new}"

    @property
    def equivalent(self) -> str | None:
        """The reason why it computes the same; None where it does not, or where that is not
        known."""
        return next((why for sought, why in EQUIVALENT if re.search(sought, self.what)), None)

    @property
    def key(self) -> tuple[str | int, ...]:
        return tuple(getattr(self, name) for name in KEY)


def code_lines(module: str) -> list[str]:
    """The lines of a module without comments and indentation."""
    return [line.strip() for line in code_of(module).splitlines()]


def mutants_of(module: str) -> Iterator[Generated]:
    """All mutants of the kernels in a module."""
    source = code_of(module)
    code = code_lines(module)
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
                    yield Generated(
                        module=module, function=function.name, code=code[place.lineno - 1],
                        nth=equal[alike], kind=kind, old=old, new=new,
                        line=place.lineno, column=place.col_offset,
                    )  # fmt: skip
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
            if _called(call) in BARRIERS:
                yield "synchronisation", call, "cuda.syncwarp()"
            for number, becomes in SYNCHRONISATION[_called(call)]:
                argument = call.args[number]
                yield "synchronisation", argument, becomes.format(text(argument))
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
    then those that import the module, also where a library does the rest. Of gradients, each stage
    checks its own module only."""
    own: dict[str, tuple[str, ...]] = {}
    importing: dict[str, tuple[str, ...]] = defaultdict(tuple)
    for stage in LADDER:
        own[stage.module] = (stage.name,)
        for one in imports_of(stage.module):
            importing[one] += (stage.name,)
    own |= {stage.module: (stage.name,) for stage in BACKWARD}
    return {one: own.get(one, ()) + importing[one] for one in (*own, *importing)}
