"""``convlab lint``: the compile gate."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from convlab.commands import display, exits, options, output_files, requirements
from convlab.commands.lint_tables import LINT_LEGEND, differences_table, lint_table
from convlab.problems import workloads

if TYPE_CHECKING:
    from convlab.measuring.machine_code import KernelRow


def lint(
    stage: Annotated[
        str | None, typer.Argument(metavar="STAGE", help="Only this stage, such as m03.")
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
    json_file: options.JsonFile = None,
) -> None:
    """Every kernel's machine code, without a GPU: registers, spills, 128-bit accesses, float64.

    Exits 1 if a kernel breaks its stage's promise or is worse than stored, and says which kernel.
    """
    console = output_files.console_for(json_file)
    with requirements.numba_needed():
        requirements.refuse_simulator()
        from convlab.measuring import machine_code as gate
        from convlab.running.able_stages import why_too_old
        from convlab.running.engines.cubin import arch_of
        from convlab.running.engines.kernels import CompilerMissing
    with exits.refusing(ValueError):
        chosen_stages = options.stages_named(None if stage is None else [stage])
        problems = gate.PROBLEMS
        if layer is not None:
            layers = workloads.LAYER_NAMES if layer.lower() == "all" else (layer.lower(),)
            problems = {name: workloads.paper_layer(name) for name in layers}
            problems |= gate.PROBLEMS if layer.lower() == "all" else {}
        wanted = dict.fromkeys(options.capability("arch", sm) for sm in arch or ())
        capabilities = tuple(wanted) or gate.CAPABILITIES
    stored = None
    if against is not None:
        hint = output_files.how_made(against, f"convlab lint --json {against}")
        with exits.refusing(ValueError, hint=hint):
            stored = gate.stored_rows(against)
    reasons = (why_too_old(chosen_stages, gpu, arch_of(gpu)) for gpu in capabilities)
    too_old = list(filter(None, reasons))
    if stage is not None and arch and too_old:
        exits.refuse(too_old[0])
    requirements.check_compilers("lint")

    jobs = gate.processes()
    tasks = gate.tasks_for(chosen_stages, problems, capabilities, jobs)
    for reason in too_old:
        console.print(Text(f"left out: {reason}"), soft_wrap=True)
    rows: list[KernelRow] = []
    try:
        with exits.refusing(CompilerMissing), display.progress(list(map(str, tasks))) as advance:
            for done in gate.lint_all(tasks, jobs):
                rows += done
                advance()
    except gate.NotCompiled as error:
        if error.capability not in gate.CAPABILITIES:  # it may be one that no compiler knows
            exits.refuse(str(error))
        exits.fail(str(error), exits.WRONG)
    console.print(lint_table(rows), "", LINT_LEGEND, sep="\n")
    output_files.write_json(json_file, [{**asdict(row), "ok": row.ok} for row in rows])
    if not rows:
        console.print("There is no kernel to check: a library does this stage's work.")
        return
    errors = [Text(f"{row}: {'; '.join(row.findings)}") for row in rows if not row.ok]
    if stored is not None:
        found = gate.differences(rows, stored)
        worse = [one for one in found if one.worse]
        console.print("", differences_table(found) if found else "", sep="\n")
        console.print(
            f"{len(rows)} kernels compared with {against}: {len(found)} differ, {len(worse)} worse"
        )
        errors += [Text(f"{one.row}: worse: {', '.join(one.worse)}") for one in worse]
    exits.conclude(console, errors, "kernel", len(rows), "within budget")
