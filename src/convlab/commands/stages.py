"""``convlab stages``."""

from __future__ import annotations

from convlab import tables
from convlab.commands.shared import JsonFile
from convlab.shell import console_for, numba_needed, write_json


def stages(json_file: JsonFile = None) -> None:
    """The ladder as a table: every stage, its idea, its source and what it builds on."""
    console = console_for(json_file)
    with numba_needed():
        from convlab.stages import LADDER
    console.print(tables.stages_table(LADDER))
    keys = ("name", "title", "source", "builds_on", "module")
    write_json(json_file, [{key: getattr(stage, key) for key in keys} for stage in LADDER])
