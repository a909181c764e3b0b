"""Explains in a learner's words why Numba does not compile a kernel.

Where the compilers are installed, the kernel is compiled. Where they are not, or do not compile it,
the types of the kernel are inferred as Numba infers them, which needs no GPU and no CUDA compiler.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from numba.cuda.typing.typeof import Purpose, typeof

from convlab.checking.machine_code import compiled_alone
from convlab.lessons.error_hints import SINGLE_ELEMENTS, hint_for
from convlab.lessons.explanations import lines_of
from convlab.lessons.feedback import DOES_NOT_COMPILE, REFUSED, Line, Mistake
from convlab.lessons.kernel_text import slip
from convlab.lessons.missing_barriers import function_around
from convlab.simulation.language.numbas_types import check_kernel
from convlab.simulation.language.refusals import Refused, Untyped

UNKNOWN = "?"
MOST_SLICES = 2  # shown lines with a part of an array
REFUSES = "Numba refuses this"
AS_ARGUMENT = "as its argument"
PLACE = re.compile(r", (?P<file>[^,]*):(?P<line>\d+)$")
IN_THE_PLACE_OF_LISTS = (
    "Keep each number in a variable of its own, or several in cuda.local.array(SIZE, float32)."
)


class Words(NamedTuple):
    """A refusal in a learner's words: what is refused, and what to do instead.

    ``code`` is what the line has, because Numba does not always name it: by default the first group
    of the reason; empty if Numba does, ``UNKNOWN`` if nobody knows the line.
    """

    what: str
    instead: str = ""
    code: str = r"\1"


# By Numba's reason. The first that fits counts.
WORDS = {
    r"^a (list|dict|set), which no": Words(
        r"The kernel makes a \1, and a kernel has no memory for that",
        IN_THE_PLACE_OF_LISTS,
        "",
    ),
    r"^cuda\.(shared|local)\.array with a shape known only at run time": Words(
        r"The shape of cuda.\1.array must be constant",
        "Give it a name before the kernel, outside of it: SIZE = THREADS + 2.",
        r"\b(shared|local)\.array\(",
    ),
    r"use of yield|^a generator": Words(
        "(... for ... in ...) makes a generator, which a kernel cannot",
        "Write a for loop that adds to a variable.",
        "",
    ),
    r"^(np\.(?:zeros|ones|empty|full|array|arange)\w*) of such": Words(
        r"\1 would make a new array, and a thread has no memory for that",
        IN_THE_PLACE_OF_LISTS,
    ),
    r"^an array, for which|^Only accept returning of array": Words(
        "An operation on a whole array would make a new array, and a thread has no memory for that",
        SINGLE_ELEMENTS,
        UNKNOWN,
    ),
    r"^(np\.[\w.]+?)(?: of such|, which no)": Words(
        r"A kernel cannot call \1 with these arguments",
        SINGLE_ELEMENTS,
    ),
    r"^try and with": Words(
        "A kernel has neither try nor with",
        "Test with an if, before the access.",
        "",
    ),
    r"^a kernel returns nothing": Words(
        "A kernel returns nothing",
        "Store the results to the output array, and delete the value after return.",
        "",
    ),
    r"there is no str\(": Words(
        "A kernel cannot make texts, such as f-strings",
        "print() takes numbers and constant strings.",
        r"""\bf['"]|\bstr\(""",
    ),
    r"there is no setitem\(.*, array\(": Words(
        "A whole array is stored where one number belongs",
        "Is an index missing? A matrix needs two, an array of four dimensions four.",
        UNKNOWN,
    ),
    r"there is no getitem\((?:Uni)?Tuple": Words(
        "Numbers of different kinds in a tuple have constant indices only",
        "Keep each number in a variable of its own.",
        "",
    ),
    r"there is no getitem\(array\(\w+, (\d)d.*?cannot index .* with (\d) indices": Words(
        r"\2 indices are too many for an array of \1 dimensions",
        "Give one index for each dimension.",
        "",
    ),
    r"\bDim3\b": Words(
        "cuda.threadIdx, cuda.blockIdx and cuda.blockDim each have three numbers",
        "Take one of them: .x, .y or .z.",
        "",
    ),
    r"^there is no matmul\(": Words(
        "@ multiplies whole matrices, and a thread works on single numbers",
        SINGLE_ELEMENTS,
        "@",
    ),
    r"^there is no (?:i?add|sub|mul)\((?:Uni)?Tuple": Words(
        "A kernel cannot compute with a whole tuple",
        "Compute with its numbers, and write the new tuple out, such as (zero, zero).",
        "",
    ),
    r"^there is no (\w+)\(.*?: \1: (\w+) is UniTuple\(float32 x (\d+)\), but must be (.+)": Words(
        rf"\1 takes \4 {AS_ARGUMENT} \2, and here it gets \3",
        "Are the arguments in the right order, and are all numbers there?",
    ),
    r"^there is no (\w+)\(.*?: \1: (\w+) is [^,]*, but must be (.+)": Words(
        rf"\1 takes \3 {AS_ARGUMENT} \2, and here it gets other numbers",
        "Write float32(0) where 0 or 0.0 stands, and float32(x) for another number x.",
    ),
    r"^there is no (?![gs]etitem)(\w+)\(array": Words(
        r"A kernel cannot call \1() with a whole array",
        SINGLE_ELEMENTS,
    ),
    r"unsupported opcode \((\w+)\)": Words(
        r"A kernel cannot have this statement (Python calls it \1)",
        code="",
    ),
}


