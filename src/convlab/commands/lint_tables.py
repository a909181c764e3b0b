"""The tables of ``convlab lint``: each kernel's machine code, and how it differs from before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from convlab.commands.display import BAD, GOOD, Cell, table_of
from convlab.support.columns import Columns

if TYPE_CHECKING:
    from convlab.measuring.machine_code import Difference, KernelRow


WIDE = ("LDG", "LDS", "STS", "STG")  # from memory to registers to shared memory and back
LINT_LEGEND = Text(
    "registers: of a thread, and its budget. LDG, STG, LDS, STS: 128-bit loads and stores of "
    "global and of shared memory in the machine code.",
    "dim",
)


def lint_table(rows: Sequence[KernelRow]) -> Columns:
    """Return the table of compiled kernels, a row for each problem and architecture."""
    head = ("stage", "kernel", "problem", "arch", "registers", *WIDE, "result")
    cells: list[Sequence[Cell]] = [
        (one.stage.split("_")[0], one.kernel, one.problem, one.arch,
         f"{one.registers}/{one.budget}", *(str(one.wide.get(kind, "-")) for kind in WIDE),
         _lint_result(one))
        for one in rows
    ]  # fmt: skip
    return table_of(head, cells, words=4, folded=("kernel", "result"))


def _lint_result(row: KernelRow) -> Text:
    """OK, or each thing that is wrong in a word."""
    wrong = {
        "spills": row.spill_bytes,
        "stack": row.stack_bytes,
        "float64": row.float64,
        "registers": row.registers > row.budget,
    }
    words = [word for word, found in wrong.items() if found]
    if len(words) < len(row.findings):
        words.append("128-bit")
    return Text("OK", GOOD) if row.ok else Text(", ".join(words), BAD)


def differences_table(found: Sequence[Difference]) -> Columns:
    """Return a table of the differences between each kernel's machine code and the stored code."""
    head, rows = ("kernel", "differences: before -> now", "worse"), []
    for one in found:
        changes = [f"{name}: {old} -> {now}" for name, (old, now) in one.changes.items()]
        said = "\n".join(changes) or "not stored"
        rows.append((str(one.row), said, Text(", ".join(one.worse), "red")))
    return table_of(head, rows, folded=head)
