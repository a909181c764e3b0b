"""What the ladder prints without a GPU, as docs/ladder.md shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SAMPLE_COMMAND = ("ladder", "--engine", "simulator")


def sample(json_file: Path | None = None) -> str:
    """What the ladder prints without a GPU, 80 columns wide; its JSON goes to the file, if any."""
    more = () if json_file is None else ("--json", str(json_file))
    code = "from convlab.cli import main; main()"
    output = subprocess.run(
        [sys.executable, "-c", code, *SAMPLE_COMMAND, *more],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def same_but_for_rounding(one: str, other: str) -> bool:
    """Whether two samples differ in nothing but the last digit of an error / bound: NumPy sums
    the reference in another order on another CPU."""
    # What a library computes, whose work is not counted, it computes otherwise on another CPU.
    texts = (re.sub(r"OK {6} *[\d.e-]+(?= +-)", "LIBRARY", text) for text in (one, other))
    pieces = [re.split(r"(?<=OK {6} )( *[\d.e-]+)", text) for text in texts]
    if len(pieces[0]) != len(pieces[1]):
        return False
    for a, b in zip(*(part[::2] for part in pieces), strict=True):
        if a != b:
            return False
    errors = zip(*(map(float, part[1::2]) for part in pieces), strict=True)
    return all(abs(a - b) <= 0.011 * max(a, b) for a, b in errors)


def sample_section(stored: str) -> str:
    """The stored section where it still says what the ladder does, else a new one."""
    new = f"```text\n{sample()}```\n"
    return stored if same_but_for_rounding(stored, new) else new
