"""``convlab lint``: the compile gate."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Annotated

import typer

from convlab import tables, workloads
from convlab.commands.shared import (
    JsonFile,
    capability,
    check_compilers,
    conclude,
    stages_named,
)
from convlab.shell import (
    REFUSED,
    WRONG,
    console_for,
    fail,
    numba_needed,
    one_line,
    refuse_simulator,
    refusing,
    write_json,
)

if TYPE_CHECKING:
    from convlab.lint import Row


def lint(
    stage: Annotated[
        str | None, typer.Argument(metavar="STAGE", help="Only this stage, such as s05.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only for this layer of the paper: conv1 to conv12."),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="SM", help="Only for this GPU, such as sm_90; may be repeated."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Every kernel's machine code, without a GPU: registers, spills, 128-bit accesses, float64.

    Exits 1 when a kernel is not what its stage promises, and says which and why.
    """
    console = console_for(json_file)
    with numba_needed():
        refuse_simulator()
        from convlab import lint as gate
        from convlab.engines.offline import CompilerMissing, arch_of
    with refusing(ValueError):
        chosen_stages = stages_named(None if stage is None else [stage])
        problems = gate.PROBLEMS
        if layer is not None:
            problems = {layer.lower(): workloads.paper_layer(layer)}
        capabilities = (
            tuple(dict.fromkeys(capability("arch", sm) for sm in arch or ())) or gate.CAPABILITIES
        )
    check_compilers("lint")

    work = list(product(chosen_stages, problems.items(), capabilities))
    names = [f"{step.name} on {name}, {arch_of(gpu)}" for step, (name, _), gpu in work]
    rows: list[Row] = []
    with refusing(CompilerMissing), tables.progress(names) as advance:
        for name, (step, named_problem, gpu) in zip(names, work, strict=True):
            try:
                rows += gate.lint_stage(step, dict([named_problem]), (gpu,))
            except CompilerMissing:
                raise
            except Exception as error:  # such as a typing error: Numba's have many types
                # A GPU that the gate does not know may be one that the compiler does not know.
                code = WRONG if gpu in gate.CAPABILITIES else REFUSED
                fail(f"{name} cannot be compiled: {type(error).__name__}: {one_line(error)}", code)
            advance()
    console.print(tables.lint_table(rows), "", tables.lint_legend(), sep="\n")
    write_json(json_file, [{**asdict(row), "ok": row.ok} for row in rows])
    if not rows:
        console.print("There is no kernel to judge: a library does this stage's work.")
        return
    conclude(console, tables.lint_errors(rows), "kernel", len(rows), "within budget")
