"""The tables of ``convlab bench`` and ``convlab report``: TFLOP/s, and rows without a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from convlab.commands.display import BAD, DOUBTFUL, Cell, number, table_of
from convlab.support.columns import Columns

if TYPE_CHECKING:
    from convlab.measuring.results import ResultRow, Results


BENCH_LEGEND = Text(
    "TFLOP/s: of the convolution as defined, median time; ~ where the spread stayed above 2 %. "
    "over m01: geometric mean of the speedups.",
    "dim",
)


def summary(
    results: Results, rows: Sequence[ResultRow] | None = None, width: int = 80
) -> RenderableType:
    """Every system: its mean speedup over m01 and its TFLOP/s, on each layer if ``width`` has room;
    and each reason for a missing number. Each batch has its own table."""
    from convlab.measuring import analysis

    shown = [*results.rows.values()] if rows is None else rows
    keys = {row.key[:2] for row in shown}
    few = {key: row for key, row in results.rows.items() if key[:2] in keys}
    parts: list[RenderableType] = []
    batches = analysis.by_batch(replace(results, rows=few))
    for batch, of_it in batches.items():
        mine = [row for row in shown if row.batch == batch]
        title = f"TFLOP/s, batch {batch}" if len(batches) > 1 else "TFLOP/s"
        parts += [*([""] if parts else []), _speeds(of_it, mine, width, title), BENCH_LEGEND]
        reasons = analysis.numberless(mine)
        parts += [Text()] if reasons else []
        for one in reasons:
            where = analysis.layers_in_words(one["layers"], len(of_it.layers()))
            said = "" if one["state"] == one["reason"] else f": {one['reason']}"
            state = (one["state"], _style(one["state"]))
            parts.append(Text.assemble(f"{one['system']} on {where}: ", state, said))
    return Group(*parts)


def _speeds(results: Results, shown: Sequence[ResultRow], width: int, title: str) -> Columns:
    from convlab.measuring import analysis

    layers = results.layers()
    names = dict.fromkeys(row.system for row in shown)
    by_layer = max(map(len, [*names, title])) + 7 + 6 * len(layers) <= width
    rows = []
    for one in (analysis.contender(results, name) for name in names):
        if not (speeds := [row.tflops or 0.0 for row in one.measured()]):
            continue
        cells: list[Cell] = [_speed(results.row(*layer, one.name)) for layer in layers]
        if not by_layer:
            spread = (min(speeds), median(speeds), max(speeds))
            cells = [f"{len(speeds)}", *map(_tflops, spread)]
        means = [number(one.over(m01).mean, ".2f") for m01 in analysis.first(results)]
        rows.append((one.name, *(means or [None]), *cells))
    of_all = ("layers", "lowest", "median", "highest")
    head = (title, "over m01", *([layer for layer, _ in layers] if by_layer else of_all))
    return table_of(head, rows)


def _tflops(value: float, settled: bool | None = True) -> str:
    return f"{'' if settled else '~'}{value:.{1 if value >= 10 else 2}f}"


def _speed(row: ResultRow | None) -> Cell:
    if row is None:
        return ""
    return Text("-", _style(row.state)) if row.tflops is None else _tflops(row.tflops, row.settled)


def _style(state: str) -> str:
    from convlab.measuring.results import WRONG_STATES

    return BAD if state in WRONG_STATES else DOUBTFUL


def wrong_in_words(rows: Sequence[ResultRow], whose: str) -> str:
    """Say how many rows are wrong, refused or failed, and name each row's system and layer."""
    which = ", ".join(f"{row.system} on {row.layer} {row.state}" for row in rows)
    are = "row is" if len(rows) == 1 else "rows are"
    return f"{len(rows)} {are} wrong, refused or failed among {whose}: {which}"


def agreement_table(one: Results, other: Results) -> Columns:
    """Return a table of the differences between two runs, system by system."""
    from convlab.measuring import analysis

    rows = [
        (name, f"{layers}", Text(f"{middle:.2f}", DOUBTFUL if middle > 5 else ""), f"{largest:.2f}")
        for name, layers, middle, largest in analysis.agreement(one, other)
    ]
    return table_of(("system", "layers", "median\ndifference %", "largest\ndifference %"), rows)
