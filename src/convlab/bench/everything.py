"""All that convlab measures on a GPU, in one go: ``python -m convlab.bench.everything``.

``make bench`` runs this: ``convlab bench``, the experiments behind the papers' figures that it
does not hold, and a report. Each part is a process of its own. One that fails is said and the
others go on; the exit code is the first failure's. Ctrl-C ends all of it, and the next call goes on
where this one stopped, because parts keep what they have measured.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convlab.bench.measured import INTERRUPTED
from convlab.engines import unavailable

# What a part is asked to end by, one after the other, and how many seconds it has for it: the first
# lets it save what it has. Ctrl-C once more goes on to the next; in the end it is killed.
ENDINGS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0))
ENDED = {0: "done", 1: "done, and something was wrong", 2: "refused"}
BY_PEOPLE = {
    "python": [sys.executable],
    "convlab": [sys.executable, "-c", "from convlab.cli import main; main()"],
}


@dataclass(frozen=True)
class Part:
    """One command, as people type it, and the files that it leaves."""

    title: str
    typed: str
    files: tuple[str, ...]

    @property
    def command(self) -> list[str]:
        """What is run for it, by the Python that runs this."""
        program, *arguments = shlex.split(self.typed)
        return [*BY_PEOPLE[program], *arguments]


def _experiment(title: str, name: str) -> Part:
    typed = f"python -m convlab.bench.experiments {name} --json {name}.json"
    return Part(title, typed, (f"{name}.json",))


PARTS = (
    Part("stages and baselines on the twelve layers", "convlab bench", ("bench.json",)),
    _experiment("the im2win paper's Figure 4: s11 without each technique", "ablation"),
    _experiment("article 001's Figures 1 to 4: speedups over C++", "sweeps"),
    _experiment("article 002's Table 1: unfold, einsum and fold", "unfold_table"),
    Part(
        "tables and plots of the first part",
        "convlab report --html report.html --markdown report.md",
        ("report.html", "report.md"),
    ),
)


def run(part: Part) -> int:
    """Run a part; returns its exit code, 128 and the signal for one that a signal ended.

    Raises ``KeyboardInterrupt``, once the part has ended, where Ctrl-C ended it.
    """
    # Of a session of its own, so that Ctrl-C reaches it once, by us, and it can save in peace.
    process = subprocess.Popen(part.command, start_new_session=True, preexec_fn=_listen)
    try:
        code = process.wait()
    except KeyboardInterrupt:
        _end(process)
        raise
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    return code if code >= 0 else 128 - code


def _listen() -> None:
    """What a shell starts in the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end(process: subprocess.Popen[bytes]) -> None:
    for how, seconds in ENDINGS:
        process.send_signal(how)
        try:
            process.wait(seconds)
            return
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            continue
    process.kill()
    process.wait()


def run_all(parts: Sequence[Part]) -> int:
    """Run the parts in turn and say how each ended; returns the exit code."""
    codes: list[int] = []
    lines: list[tuple[str, ...]] = []
    for number, part in enumerate(parts, start=1):
        _say(f"\n== {number} of {len(parts)}: {part.title}: {part.typed}")
        started = time.monotonic()
        try:
            codes.append(run(part))
        except KeyboardInterrupt:
            codes.append(INTERRUPTED)
        took = _seconds(time.monotonic() - started)
        how = "interrupted" if codes[-1] == INTERRUPTED else _how(codes[-1])
        _say(f"== {number} of {len(parts)}: {how} after {took}")
        lines.append((part.title, how, took, " ".join(filter(_is_there, part.files)) or "-"))
        if codes[-1] == INTERRUPTED:
            break
    _say("\n" + _aligned([("part", "ended", "took", "lies in"), *lines]))
    if codes[-1] == INTERRUPTED:
        _say(f"interrupted at part {len(codes)} of {len(parts)}: the same command goes on")
        return INTERRUPTED
    return next((code for code in codes if code), 0)


def _how(code: int) -> str:
    return ENDED.get(code, f"failed (exit code {code})")


def _is_there(file: str) -> bool:
    return Path(file).is_file()


def _seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _say(line: str) -> None:
    print(line, flush=True)  # before what the part prints


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 without a GPU, 130 after Ctrl-C."""
    about = "All that convlab measures on a GPU, in one go; the files are left in this folder."
    parser = argparse.ArgumentParser(prog="python -m convlab.bench.everything", description=about)
    parser.parse_args(arguments)
    reason = unavailable("gpu")
    if reason is not None:
        print(
            f"convlab: make bench needs a GPU, as a simulator's times mean nothing: {reason}",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGTERM, _interrupt)  # a time limit's end is as orderly as Ctrl-C
    try:
        return run_all(PARTS)
    except KeyboardInterrupt:  # between two parts
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
