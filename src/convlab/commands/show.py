"""``convlab doctor`` and ``convlab stages``: what is here, and the ladder."""

from __future__ import annotations

from rich.text import Text

from convlab import tables
from convlab.commands.shared import JsonFile
from convlab.shell import console_for, numba_needed, refuse, write_json


def doctor(json_file: JsonFile = None) -> None:
    """What is here: GPU, driver, engines, versions; what would be used, and why."""
    console = console_for(json_file)
    from convlab.doctor import facts

    found = facts()
    console.print(tables.doctor_table(found))
    for warning in found["warnings"]:
        console.print(Text(f"Warning: {warning}", "yellow"))
    write_json(json_file, found)
    if found["would_use"]["engine"] is None:
        refuse("no engine works here: the lines above say why")


def stages(json_file: JsonFile = None) -> None:
    """The ladder as a table: every stage, its idea, its source and what it builds on."""
    console = console_for(json_file)
    with numba_needed():
        from convlab.stages import LADDER
    console.print(tables.stages_table(LADDER))
    keys = ("name", "title", "source", "builds_on", "module")
    write_json(json_file, [{key: getattr(stage, key) for key in keys} for stage in LADDER])
