"""Runs as a whole: whether one was interrupted, and how far two of them agree."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from convlab.bench.report_document import Block, Paragraph, Table
from convlab.bench.results import Results, agreement

AGREES_PERCENT = 5.0
CLOCK_SHARE = 0.97  # of the highest clock: what is below is told
UNITS = (
    ("minute", 60, 120),
    ("hour", 3600, 48),
    ("day", 86400, math.inf),
)  # up to how many of each
TILE = re.compile(r"tilesize(\d+(?:x\d+)+)")


def interrupted(results: Results) -> str | None:
    """That a run did not come to its end, and how many rows are missing; None for one that did.

    Files of before ``missing`` was kept lack it: there the rows count that its layers and systems
    have together.
    """
    if results.finished is not None:
        return None
    layers, systems = results.layers(), list(results.systems)
    missing = len(results.missing) or sum(
        results.row(*layer, name) is None for layer in layers for name in systems
    )
    tried = f"{_count(len(systems), 'system')} on {_count(len(layers), 'layer')}"
    if not missing:
        return f"**The run did not come to its end**, but of {tried} no row is missing."
    return (
        f"**The run was interrupted**, with {tried} so far: "
        f"{_count(missing, 'row')} {'is' if missing == 1 else 'are'} missing."
    )


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def clocks_below(results: Results) -> str | None:
    """Where the GPU's clock was seen below its highest as timing began or ended; None where it was
    not, or nobody knows."""
    found = []
    for row in results.rows.values():
        clocks = row.clocks_mhz or {}
        seen = [clock for clock in (clocks.get("before"), clocks.get("after")) if clock]
        most = clocks.get("max")
        if row.ok and seen and most and min(seen) < CLOCK_SHARE * most:
            found.append(f"`{row.system}` on {row.layer} ({min(seen)} of {most} MHz)")
    if not found:
        return None
    return (
        f"The clock was seen more than {100 * (1 - CLOCK_SHARE):.0f} % below its highest as timing "
        "began or ended, as it is where a GPU reaches its limit of power, with "
        f"{', '.join(found)}."
    )


def nth_run(number: int, article: str = "the") -> str:
    """``the second run``, ``the third run``, ``run 4``."""
    ordinal = {2: "second", 3: "third"}.get(number)
    return f"{article} {ordinal} run" if ordinal else f"run {number}"


def second_run(results: Results, other: Results) -> list[Block]:
    """Another run beside this one: what they have in common, how far they agree, and where a
    library chose another kernel."""
    found = agreement(results, other)
    if not found:
        return [Paragraph("The two runs have no system in common that both gave a number.")]
    worst = max(median for _, _, median, _ in found)
    near = sum(median <= AGREES_PERCENT for _, _, median, _ in found)
    words = (
        f"{_which(results, other)}. {near} of {len(found)} systems agree within "
        f"{AGREES_PERCENT:g} % in the median over their layers; the furthest is {worst:.1f} % "
        f"apart.{_alone(results, other)}"
    )
    rows = tuple(
        (f"`{name}`", str(layers), f"{median:.2f}", f"{largest:.2f}")
        for name, layers, median, largest in found
    )
    head = ("system", "layers", "median difference, %", "largest difference, %")
    blocks: list[Block] = [Paragraph(words), Table(head, rows)]
    if stopped := interrupted(other):
        blocks.insert(0, Paragraph(f"Of the other run: {stopped}"))
    chosen = tuple(_other_kernels(results, other))
    if chosen:
        columns = ("system", "layer", "here", "there", "the other's time, %")
        blocks += [Paragraph(CHOSEN), Table(columns, chosen, left=4)]
    return blocks


CHOSEN = (
    "Where several kernels are tried and the quickest is taken, the trial may end with another one "
    "each time, as their times are near to each other. Rows whose main kernel, or its tile, is one "
    "that the other run did not use:"
)


def _which(results: Results, other: Results) -> str:
    """When and on what the other run was, and what it has in common with this one."""
    date = str(other.environment.get("date") or "")[:16].replace("T", " ")
    of = f"a run of {date} UTC" if date else "a run without a date"
    when = f"Against {of}{_apart(results, other)} on {other.device}"
    if results.identity == other.identity:
        return f"{when}: the same GPU, driver, packages and code"
    (gpu, driver), (other_gpu, other_driver) = map(_gpu_of, (results, other))
    changes = []
    if gpu != other_gpu:
        changes.append("another GPU")
    if driver != other_driver:
        changes.append(f"driver {other_driver or 'unknown'} instead of {driver or 'unknown'}")
    changes += _packages(results, other)
    if not changes:
        return (
            f"{when}: the same model of GPU, driver and packages; convlab's code is another, or "
            "the very GPU"
        )
    return f"{when}: {', '.join(changes)}; code and the very GPU may be others too"


def _gpu_of(results: Results) -> tuple[str, str | None]:
    gpu = results.environment.get("gpu") or {}
    return results.device, gpu.get("driver")


def _packages(results: Results, other: Results) -> list[str]:
    """Each version that is another there."""

    def versions(one: Results) -> dict[str, Any]:
        python = {"Python": one.environment.get("python")}
        return python | (one.environment.get("packages") or {})

    here, there = versions(results), versions(other)
    return [
        _changed(name, here.get(name), there.get(name))
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    ]


def _changed(name: str, here: str | None, there: str | None) -> str:
    if not there:
        return f"that run without {name}, this one with {name} {here}"
    if not here:
        return f"that run with {name} {there}, this one without"
    return f"{name} {there} instead of {here}"


def _apart(results: Results, other: Results) -> str:
    """``, 76 minutes before this one,``; nothing where a date is missing."""
    try:
        mine, theirs = (
            datetime.fromisoformat(str(one.environment.get("date"))) for one in (results, other)
        )
        seconds = (theirs - mine).total_seconds()
    except (TypeError, ValueError):
        return ""
    unit, size = next((unit, size) for unit, size, most in UNITS if abs(seconds) < most * size)
    count = _count(round(abs(seconds) / size), unit)
    return f", {count} {'before' if seconds < 0 else 'after'} this one,"


def _alone(results: Results, other: Results) -> str:
    """Which systems only one of the runs has tried."""
    said = []
    for mine, theirs, where in (
        (results, other, "this run"), (other, results, "the other run"),
    ):  # fmt: skip
        names = [f"`{name}`" for name in mine.systems if name not in theirs.systems]
        if names:
            said.append(f" Only in {where}: {', '.join(names)}.")
    return "".join(said)


def _other_kernels(results: Results, other: Results) -> Iterator[tuple[str, ...]]:
    for key, row in results.rows.items():
        again = other.rows.get(key)
        if again is None or not (row.time_ms and again.time_ms):
            continue
        if results.systems[row.system]["kind"] != "baseline":
            continue
        here, there = _kernels(row.algorithm), _kernels(again.algorithm)
        if here[0] != there[0] or (here[1] in there[1:] and there[1] in here[1:]):
            continue
        change = 100 * (again.time_ms / row.time_ms - 1)
        yield f"`{row.system}`", row.layer, here[1], there[1], f"{change:+.1f}"


def _kernels(algorithm: str | None) -> tuple[str, ...]:
    """What a row says before its kernels, such as which package made them, then their names, the
    one that took longest first."""
    said, colon, named = (algorithm or "none named").rpartition(": ")
    return said + colon, *map(_short, named.split("; "))


def _short(kernel: str) -> str:
    """The tile in a kernel's name, or that name without types and where it is from."""
    if tile := TILE.search(kernel):
        return f"tiles of {tile[1]}"
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split("[<(]", name)[0].rpartition("::")[2]
