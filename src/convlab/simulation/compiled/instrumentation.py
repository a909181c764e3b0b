"""A pass of Numba's compiler that inserts into a kernel what its text does not say.

Before each access and call the number of the site in the code; at the begin of each loop's
iteration a count; before each division a check of the divisor. And for barriers a hash of the path:
threads meet at a barrier only if they have come to it by the same iterations and calls.
"""

from __future__ import annotations

import dis
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numba.core import ir, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.extending import intrinsic

from convlab.simulation.compiled.arrays import number
from convlab.simulation.compiled.callees import Callees
from convlab.simulation.compiled.cells import MOST_GUESSES
from convlab.simulation.compiled.context import (
    LOOP_STEPS,
    PATH,
    SITE,
    STEPS_LEFT,
    load_own,
    load_word,
    store_own,
    store_word,
)
from convlab.simulation.compiled.indexing import guess
from convlab.simulation.compiled.names import lane
from convlab.simulation.compiled.numbers import AS_ON_A_GPU
from convlab.simulation.compiled.refused import NeedsGreenlets
from convlab.simulation.compiled.runtime import call
from convlab.simulation.compiled.suspects import BY_ZERO, ENDLESS
from convlab.simulation.rules.retries import Retry, has_update_by_two_atomics, update_of

MOST_STEPS = 10_000_000  # iterations of a thread's ``while`` loops before the other engine looks
LOOK_STEPS = 1 << 22  # iterations between two looks at Ctrl-C; a power of two
MULTIPLIER = 0x5851F42D4C957F2D  # of the hash of a path
SWAPS = "cas", "compare_and_swap"
FENCES = "threadfence", "threadfence_system"
_DIVISIONS = operator.floordiv, operator.mod, operator.ifloordiv, operator.imod


@intrinsic
def mark(typing, site):
    """Note the site of the code that runs."""

    def generate(context, builder, types_, arguments):
        store_word(builder, SITE, arguments[0])
        return context.get_dummy_value()

    return types.none(types.int64), generate


@intrinsic
def step(typing):
    """Count an iteration of any loop."""

    def generate(context, builder, types_, arguments):
        left = builder.sub(load_word(builder, STEPS_LEFT), number(1))
        store_word(builder, STEPS_LEFT, left)
        with builder.if_then(builder.icmp_signed("<", left, number(0)), likely=False):
            call(builder, "give_up", number(ENDLESS))
        rest = builder.and_(left, number(LOOK_STEPS - 1))
        with builder.if_then(builder.icmp_signed("==", rest, number(0)), likely=False):
            call(builder, "switch_out")
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def step_of_while(typing):
    """Count an iteration of a loop that may have no end."""

    def generate(context, builder, types_, arguments):
        steps = builder.add(load_own(builder, LOOP_STEPS), number(1))
        store_own(builder, LOOP_STEPS, steps)
        many = builder.icmp_signed(">", steps, number(MOST_STEPS))
        with builder.if_then(many, likely=False):
            call(builder, "give_up", number(ENDLESS))
        return context.get_dummy_value()

    return types.none(), generate


@intrinsic
def come_by(typing, site):
    """Add a site to the hash of the running thread's path."""

    def generate(context, builder, types_, arguments):
        path = builder.mul(load_own(builder, PATH), number(MULTIPLIER))
        store_own(builder, PATH, builder.add(path, arguments[0]))
        return context.get_dummy_value()

    return types.none(types.int64), generate


@intrinsic
def divisor(typing, value):
    """Return a divisor after its check."""

    def generate(context, builder, types_, arguments):
        (kind,) = types_.args
        if isinstance(kind, types.Integer):
            zero = builder.icmp_signed("==", arguments[0], arguments[0].type(0))
            with builder.if_then(zero, likely=False):
                call(builder, "give_up", number(BY_ZERO))
        return arguments[0]

    return value(value), generate


@dataclass
class CodeSites:
    """The sites of a kernel's code, file and line by number, and whether it uses results of
    atomics."""

    lines: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)])
    ranks: bool = False
    guesses: int = 0  # plain reads that atomics may check
    # Whether results may not depend on the order of threads: with a compare-and-swap or a fence.
    ordered: bool = False

    def new(self, where: ir.Loc) -> int:
        """Return the number of a new site."""
        self.lines.append((where.filename, where.line))
        return len(self.lines) - 1


in_work: list[CodeSites] = []  # of the kernel that is being compiled