def refusal(kernel: Any, types: Iterable[Any]) -> Mistake | None:
    """Return the mistake of a kernel that Numba refuses for arguments of these types; None if Numba
    takes it, or if that is not known here."""
    try:
        check_kernel(kernel.py_func, tuple(types))
    except Refused as refused:
        return _in_words(str(refused))
    except Untyped:
        return None
    return None


def types_of(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Return Numba's types of the arguments of a launch."""
    return tuple(typeof(one, Purpose.argument) for one in arguments)


def compile_mistake(kernel: Any, types: Iterable[Any]) -> Mistake | None:
    """Return the mistake of a kernel that cannot be compiled; None without one."""
    types = tuple(types)
    compiled = compiled_alone(kernel, types)
    if compiled is not None and compiled.error is None:
        return None  # so Numba refuses nothing, and its types need not be inferred once more
    if (refused := refusal(kernel, types)) is not None:
        return refused
    if compiled is None:
        return None
    return Mistake(
        DOES_NOT_COMPILE,
        f"Numba cannot compile it: {compiled.error}.",
        advice=hint_for(str(compiled.error)),
    )


def _in_words(refused: str) -> Mistake:
    place, reason = PLACE.search(refused), PLACE.sub("", refused)
    what, advice, code = f"{REFUSES}: {reason}", hint_for(reason), ""
    for pattern, words in WORDS.items():
        if (found := re.search(pattern, reason)) is not None:
            what, advice = found.expand(words.what), words.instead
            code = re.escape(found[1]) if words.code == r"\1" else words.code
            break
    if place is None:
        return Mistake(REFUSED, f"{what}.", advice=advice)
    file, line = place["file"], int(place["line"])
    if code == UNKNOWN:
        return Mistake(REFUSED, f"{what}.", _lines_with_slices(file, line), advice)
    return Mistake(REFUSED, f"{what}.", lines_of((file, _line_with(code, file, line))), advice)


def _lines_with_slices(file: str, line: int) -> tuple[Line, ...]:
    """Return the first lines of the function around a line with a part of an array, as ``a[:]``."""
    function = function_around(file, line)
    nodes = [] if function is None else ast.walk(function)
    slices = [one for one in nodes if isinstance(one, ast.Subscript) and _has_slice(one)]
    return lines_of(*sorted({(file, one.lineno) for one in slices})[:MOST_SLICES])


def _has_slice(node: ast.Subscript) -> bool:
    return any(isinstance(one, ast.Slice) for one in ast.walk(node.slice))


def _line_with(code: str, file: str, line: int) -> int:
    """Return the first line from this one on that has a piece of code, or else this line: Numba
    names the function's first line where it knows none."""
    texts = linecache.getlines(file)[line - 1 :]
    return next((n for n, text in enumerate(texts, line) if code and re.search(code, text)), line)


def cause_of_error(kernel: Any, types: Iterable[Any]) -> Mistake | None:
    """Return what says more than the error that a kernel raises on the simulator: a slip in its
    text, or a refusal that has words of its own here. None without one. Of a wrong argument the
    error says as much."""
    types = tuple(types)
    if (said := slip(kernel, [getattr(one, "ndim", 0) for one in types])) is not None:
        return said
    found = refusal(kernel, types)
    if found is None or found.what.startswith(REFUSES) or AS_ARGUMENT in found.what:
        return None
    return found
