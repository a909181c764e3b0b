"""From a kernel's function to machine code of this CPU, with checks.

Numba compiles the function with other meanings of its globals
(:mod:`convlab.simulation.compiled.functions`). The types that it infers for a CPU must be those
that it infers for a GPU, or the kernel is refused. Machine code is kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import FunctionType

from llvmlite import ir
from numba.core import errors, types
from numba.core.extending import intrinsic

from convlab.simulation.compiled import code_cache, runtime
from convlab.simulation.compiled.arrays import I64, CompiledArray, made
from convlab.simulation.compiled.code_cache import ObjectCode, Stored
from convlab.simulation.compiled.context import ARGUMENTS, load_word
from convlab.simulation.compiled.functions import Functions, native
from convlab.simulation.compiled.instrumentation import CodeSites, in_work
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.target_overloads import overloads_of_all_targets
from convlab.simulation.compiled.thread_switch import check_machine
from convlab.simulation.language.compiled_values import Values
from convlab.simulation.language.numbas_types import typed_function
from convlab.simulation.language.signatures import Types

COMPILER_FAULT = "an error inside the compiler"
# Facts beside the machine code.
SITE_COUNT, RANKS, ORDERED, REFUSED = "sites", "ranks", "ordered", "refused"


# The arguments of a launch.


@intrinsic
def argument_values(typing, kinds):
    """Return the arguments of the launch, whose types are those of a tuple's instance."""
    kind = kinds.instance_type

    def generate(context, builder, types_, arguments):
        words = _Words(builder)
        values = [_argument(context, builder, one, words) for one in kind.types]
        return context.make_tuple(builder, kind, values)

    return kind(kinds), generate


class _Words:
    """The words of the arguments, read one after the other."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self._builder, self._count = builder, 0
        self._begin = builder.inttoptr(load_word(builder, ARGUMENTS), I64.as_pointer())

    def next(self) -> ir.Value:
        index = ir.Constant(ir.IntType(32), self._count)
        self._count += 1
        return self._builder.load(self._builder.gep(self._begin, [index]))


def _argument(context, builder: ir.IRBuilder, kind: types.Type, words: _Words) -> ir.Value:
    """Return one argument from the words that hold it."""
    if isinstance(kind, CompiledArray):
        data, cells, serial = words.next(), words.next(), words.next()
        shape = [words.next() for _ in range(kind.ndim)]
        strides = [words.next() for _ in range(kind.ndim)]
        return made(
            context,
            builder,
            kind,
            data=data,
            cells=cells,
            serial=serial,
            shape=shape,
            strides=strides,
        )
    if isinstance(kind, types.BaseTuple):
        values = [_argument(context, builder, one, words) for one in kind.types]
        return context.make_tuple(builder, kind, values)
    if isinstance(kind, types.Boolean):
        return builder.trunc(words.next(), ir.IntType(1))
    if isinstance(kind, types.Integer):
        word = words.next()
        return word if kind.bitwidth == 64 else builder.trunc(word, ir.IntType(kind.bitwidth))
    double = builder.bitcast(words.next(), ir.DoubleType())
    return double if kind.bitwidth == 64 else builder.fptrunc(double, ir.FloatType())


# Compiling.


@dataclass(frozen=True)
class KernelMachineCode:
    """The machine code of a kernel for arguments of some types."""

    name: str
    entry: int  # its address
    site_count: int  # of the code: how many
    ranks: bool  # whether it uses results of atomics
    ordered: bool  # whether its results may not depend on the order of threads
    kept_alive: object


def compile_kernel(
    function: FunctionType, kinds: tuple[types.Type, ...], gpu_types: Types, values: Values
) -> KernelMachineCode:
    """Return a kernel's machine code for arguments of these types, of a CPU and of a GPU: from disk
    if it is kept there. Raises :class:`NeedsGreenlets` for what is not known here."""
    runtime.load()  # kernels refer to it by its symbols
    functions = Functions(function, values)
    key = _key_of(functions, kinds, gpu_types)
    stored = None if key is None else code_cache.stored(key)
    if stored is None:
        stored = _compiled(function, functions, kinds, gpu_types)
        if key is not None:
            code_cache.store(key, stored)
    _check_not_refused(stored)
    (code,) = stored.codes
    entry = code_cache.loaded(code)
    return KernelMachineCode(
        name=function.__name__,
        entry=entry.address,
        site_count=int(stored.facts[SITE_COUNT]),
        ranks=bool(stored.facts[RANKS]),
        ordered=bool(stored.facts[ORDERED]),
        kept_alive=entry.engine,
    )


def is_kept(
    function: FunctionType, kinds: tuple[types.Type, ...], gpu_types: Types, values: Values
) -> bool:
    """Return whether :func:`compile_kernel` would find all on disk, and not compile. Raises
    :class:`NeedsGreenlets` if the kernel is known to be refused."""
    check_machine()
    key = _key_of(Functions(function, values), kinds, gpu_types)
    stored = None if key is None else code_cache.stored(key)
    if stored is None:
        return False
    _check_not_refused(stored)
    return runtime.is_kept()


def _key_of(functions: Functions, kinds: tuple[types.Type, ...], gpu_types: Types) -> str | None:
    """Return the key of a kernel's machine code on disk; None if it is not kept there."""
    text = functions.text
    text.add("types", *map(str, kinds), *map(str, gpu_types))
    return code_cache.key_of(str(text)) if text.whole else None


