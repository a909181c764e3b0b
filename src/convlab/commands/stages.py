"""``convlab stages``: the stages of the ladder and of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from convlab.commands import options, output_files, requirements
from convlab.commands.display import table_of
from convlab.support.columns import Columns

if TYPE_CHECKING:
    from convlab.ladder import Stage


def stages(json_file: options.JsonFile = None) -> None:
    """The stages of the ladder and of gradients: idea, source and what each builds on."""
    console = output_files.console_for(json_file)
    with requirements.numba_needed():
        from convlab.ladder import BACKWARD, LADDER
    console.print(stages_table(LADDER))
    console.print(stages_table(BACKWARD, "backward"))
    keys = ("name", "title", "source", "builds_on", "module")
    output_files.write_json(
        json_file, [{key: getattr(stage, key) for key in keys} for stage in (*LADDER, *BACKWARD)]
    )


def stages_table(stages: Sequence[Stage], name: str = "stage") -> Columns:
    """The ladder: every stage, its idea and, below it, its source and what it builds on."""
    from convlab.ladder import short_name

    head = (name, "idea, source and what it builds on")
    rows = []
    for one in stages:
        bases = ", ".join(map(short_name, one.builds_on))
        source = f"{one.source}. Builds on {bases}." if bases else f"{one.source}."
        rows.append((one.name, Text.assemble(one.title, "\n", (source, "dim"))))
    return table_of(head, rows, folded=head[1:])
