"""What a GPU's counters say of every launch of a module, read by NVIDIA's profiler ``ncu``."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

Launch = tuple[str, dict[str, int]]  # the kernel's name as compiled, and its counts by metric


def counted(metrics: Sequence[str], module: str, *arguments: str) -> list[Launch]:
    """Kernel and counts of every launch of ``python -m module arguments``, in order.

    Raises ``CalledProcessError`` where that fails, ``RuntimeError`` where ``ncu`` counted nothing,
    as where it may not read the counters.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        subprocess.run(
            ["ncu", "--clock-control", "none", "--metrics", ",".join(metrics), "--csv", "--page",
             "raw", "--log-file", str(log), sys.executable, "-m", module, *arguments],
            check=True,
        )  # fmt: skip
        return parsed(log.read_text(encoding="utf-8"), metrics)


def parsed(page: str, metrics: Sequence[str]) -> list[Launch]:
    """ncu's raw page: lines of its own, a head, units, then a line a launch."""
    rows = list(csv.reader(io.StringIO(page)))
    start = next((place for place, row in enumerate(rows) if row[:1] == ["ID"]), None)
    if start is None:
        said = [line for line in page.splitlines() if line.startswith("==ERROR==")]
        raise RuntimeError(f"ncu counted nothing: {' '.join(said) or 'it does not say why'}")
    found = []
    for row in rows[start + 2 :]:
        cells = dict(zip(rows[start], row, strict=True))
        counts = {metric: int(float(cells[metric].replace(",", ""))) for metric in metrics}
        found.append((cells["Kernel Name"], counts))
    return found