@register_pass(mutates_CFG=False, analysis_only=False)
class Instrument(FunctionPass):
    """Inserts the checks."""

    _name = "insert checks that the kernel's text does not name"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        """Insert the checks into a function in Numba's intermediate representation."""
        check_assigned(state.func_ir)
        callees = Callees(state.func_ir)
        in_work[-1].ranks |= uses_ranks(state.func_ir, callees)
        in_work[-1].ordered |= has_swaps(state.func_ir, callees) | callees.calls(FENCES)
        _Instrumented(state.func_ir, in_work[-1], callees).run()
        return True


class _Instrumented:
    """One function of a kernel while checks are inserted."""

    def __init__(self, function: ir.FunctionIR, sites: CodeSites, callees: Callees) -> None:
        self._blocks, self._sites, self._callees = function.blocks, sites, callees
        self._checked = callees.checked_arrays()
        self._count = 0

    def run(self) -> None:
        """Insert the checks into all blocks."""
        loops = compute_cfg_from_blocks(self._blocks).loops().values()
        headers = {loop.header for loop in loops}
        waiting = {loop.header for loop in loops if any(map(self._may_wait, loop.body))}
        for label, block in self._blocks.items():
            body: list[ir.Stmt] = []
            if label in headers:
                body += self._call(block, step, (), block.loc)
                if not _has(block, "iternext"):
                    body += self._call(block, step_of_while, (), block.loc)
            if label in waiting:
                body += self._note(block, come_by, block.loc)
            for statement in block.body:
                body += self._checks_before(block, statement)
                body.append(statement)
            block.body = body

    def _checks_before(self, block: ir.Block, statement: ir.Stmt) -> Iterator[ir.Stmt]:
        where, value = statement.loc, getattr(statement, "value", None)
        if isinstance(statement, ir.SetItem | ir.StaticSetItem):
            yield from self._note(block, mark, where)
        if isinstance(value, ir.Global | ir.FreeVar) and id(value.value) in AS_ON_A_GPU:
            statement.value = ir.Global("convlab_function", AS_ON_A_GPU[id(value.value)], where)
        if not isinstance(statement, ir.Assign) or not isinstance(value, ir.Expr):
            return
        if value.op == "getattr" and (instead := self._as_on_a_gpu(value)) is not None:
            statement.value = ir.Global("convlab_function", instead, where)
        elif value.op == "getattr" and value.attr == "laneid":
            *before, called = self._call(block, lane, (), where)
            yield from before
            statement.value = called.value
        elif value.op in ("binop", "inplace_binop") and value.fn in _DIVISIONS:
            yield from self._note(block, mark, where)
            calls = self._call(block, divisor, (value.rhs,), where)
            yield from calls
            value.rhs = calls[-1].target
        elif value.op in ("call", "getitem", "static_getitem"):
            yield from self._note(block, mark, where)
            if value.op in ("getitem", "static_getitem"):
                yield from self._guess(block, statement, value)
            if value.op == "call" and divmod in self._callees.values(value.func):
                calls = self._call(block, divisor, (value.args[1],), where)
                yield from calls
                value.args = (value.args[0], calls[-1].target)
            if value.op == "call" and self._calls_waiting(value):
                yield from self._note(block, come_by, where)

    def _guess(self, block: ir.Block, statement: ir.Assign, read: ir.Expr) -> Iterator[ir.Stmt]:
        """Make the read of an element that an atomic may check a guess."""
        index = read.index if read.op == "getitem" else read.index_var
        sites = self._sites
        if index is None or sites.guesses == MOST_GUESSES:
            return
        if not self._callees.origins(read.value) & self._checked:
            return
        at = self._variable(block, statement.loc)
        yield ir.Assign(ir.Const(sites.guesses, statement.loc), at, statement.loc)
        sites.guesses += 1
        calls = self._call(block, guess, (read.value, index, at), statement.loc)
        yield calls[0]
        statement.value = calls[1].value

    def _as_on_a_gpu(self, attribute: ir.Expr) -> object | None:
        """Return what computes as a GPU does in place of a module's function; None for others."""
        modules = self._callees.values(attribute.value)
        found = {id(getattr(one, attribute.attr, None)) for one in modules}
        return AS_ON_A_GPU.get(next(iter(found))) if len(found) == 1 else None

    def _may_wait(self, label: int) -> bool:
        """Return whether threads may wait for each other in a call of a block."""
        calls = (one for one in _expressions(self._blocks[label]) if one.op == "call")
        return any(self._callees.may_wait(one.func) for one in calls)

    def _calls_waiting(self, call: ir.Expr) -> bool:
        """Return whether a call is of a function of the kernel's in which threads may wait."""
        own = self._callees.calls_device_function(call.func)
        return own and self._callees.may_wait(call.func)

    def _note(
        self, block: ir.Block, function: Callable[..., object], where: ir.Loc
    ) -> Iterator[ir.Stmt]:
        """Give the statements that call a function with the number of this site."""
        site = self._variable(block, where)
        yield ir.Assign(ir.Const(self._sites.new(where), where), site, where)
        yield from self._call(block, function, (site,), where)

    def _call(
        self,
        block: ir.Block,
        function: Callable[..., object],
        arguments: tuple[ir.Var, ...],
        where: ir.Loc,
    ) -> list[ir.Assign]:
        """Return the statements that call a function; the last one has its result."""
        called, result = self._variable(block, where), self._variable(block, where)
        return [
            ir.Assign(ir.Global("convlab_check", function, where), called, where),
            ir.Assign(ir.Expr.call(called, arguments, (), where), result, where),
        ]

    def _variable(self, block: ir.Block, where: ir.Loc) -> ir.Var:
        self._count += 1
        return ir.Var(block.scope, f"$convlab{self._count}", where)


