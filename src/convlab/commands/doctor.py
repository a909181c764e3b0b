"""``convlab doctor``: what is installed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from convlab.commands import exits, options, output_files, requirements
from convlab.commands.display import DOUBTFUL, GOOD
from convlab.commands.interrupts import importing

if TYPE_CHECKING:
    from convlab.measuring.machine import CacheFacts, DoctorFacts, GpuDescription


def doctor(
    clear_cache: Annotated[
        bool, typer.Option("--clear-cache", help="First remove all compiled kernels from the disk.")
    ] = False,
    json_file: options.JsonFile = None,
) -> None:
    """Show GPU, driver, engines and versions; which engine is used, and why."""
    console = output_files.console_for(json_file)
    if clear_cache:
        _clear_cache(console)
    with importing(), requirements.numba_settings():
        from convlab.measuring.machine import facts

        found = facts()
    console.print(doctor_table(found))
    for warning in found["warnings"]:
        console.print(Text(f"Warning: {warning}", "yellow"))
    output_files.write_json(json_file, found)
    if found["would_use"]["engine"] is None:
        exits.refuse("no engine works here: the lines above say why")


def _clear_cache(console: Console) -> None:
    """Remove the compiled kernels, and say how many there were."""
    with requirements.numba_needed():
        from convlab.support.kernel_files import clear
    with exits.refusing(OSError):
        removed = clear()
    kernels = "1 compiled kernel" if removed.kernels == 1 else f"{removed.kernels} compiled kernels"
    console.print(
        f"Removed {kernels} ({_size(removed.bytes)}) from {removed.folder or 'no folder'}."
    )


def doctor_table(found: DoctorFacts) -> Table:
    """Return a table of ``convlab.measuring.machine.facts``, one fact in a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for label, text, *style in _facts(found):
        table.add_row(Text(label), Text(text, *style))
    return table


def _facts(found: DoctorFacts) -> Iterator[tuple[str, ...]]:
    """Each fact: its label, its text and, if any, its style."""
    from convlab.measuring.machine import GPU_ENGINE

    yield "convlab", str(found["convlab"])
    yield "Python", f"{found['python']} ({found['executable']})"
    yield "system", found["os"]
    for name, version in found["packages"].items():
        yield name, version or "not installed"
    yield "GPU", _gpu_line(found["gpu"])
    for engine in found["engines"]:
        name = f"engine {engine['name']}"
        if engine["available"]:
            yield name, f"works: {engine['device']}", GOOD
        else:
            yield name, f"cannot run: {engine['why_not']}", DOUBTFUL
    for tool in found["compilers"]:
        if tool["found"]:
            yield tool["name"], tool["found"]
            continue
        users = ", ".join(tool["needed_by"])
        said = f"not installed; needed by {users} (run {tool['install']})"
        needed = found["gpu"] is not None and GPU_ENGINE in tool["needed_by"]
        yield tool["name"], said, *([DOUBTFUL] if needed else [])
    cache = found["cache"]
    yield "kernel cache", _cache_line(cache), *([DOUBTFUL] if cache["why_not"] else [])
    choice = found["would_use"]
    yield "would use", f"{choice['engine'] or 'nothing'}, because {choice['why']}"


def _cache_line(cache: CacheFacts) -> str:
    kernels = "1 kernel" if cache["kernels"] == 1 else f"{cache['kernels']:,} kernels"
    held = f"{kernels}, {_size(cache['bytes'])} of {_size(cache['limit_bytes'])}"
    place = f"{held}, in {cache['folder']}" if cache["folder"] else "none"
    return f"{place}; no kernels are kept: {cache['why_not']}" if cache["why_not"] else place


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _gpu_line(gpu: GpuDescription | None) -> str:
    if gpu is None:
        return "none found"
    memory = gpu["memory_bytes"]
    parts = (
        gpu["name"],
        gpu["compute_capability"] and f"compute capability {gpu['compute_capability']}",
        f"{memory / 2**30:.0f} GiB" if memory else None,
        gpu["driver"] and f"driver {gpu['driver']}",
        gpu["cuda"] and f"CUDA {gpu['cuda']}",
    )
    return ", ".join(filter(None, parts))
