"""``convlab report``: a file of results as a page, as Markdown, or in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from convlab.commands import display, exits, options, output_files, requirements
from convlab.commands.bench import DEFAULT_FILE
from convlab.commands.bench_tables import agreement_table, summary


def report(
    results_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RESULTS.json]",
            help=f"What convlab bench wrote: {DEFAULT_FILE}. Further files are compared with it.",
        ),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page that works offline.")
    ] = None,
    markdown_file: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Write Markdown, and its plots beside it."),
    ] = None,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts/--no-counts", help="Count on the simulator why stages are not faster."
        ),
    ] = True,
    json_file: options.JsonFile = None,
) -> None:
    """Tables and plots of what was measured: TFLOP/s, roofline, speedups, memory, why not faster.

    Without --html and --markdown, print a table here.
    """
    files = results_files or [Path(DEFAULT_FILE)]
    written = {"--html": html_file, "--markdown": markdown_file, "--json": json_file}
    output_files.check_files(written, files, "the results themselves")
    console = output_files.console_for(json_file)
    with requirements.numba_needed():
        from convlab.measuring import analysis
        from convlab.measuring import report as reports
        from convlab.measuring.photograph import PlotsMissing
        from convlab.measuring.results import open_results
        from convlab.measuring.roofline import counted
    opened = []
    for file in files:
        named = "" if str(file) == DEFAULT_FILE else f" --json {file}"
        hint = output_files.how_made(file, f"convlab bench{named}, on a GPU,")
        with exits.refusing(ValueError, hint=hint):
            opened.append(open_results(file))
    first, *others = opened
    if not first.rows:
        exits.refuse(f"{str(files[0])!r} has no rows yet: run convlab bench again to continue")
    output_files.write_json(json_file, analysis.as_json(first, others))
    if html_file is None and markdown_file is None:
        console.print(summary(first, width=console.width))
        if stopped := reports.interrupted(first):
            console.print("", Text(stopped.replace("**", ""), "yellow"), sep="\n")
        for other in others:
            console.print("", agreement_table(first, other), sep="\n")
        return
    why = []
    if counts and (names := first.names("stage")):
        with display.progress(names) as advance:
            for one in counted(names):
                why.append(one)
                advance()
    pictures = "" if markdown_file is None else f"{markdown_file.stem}-"
    with exits.refusing(PlotsMissing):
        made = reports.make(first, others, why, pictures=pictures)
    if html_file is not None:
        output_files.write_whole(html_file, made.html().encode())
        console.print(Text(f"The page is in {html_file}: open it with a browser"))
    if markdown_file is not None:
        for name, picture in made.pictures.items():
            output_files.write_whole(markdown_file.with_name(name), picture.encode())
        output_files.write_whole(markdown_file, made.markdown.encode())
        console.print(Text(f"The tables are in {markdown_file}, the plots beside it"))
