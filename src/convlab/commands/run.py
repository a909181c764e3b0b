"""``convlab run``."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from convlab import __version__
from convlab.shell import (
    REFUSED,
    STANDARD_OUTPUT,
    WRONG,
    JsonFile,
    console_for,
    numba_needed,
    refuse,
    write_json,
)

if TYPE_CHECKING:
    from convlab.simulation.report import Report


def run(
    program: Annotated[str, typer.Argument(metavar="SCRIPT.py", help="A Python program.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="What the program gets.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT.py is a module's name, as of python -m.")
    ] = False,
    json_file: JsonFile = None,
    sarif_file: Annotated[
        str | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0 to FILE.")
    ] = None,
) -> None:
    """Run a Numba CUDA program, unchanged and without a GPU, on the strict simulator.

    Exits 1 when something is found, 2 when a kernel cannot be simulated, else as the program does.
    """
    if json_file == sarif_file == STANDARD_OUTPUT:
        refuse("--json and --sarif are both -, standard output: give one of them a file")
    for file in json_file, sarif_file:
        console_for(file)
    path = os.path.abspath(program)
    if not module and not os.path.isfile(path):
        refuse(f"SCRIPT.py is {program!r}: there is no such file")
    os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # for programs that ask Numba, and for their children
    with numba_needed():
        from convlab.simulation.programs import simulator
    here = Path.cwd()
    alone = STANDARD_OUTPUT in (json_file, sarif_file)
    with simulator(stop=False) as report, redirect_stdout(sys.stderr) if alone else nullcontext():
        try:
            status = _run(program if module else path, arguments or [], module)
        finally:
            sys.stdout.flush()
            os.chdir(here)
            _tell(report)
    write_json(json_file, report.as_json())
    write_json(sarif_file, report.as_sarif(__version__))
    if status := WRONG if report.findings else REFUSED if report.refused else status:
        raise typer.Exit(status)


def _run(program: str, arguments: list[str], module: bool) -> int:
    """Run it as Python does; its exit status."""
    known = sys.argv, [*sys.path]
    sys.argv = [program, *arguments]
    sys.path.insert(0, os.getcwd() if module else os.path.dirname(program))
    try:
        if module:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception as error:
        _show(error, program)
        return WRONG
    finally:
        sys.argv, sys.path[:] = known
    return 0


def _show(error: Exception, program: str) -> None:
    """Print what ended the program: Python's traceback, from the program's first line on. Of a
    launch only where it stands, because the report says what is wrong with it."""
    from convlab.simulation.findings import SimulationError

    trace: Any = error.__traceback__
    steps = [trace]
    while steps[-1].tb_next is not None:
        steps.append(steps[-1].tb_next)
    own = [s for s in steps if not s.tb_frame.f_code.co_filename.startswith("<frozen ")]
    first = next((s for s in own if s.tb_frame.f_globals.get("__name__") == "__main__"), None)
    if not isinstance(error, SimulationError):
        traceback.print_exception(error.with_traceback(first))
        return
    modules = [str(s.tb_frame.f_globals.get("__name__")).split(".")[0] for s in own]
    launch = [s for s, name in zip(own, modules, strict=True) if name not in ("convlab", "numba")][
        -1
    ]
    where = f"{launch.tb_frame.f_code.co_filename}:{launch.tb_lineno}"
    print(f"convlab: the program ended at its launch in {where}", file=sys.stderr)


def _tell(report: Report) -> None:
    console = console_for(STANDARD_OUTPUT)
    for line in report.lines():
        console.print(Text(line, "red"), soft_wrap=True)
    launches = _counted(report.launches, "launch", "launches")
    if report.findings:
        found = _counted(len(report.findings), "finding", "findings")
        console.print(Text(f"convlab: {found} in {launches}", "red"))
    elif not report.refused:
        console.print(Text(f"convlab: nothing found in {launches}", "green"))


def _counted(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
