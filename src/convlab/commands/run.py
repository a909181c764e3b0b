"""``convlab run``."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import typer
from rich.text import Text

from convlab.commands import exits, options, output_files, requirements
from convlab.support import whole_files
from convlab.support.numba_successor import switch_simulator_on
from convlab.support.progress import say
from convlab.support.values import visible
from convlab.support.version import __version__

if TYPE_CHECKING:
    from convlab.measuring.program_lint import LintedKernel
    from convlab.simulation.host.baseline import Baseline
    from convlab.simulation.host.compilable import LaunchedKernels
    from convlab.simulation.host.run_report import Report


def run(
    program: Annotated[str, typer.Argument(metavar="SCRIPT.py", help="A Python program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The program's arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT.py is a module's name, as for python -m.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Loop iterations that all threads of a launch may have together."),
    ] = None,
    json_file: options.JsonFile = None,
    sarif_file: Annotated[
        str | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0 to FILE.")
    ] = None,
    typed: Annotated[
        bool, typer.Option(help="Registers have Numba's types, not Python's numbers.")
    ] = True,
    orders: Annotated[
        int,
        typer.Option(min=0, help="Also run each launch in so many random orders of its threads."),
    ] = 0,
    seed: Annotated[
        int, typer.Option(min=0, help="The first order's seed; the others' seeds follow it.")
    ] = 0,
    lint: Annotated[
        bool,
        typer.Option(
            "--lint", help="Also compile the kernels: lines with float64, spills, local memory."
        ),
    ] = False,
    baseline_file: Annotated[
        Path | None,
        typer.Option("--baseline", metavar="FILE", help="Accept the findings in FILE."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the findings to --baseline's FILE.")
    ] = False,
) -> None:
    """Run a Numba CUDA program, unchanged and without a GPU, on the strict simulator.

    Exits 1 when something is found, 2 when a kernel cannot be simulated, else as the program does.
    """
    if json_file == sarif_file == output_files.STANDARD_OUTPUT:
        exits.refuse("--json and --sarif are both -, standard output: give one of them a file")
    if update_baseline and baseline_file is None:
        exits.refuse("--update-baseline needs --baseline FILE")
    written: dict[str, str | Path | None] = {"--json": json_file, "--sarif": sarif_file}
    if update_baseline:
        written["--baseline"] = baseline_file
    output_files.check_files(written)
    path = _found(program, module)
    if not lint:
        switch_simulator_on()
    with requirements.numba_needed():
        if lint:
            requirements.refuse_simulator()
            requirements.check_compilers("--lint")
        from convlab.simulation.host.programs import Options, SimulatedProgram, simulated_program
    baseline = _baseline(baseline_file, update_baseline)
    here = Path.cwd()
    alone = output_files.STANDARD_OUTPUT in (json_file, sarif_file)
    told = redirect_stdout(sys.stderr) if alone else nullcontext()
    simulated = SimulatedProgram(stop=False, options=Options(steps, typed, orders, seed))
    report, launched = simulated.report, None
    if lint:
        from convlab.simulation.host.compilable import LaunchedKernels

        launched = LaunchedKernels()
        simulated.on_launch = launched.note
    with simulated_program(simulated), told:
        try:
            status = _run(path, arguments or [], module, report)
        finally:
            sys.stdout.flush()
            os.chdir(here)
            if baseline is not None:
                report.accept(baseline)
                report.vanished = [str(one) for one in baseline.vanished]
            _tell(report, baseline)
    status = exits.WRONG if report.findings else exits.REFUSED if report.refused else status
    linted = [] if launched is None else _lint(launched)
    command = {"program": [program, *(arguments or [])], "status": status}
    machine_code = {"lint": [one.as_json() for one in linted]}
    output_files.write_json(json_file, command | report.as_json() | machine_code)
    output_files.write_json(sarif_file, report.as_sarif(__version__))
    if baseline is not None and update_baseline:
        with exits.refusing(OSError):
            baseline.write()
        say(baseline.said_of_update())
    if status:
        raise typer.Exit(status)


def _baseline(file: Path | None, updates: bool) -> Baseline | None:
    """Return the baseline in a file, if one is named; refused if it is not one."""
    if file is None:
        return None
    from convlab.simulation.host.baseline import Baseline

    hint = output_files.how_made(file, "--update-baseline")
    with exits.refusing(ValueError, hint=hint):
        return Baseline(file, updates)


def _found(program: str, module: bool) -> str:
    """The program as Python is to run it; refused if that cannot begin."""
    if module:
        # Only the package: a search for its module would import it, which needs the simulator.
        with exits.refusing(ValueError), patch.object(sys, "path", [os.getcwd(), *sys.path]):
            if importlib.util.find_spec(program.partition(".")[0]) is None:
                exits.refuse(f"-m is {program!r}: there is no such module")
        return program
    path = os.path.abspath(program)
    try:
        source = whole_files.bytes_of(Path(path))
    except OSError as error:
        exits.refuse(f"SCRIPT.py is {program!r}, which cannot be read: {error.strerror}")
    except ValueError as error:
        exits.refuse(f"SCRIPT.py is {program!r}: {error}")
    try:
        compile(source, path, "exec")
    except (RecursionError, MemoryError):  # what Python's parser raises
        exits.refuse(f"SCRIPT.py is {program!r}, which is nested too deeply")
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        exits.refuse(f"{program}:{line}: {type(error).__name__}: {getattr(error, 'msg', error)}")
    return path


def _run(program: str, arguments: list[str], module: bool, report: Report) -> int:
    """Run it as Python does; its exit status."""
    folder = os.getcwd() if module else os.path.dirname(program)
    try:
        with (
            patch.object(sys, "argv", [program, *arguments]),
            patch.object(sys, "path", [folder, *sys.path]),
        ):
            if module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
    except KeyboardInterrupt as interrupt:  # the launch has noted where its threads are
        for note in getattr(interrupt, "__notes__", ()):
            print(visible(note), file=sys.stderr)
        raise
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if last.filename == "<frozen runpy>":  # no line of it ran
            exits.refuse(f"-m is {program!r}: {error}")
        _show(error, report)
        return exits.WRONG
    return 0


def _show(error: Exception, report: Report) -> None:
    """Print what ended the program: Python's traceback, from the program's first line on. For a
    launch, print only its line, because the report says what is wrong with it."""
    from convlab.simulation.host.not_simulated import RefusedName
    from convlab.simulation.rules.findings import SimulationError

    trace: Any = error.__traceback__
    steps = [trace]
    while steps[-1].tb_next is not None:
        steps.append(steps[-1].tb_next)
    own = [s for s in steps if not s.tb_frame.f_code.co_filename.startswith("<frozen ")]
    first = next((s for s in own if s.tb_frame.f_globals.get("__name__") == "__main__"), None)
    if not isinstance(error, SimulationError):
        if isinstance(error.__context__, SimulationError):  # the report has it
            error.__context__ = None
        _print_traceback(error.with_traceback(first))
        return
    known = {(finding.kind, finding.file, finding.line) for finding in report.findings}
    own_findings = {(finding.kind, finding.file, finding.line) for finding in error.findings}
    if not own_findings & known and str(error) not in report.refused:
        report.add(error)  # from a simulator that the program opened itself
    for step in own:
        if str(step.tb_frame.f_globals.get("__name__")).split(".")[0] not in ("convlab", "numba"):
            where = f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}"
    at = "" if isinstance(error, RefusedName) else " at its launch"
    say(f"the program ended{at} in {where}")


def _print_traceback(error: BaseException) -> None:
    """Print Python's traceback and those of errors before it, without the simulator's steps."""
    told = traceback.TracebackException.from_exception(error)
    shown: traceback.TracebackException | None = told
    while shown is not None:
        shown.stack = traceback.StackSummary.from_list(
            [step for step in shown.stack if not _is_the_simulators(step.filename)]
        )
        shown = shown.__cause__ or shown.__context__
    print(visible("".join(told.format())), end="", file=sys.stderr)


def _is_the_simulators(file: str) -> bool:
    """Return whether a traceback's step is the simulator's, and not a kernel's or a program's."""
    own = Path(__file__).parents[1]
    return file == "<array>" or Path(file).is_relative_to(own / "simulation")


def _lint(launched: LaunchedKernels) -> list[LintedKernel]:
    """Compile the kernels that the program has launched, and print what their lines do."""
    from convlab.measuring.program_lint import lint_kernel
    from convlab.simulation.host.run_report import shown

    console, linted = output_files.console_for(output_files.STANDARD_OUTPUT), []
    for one in launched.found.values():
        kernel = lint_kernel(one.dispatcher, one.name, one.types, one.untyped)
        for use in kernel.lines:
            place = f"{shown(use.file)}:{use.line}: {kernel.kernel}, {use}"
            console.print(Text(place, "yellow"), soft_wrap=True)
        colour = "yellow" if kernel.error or kernel.lines or kernel.spill_bytes else "green"
        console.print(Text(f"convlab: {kernel}", colour), soft_wrap=True)
        linted.append(kernel)
    return linted


def _tell(report: Report, baseline: Baseline | None) -> None:
    console = output_files.console_for(output_files.STANDARD_OUTPUT)
    for line in report.lines():
        console.print(Text(line, "red"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"convlab: {note}", "yellow"), soft_wrap=True)
    if baseline is not None and not baseline.updates:
        for line in baseline.lines():
            console.print(Text(f"convlab: {line}", "yellow"), soft_wrap=True)
    colour = "yellow"
    if report.findings:
        colour = "red"
    elif report.launches and not report.refused and not report.raised:
        colour = "green"
    console.print(Text(f"convlab: {report.summary()}", colour))
