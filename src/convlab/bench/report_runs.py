"""Runs as a whole: whether one was interrupted, and how far two of them agree."""

from __future__ import annotations

import re
from collections.abc import Iterator

from convlab.bench.report_document import Block, Paragraph, Table
from convlab.bench.results import Results, agreement

CLOCK_SHARE = 0.97  # of the highest clock: what is below is told
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
    """Another run beside this one: what differs between the two, how far their times agree, and
    where a library chose another kernel."""
    found = agreement(results, other)
    changes = tuple(_changes(results, other))
    blocks: list[Block] = [Table(("", "this run", "that run"), changes, left=3)] if changes else []
    if stopped := interrupted(other):
        blocks.append(Paragraph(f"Of the other run: {stopped}"))
    if not found:
        return [*blocks, Paragraph("The two runs have no system in common with a number in both.")]
    rows = tuple(
        (f"`{name}`", str(layers), f"{median:.2f}", f"{largest:.2f}")
        for name, layers, median, largest in found
    )
    head = ("system", "layers", "median difference, %", "largest difference, %")
    blocks.append(Table(head, rows))
    chosen = tuple(_other_kernels(results, other))
    if chosen:
        columns = ("system", "layer", "here", "there", "the other's time, %")
        blocks += [Paragraph(CHOSEN), Table(columns, chosen, left=4)]
    return blocks


CHOSEN = (
    "A library that tries several kernels may choose another one each time, because their times "
    "are close. These rows ran another main kernel, or another tile, than in the other run:"
)


def _changes(results: Results, other: Results) -> Iterator[tuple[str, str, str]]:
    """Date, GPU, driver, package versions, code and systems, each where the runs differ."""
    facts = [_facts(one) for one in (results, other)]
    for name in dict.fromkeys((*facts[0], *facts[1])):
        here, there = (one.get(name) for one in facts)
        if here != there:
            yield name, here or "-", there or "-"
    for mine, theirs, place in ((results, other, 1), (other, results, 2)):
        names = ", ".join(f"`{name}`" for name in mine.systems if name not in theirs.systems)
        if names:
            yield (
                ("systems of one run alone", names, "-")
                if place == 1
                else ("systems of one run alone", "-", names)
            )


def _facts(one: Results) -> dict[str, str | None]:
    gpu = one.environment.get("gpu") or {}
    date = str(one.environment.get("date") or "")[:16].replace("T", " ")
    packages = one.environment.get("packages") or {}
    return {
        "date, UTC": date, "GPU": one.device, "driver": gpu.get("driver"),
        "Python": one.environment.get("python"), "identity of GPU, packages and code": one.identity,
    } | packages  # fmt: skip


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
