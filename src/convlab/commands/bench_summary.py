"""What ``convlab bench`` and ``convlab report`` print: a table of TFLOP/s, and what has none."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from convlab.bench import analysis
from convlab.bench.results import Results, agreement
from convlab.bench.rows import JUDGED_WRONG, Row


def summary(results: Results, rows: Sequence[Row] | None = None) -> Group:
    """TFLOP/s of every system on every layer, the mean speedup over s01, and each reason for a
    missing number."""
    shown = [*results.rows.values()] if rows is None else rows
    layers = sorted({(row.layer, row.batch) for row in shown}, key=results.layers().index)
    names = list(dict.fromkeys(row.system for row in shown))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("TFLOP/s", no_wrap=True)
    table.add_column("over\ns01", justify="right", no_wrap=True)
    for layer, _ in layers:
        table.add_column(layer.replace("conv", "conv\n"), justify="right", no_wrap=True)
    first = (
        analysis.contender(results, analysis.BASELINE)
        if analysis.BASELINE in results.systems
        else None
    )
    for name in names:
        mine = [results.row(*layer, name) for layer in layers]
        if not any(row is not None and row.ok for row in mine):
            continue
        mean = first and analysis.mean_speedup(results, analysis.contender(results, name), first)
        table.add_row(
            name, "-" if not mean else f"{mean[0]:.2f}", *(_cell(row) for row in mine)
        )
    return Group(table, Text(LEGEND, "dim"), *_reasons(results, shown, len(layers)))


LEGEND = (
    "TFLOP/s: of the convolution as defined, median time; ~ where the spread stayed above 2 %. over "
    "s01: geometric mean of the speedups."
)


def _cell(row: Row | None) -> Text:
    if row is None:
        return Text("")
    if row.tflops is None:
        return Text("-", "bold red" if row.state in JUDGED_WRONG else "yellow")
    digits = 1 if row.tflops >= 10 else 2
    return Text(f"{'' if row.settled else '~'}{row.tflops:.{digits}f}")


def _reasons(results: Results, rows: Sequence[Row], layers: int) -> list[Text]:
    lines = []
    for entry in analysis.numberless(results, rows):
        style = "bold red" if entry["state"] in JUDGED_WRONG else "yellow"
        where = analysis.layers_in_words(entry["layers"], layers)
        said = "" if entry["state"] == entry["reason"] else f": {entry['reason']}"
        lines.append(
            Text.assemble(f"{entry['system']} on {where}: ", (entry["state"], style), said)
        )
    return [Text(), *lines] if lines else []


def agreement_table(one: Results, other: Results) -> Table:
    """How far two runs agree, system by system."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    table.add_column("system", no_wrap=True)
    for name in ("layers", "median\ndifference %", "largest\ndifference %"):
        table.add_column(name, justify="right")
    for name, layers, median, largest in agreement(one, other):
        style = "" if median <= 5 else "yellow"
        table.add_row(name, f"{layers}", Text(f"{median:.2f}", style), f"{largest:.2f}")
    return table