def _expressions(block: ir.Block) -> Iterator[ir.Expr]:
    for one in block.body:
        if isinstance(one, ir.Assign) and isinstance(one.value, ir.Expr):
            yield one.value


def _has(block: ir.Block, operation: str) -> bool:
    return any(one.op == operation for one in _expressions(block))


def check_assigned(function: ir.FunctionIR) -> None:
    """Raise :class:`NeedsGreenlets` if a path may read a local variable that it has not set."""
    blocks = function.blocks
    graph = compute_cfg_from_blocks(blocks)
    sets = {
        label: {one.target.name for one in block.body if isinstance(one, ir.Assign)}
        for label, block in blocks.items()
    }
    everything = set().union(*sets.values())
    after = {label: set(everything) for label in blocks}

    def before(label: int) -> set[str]:
        """Return the variables that are set on all paths to a block."""
        if label == graph.entry_point():
            return set()
        ends = [after[one] for one, _ in graph.predecessors(label)]
        return set.intersection(*ends) if ends else set()

    changed = True
    while changed:
        changed = False
        for label in graph.topo_order():
            now = before(label) | sets[label]
            changed |= now != after[label]
            after[label] = now
    for label, block in blocks.items():
        known = before(label)
        for one in block.body:
            if isinstance(one, ir.Del):
                continue
            target = one.target.name if isinstance(one, ir.Assign) else None
            for variable in one.list_vars():
                unset = variable.name in everything and variable.name not in known
                if unset and variable.name != target:
                    raise NeedsGreenlets(f"{variable.name} may be read before a line has set it")
            if target is not None:
                known.add(target)


def has_swaps(function: ir.FunctionIR, callees: Callees) -> bool:
    """Return whether the function has a compare-and-swap. Raises :class:`NeedsGreenlets` unless
    each is tried until it succeeds, with a new value that it computes from the old one: others may
    be locks, or lose updates."""
    names = [
        name
        for block in function.blocks.values()
        for one in block.body
        if isinstance(one, ir.Assign)
        and isinstance(one.value, ir.Expr)
        and one.value.op == "call"
        and (name := callees.atomic(one.value.func)) in SWAPS
    ]
    if names:
        code = function.func_id.code
        calls = [step for step in dis.get_instructions(code) if step.opname.startswith("CALL")]
        updates = [update_of(code, step.offset, code.co_filename) for step in calls]
        swaps = [one for one in updates if one.name in SWAPS]
        retried = all(one.computed and one.retry == Retry.UNTIL_DONE for one in swaps)
        if len(swaps) < len(names) or not retried:
            raise NeedsGreenlets("a compare-and-swap that is no update tried until it succeeds")
    return bool(names)


def uses_ranks(function: ir.FunctionIR, callees: Callees) -> bool:
    """Return whether the function uses the results of atomics, such as a place in a queue. Raises
    :class:`NeedsGreenlets` for those that may be a lock's or a slot's."""
    blocks = function.blocks.values()
    read: set[str] = set()
    for block in blocks:
        for one in block.body:
            if isinstance(one, ir.Del):
                continue
            names = [variable.name for variable in one.list_vars()]
            if isinstance(one, ir.Assign):
                names.remove(one.target.name)
            read.update(names)
    used = False
    for one in (one for block in blocks for one in block.body if isinstance(one, ir.Assign)):
        if isinstance(one.value, ir.Expr) and one.value.op == "call" and one.target.name in read:
            name = callees.atomic(one.value.func)
            if name == "exch":
                raise NeedsGreenlets("the result of an exchange is used")
            used |= bool(name)
    code = function.func_id.code
    if used and has_update_by_two_atomics(code, code.co_filename):
        raise NeedsGreenlets("an update by two atomics")
    return used
