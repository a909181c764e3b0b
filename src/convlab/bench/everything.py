"""All that convlab measures on a GPU, in one go: ``python -m convlab.bench.everything``.

``make bench`` runs this: the parts below, each a process of its own. After a part that fails the
others still run; the exit code is that of the first failure. Ctrl-C ends all, and the next call
continues there, because every part keeps what it has measured.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from convlab.bench.measured import INTERRUPTED
from convlab.engines import unavailable

# The signals that end a part, in turn, and the seconds that it has for each: after the first it may
# save its rows. Another Ctrl-C sends the next signal; in the end the part is killed.
ENDINGS = ((signal.SIGINT, 60.0), (signal.SIGTERM, 10.0))
ENDED = {
    0: "done", 1: "done, and something was wrong", 2: "refused", INTERRUPTED: "interrupted",
}  # fmt: skip
PROGRAMS = {
    "python": [sys.executable],
    "convlab": [sys.executable, "-c", "from convlab.cli import main; main()"],
}


class Part(NamedTuple):
    """One command, as people type it, and the files that it leaves."""

    title: str
    typed: str
    files: tuple[str, ...]


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
    """Run a part; returns its exit code, 128 and the signal for one that a signal ended. After
    Ctrl-C that is :data:`INTERRUPTED`, once the part has ended."""
    program, *arguments = shlex.split(part.typed)
    # In a session of its own, so that Ctrl-C reaches it once, from here, and it can save. A shell
    # makes background processes ignore Ctrl-C, which they would inherit.
    process = subprocess.Popen(
        [*PROGRAMS[program], *arguments],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        end(process)
        return INTERRUPTED
    return code if code >= 0 else 128 - code


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a part to end, then end it."""
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
    failed, lines = 0, [f"{'part':56}  {'ended':30}  {'took':>7}  lies in"]
    for number, part in enumerate(parts, start=1):
        here = f"== {number} of {len(parts)}: "
        _say(f"\n{here}{part.title}: {part.typed}")
        started = time.monotonic()
        code = run(part)
        ended = ENDED.get(code, f"failed (exit code {code})")
        took = f"{time.monotonic() - started:.0f} s"
        _say(f"{here}{ended} after {took}")
        files = " ".join(file for file in part.files if Path(file).is_file()) or "-"
        lines.append(f"{part.title:56}  {ended:30}  {took:>7}  {files}")
        failed = failed or code
        if code == INTERRUPTED:
            failed = code
            lines.append(f"interrupted at part {number} of {len(parts)}: the same command goes on")
            break
    _say("\n" + "\n".join(lines))
    return failed


def _say(line: str) -> None:
    print(line, flush=True)  # before what the part prints


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 without a GPU, 130 after Ctrl-C."""
    about = "All that convlab measures on a GPU, in one go; the files are left in this folder."
    parser = argparse.ArgumentParser("python -m convlab.bench.everything", description=about)
    parser.parse_args(arguments)
    if (reason := unavailable("gpu")) is not None:
        needs = "make bench needs a GPU, as a simulator's times mean nothing"
        print(f"convlab: {needs}: {reason}", file=sys.stderr)
        return 2
    # A time limit's end is as orderly as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run_all(PARTS)
    except KeyboardInterrupt:  # between two parts
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
