"""``convlab lint``: the compile gate."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from convlab import tables, workloads
from convlab.commands.shared import JsonFile, capability, check_compilers, conclude, stages_named
from convlab.shell import (
    REFUSED,
    WRONG,
    console_for,
    fail,
    numba_needed,
    refuse,
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
        typer.Option(
            metavar="NAME", help="Only for this layer of the paper: conv1 to conv12, or all."
        ),
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option(metavar="SM", help="Only for this GPU, such as sm_90; may be repeated."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with rows that --json stored earlier."),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Every kernel's machine code, without a GPU: registers, spills, 128-bit accesses, float64.

    Exits 1 when a kernel is not what its stage promises, or worse than stored, and says which.
    """
    console = console_for(json_file)
    with numba_needed():
        refuse_simulator()
        from convlab import lint as gate
        from convlab.engines.offline import arch_of
        from convlab.plans import why_too_old
    with refusing(ValueError):
        chosen_stages = stages_named(None if stage is None else [stage])
        problems = gate.PROBLEMS
        if layer is not None:
            layers = workloads.LAYER_NAMES if layer.lower() == "all" else (layer.lower(),)
            problems = {name: workloads.paper_layer(name) for name in layers}
            problems |= gate.PROBLEMS if layer.lower() == "all" else {}
        stored = None if against is None else gate.stored_rows(against)
        wanted = dict.fromkeys(capability("arch", sm) for sm in arch or ())
        capabilities = tuple(wanted) or gate.CAPABILITIES
    reasons = (why_too_old(chosen_stages, gpu, arch_of(gpu)) for gpu in capabilities)
    too_old = list(filter(None, reasons))
    if stage is not None and arch and too_old:
        refuse(too_old[0])
    check_compilers("lint")

    tasks = [
        gate.Task(step.name, name, problem, gpu)
        for step, (name, problem), gpu in product(chosen_stages, problems.items(), capabilities)
        if step.runs_on(gpu)
    ]
    for reason in too_old:
        console.print(Text(f"left out: {reason}"), soft_wrap=True)
    rows: list[Row] = []
    with tables.progress(list(map(str, tasks))) as advance:
        for task, done in zip(tasks, gate.lint_all(tasks, gate.processes()), strict=True):
            if isinstance(done, gate.NotCompiled):
                if done.compiler_missing:
                    refuse(done.said)
                # A GPU that the gate does not know may be one that the compiler does not know.
                code = WRONG if task.capability in gate.CAPABILITIES else REFUSED
                fail(f"{task} cannot be compiled: {done.error}: {done.said}", code)
            rows += done
            advance()
    console.print(tables.lint_table(rows), "", tables.lint_legend(), sep="\n")
    write_json(json_file, [{**asdict(row), "ok": row.ok} for row in rows])
    if not rows:
        console.print("There is no kernel to check: a library does this stage's work.")
        return
    errors = tables.lint_errors(rows)
    if stored is not None:
        found = gate.differences(rows, stored)
        worse = [one for one in found if one.worse]
        console.print("", tables.differences_table(found) if found else "", sep="\n")
        console.print(
            f"{len(rows)} kernels compared with {against}: {len(found)} differ, {len(worse)} worse"
        )
        errors += [Text(f"{one.row}: worse: {', '.join(one.worse)}") for one in worse]
    conclude(console, errors, "kernel", len(rows), "within budget")