def _check_not_refused(stored: Stored) -> None:
    if (why := stored.facts.get(REFUSED)) is not None:
        raise NeedsGreenlets(str(why))


def _compiled(
    function: FunctionType, functions: Functions, kinds: tuple[types.Type, ...], gpu_types: Types
) -> Stored:
    """Compile a kernel; return its machine code, or why it is refused. Raises
    :class:`NeedsGreenlets` for a fault of the compiler."""
    kernel, whole = functions.kernel, types.NumberClass(types.Tuple(kinds))

    def enter():
        kernel(*argument_values(whole))

    entry, sites = native(enter), CodeSites()
    in_work.append(sites)
    try:
        with overloads_of_all_targets():
            entry.compile(())
        (typed,) = kernel.overloads.values()
        _check_types(typed.type_annotation.typemap, function, gpu_types)
    except errors.NumbaError as error:
        why = f"Numba does not compile it for a CPU: {_first_reason(error)}"
        return Stored((), {REFUSED: why})
    except NeedsGreenlets as error:
        return Stored((), {REFUSED: str(error)})
    except Exception as error:  # Numba's compiler has faults, and the other engine needs none of it
        raise NeedsGreenlets(f"{COMPILER_FAULT}: {type(error).__name__}: {error}") from error
    finally:
        in_work.pop()
    compiled = entry.overloads[()]
    _, _, (content, _) = compiled.library.serialize_using_object_code()
    code = ObjectCode(function.__name__, compiled.fndesc.llvm_func_name, content)
    facts = {SITE_COUNT: len(sites.lines), RANKS: sites.ranks, ORDERED: sites.ordered}
    return Stored([code], facts)


def _check_types(of_cpu: dict[str, types.Type], function: FunctionType, gpu_types: Types) -> None:
    """Raise :class:`NeedsGreenlets` for a variable that has another type of number for a GPU."""
    of_gpu = typed_function(function, gpu_types).typemap
    for name, kind in of_cpu.items():
        other = of_gpu.get(name)
        if other is None or name.startswith("$"):
            continue
        if _is_number(kind) and str(types.unliteral(kind)) != _shown(other):
            raise NeedsGreenlets(f"{name} is {kind} for a CPU and {other} for a GPU")


def _is_number(kind: types.Type) -> bool:
    return isinstance(kind, types.Number | types.Boolean)


def _shown(kind: types.Type) -> str:
    """Return the name of a type of numba-cuda's, without a constant's value."""
    literal = getattr(kind, "literal_type", None)
    return str(kind if literal is None else literal)


def _first_reason(error: Exception) -> str:
    """Return the line of Numba's message that says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Failed in", "During", "["))]
    return said[0] if said else type(error).__name__
