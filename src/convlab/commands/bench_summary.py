"""What ``convlab bench`` and ``convlab report`` print: a table of TFLOP/s, and what has none."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from convlab.bench import analysis
from convlab.bench.results import Results
from convlab.bench.rows import WRONG_STATES, Row
from convlab.tables import table_of

LEGEND = Text(
    "TFLOP/s: of the convolution as defined, median time; ~ where the spread stayed above 2 %. "
    "over s01: geometric mean of the speedups.",
    "dim",
)


def summary(results: Results, rows: Sequence[Row] | None = None, width: int = 80) -> Group:
    """Every system: its mean speedup over s01, how many TFLOP/s it reaches, on each layer where
    ``width`` has room for that; and each reason for a missing number. Each batch by itself."""
    shown = [*results.rows.values()] if rows is None else rows
    keys = {(row.layer, row.batch) for row in shown}
    few = {key: row for key, row in results.rows.items() if key[:2] in keys}
    parts: list[RenderableType] = []
    batches = analysis.by_batch(replace(results, rows=few))
    for batch, of_it in batches.items():
        mine = [row for row in shown if row.batch == batch]
        title = f"TFLOP/s, batch {batch}" if len(batches) > 1 else "TFLOP/s"
        parts += [*([""] if parts else []), _speeds(of_it, mine, width, title), LEGEND]
        parts += _reasons(of_it, mine)
    return Group(*parts)


def _speeds(results: Results, shown: Sequence[Row], width: int, title: str) -> Table:
    """The table of the rows of one batch."""
    layers = results.layers()
    names = list(dict.fromkeys(row.system for row in shown))
    by_layer = max(map(len, [*names, title])) + 7 + 6 * len(layers) <= width
    few = ("layers", "lowest", "median", "highest")
    shown_of = tuple(layer for layer, _ in layers) if by_layer else few
    table = table_of((title,), ("over s01", *shown_of))
    first = next((one for one in analysis.stages(results) if one.name == analysis.BASELINE), None)
    for name in names:
        mine = [results.row(*layer, name) for layer in layers]
        speeds = [row.tflops for row in mine if row is not None and row.tflops is not None]
        if not speeds:
            continue
        mean = first and analysis.mean_speedup(results, analysis.contender(results, name), first)
        cells = [*map(_cell, mine)]
        if not by_layer:
            spread = (min(speeds), statistics.median(speeds), max(speeds))
            cells = [Text(f"{len(speeds)}"), *map(_number, spread)]
        table.add_row(name, "-" if not mean else f"{mean[0]:.2f}", *cells)
    return table


def _number(tflops: float) -> Text:
    return Text(f"{tflops:.{1 if tflops >= 10 else 2}f}")


def _cell(row: Row | None) -> Text:
    if row is None:
        return Text("")
    if row.tflops is None:
        return Text("-", _style(row.state))
    return Text("" if row.settled else "~").append_text(_number(row.tflops))


def _style(state: str) -> str:
    return "bold red" if state in WRONG_STATES else "yellow"


def _reasons(results: Results, rows: Sequence[Row]) -> list[Text]:
    lines = []
    for entry in analysis.numberless(rows):
        where = analysis.layers_in_words(entry["layers"], len(results.layers()))
        state = (entry["state"], _style(entry["state"]))
        said = "" if entry["state"] == entry["reason"] else f": {entry['reason']}"
        lines.append(Text.assemble(f"{entry['system']} on {where}: ", state, said))
    return [Text(), *lines] if lines else []


def wrong_in_words(rows: Sequence[Row], whose: str) -> str:
    """How many rows are so, and of which system on which layer each is."""
    which = ", ".join(f"{row.system} on {row.layer} {row.state}" for row in rows)
    are = "row is" if len(rows) == 1 else "rows are"
    return f"{len(rows)} {are} wrong, refused or failed among {whose}: {which}"


def agreement_table(one: Results, other: Results) -> Table:
    """How far two runs agree, system by system."""
    table = table_of(("system",), ("layers", "median\ndifference %", "largest\ndifference %"))
    for name, layers, median, largest in analysis.agreement(one, other):
        style = "" if median <= 5 else "yellow"
        table.add_row(name, f"{layers}", Text(f"{median:.2f}", style), f"{largest:.2f}")
    return table
