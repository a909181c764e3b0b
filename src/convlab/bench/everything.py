"""All that convlab measures on a GPU, in one go: ``python -m convlab.bench.everything``.

``make bench`` runs this: the commands below, one after the other, which leave their files in this
folder. After one that fails the others still run; the exit code is that of the first failure.
Ctrl-C ends all, and the next call continues there: every command keeps what it has measured.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from convlab.bench.measured import INTERRUPTED
from convlab.engines import unavailable

COMMANDS = (
    "convlab bench",  # stages and baselines on the twelve layers
    "convlab bench --cases ablation",
    "convlab bench --cases sweeps",
    "convlab bench --cases unfold_table",
    "convlab report --html report.html --markdown report.md",
)
PROGRAMS = {"convlab": [sys.executable, "-c", "from convlab.cli import main; main()"]}
# What each Ctrl-C, or a time limit's SIGTERM, sends a command: at the first it saves its rows.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
ENDED = {
    0: "done", 1: "done, and something was wrong", 2: "refused", INTERRUPTED: "interrupted",
}  # fmt: skip


def run(typed: str) -> int:
    """Run a command; returns its exit code, 128 and the signal for one that a signal ended. After
    Ctrl-C that is :data:`INTERRUPTED`, once the command has ended."""
    program, *arguments = shlex.split(typed)
    processes: list[subprocess.Popen[bytes]] = []
    left = [*ENDINGS]

    def end(number: int, frame: object) -> None:
        how = left.pop(0) if len(left) > 1 else left[0]
        for process in processes:
            process.send_signal(how)

    before = {number: signal.signal(number, end) for number in ENDINGS[:2]}
    try:
        # In a session of its own, so that Ctrl-C reaches it once, from here.
        process = subprocess.Popen([*PROGRAMS[program], *arguments], start_new_session=True)
        processes.append(process)
        if len(left) < len(ENDINGS):  # before it was there
            process.send_signal(ENDINGS[0])
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if len(left) < len(ENDINGS):
        return INTERRUPTED
    return code if code >= 0 else 128 - code


def run_all(commands: Sequence[str]) -> int:
    """Run the commands in turn and say how each ended; returns the exit code."""
    failed, lines = 0, []
    for number, typed in enumerate(commands, start=1):
        here = f"== {number} of {len(commands)}: "
        _say(f"\n{here}{typed}")
        started = time.monotonic()
        code = run(typed)
        ended = ENDED.get(code, f"failed (exit code {code})")
        lines.append(f"{ended:30}  {time.monotonic() - started:5.0f} s  {typed}")
        _say(f"{here}{ended}")
        failed = failed or code
        if code == INTERRUPTED:
            failed = code
            lines.append(f"interrupted at {number} of {len(commands)}: the same command goes on")
            break
    _say("\n" + "\n".join(lines))
    return failed


def _say(line: str) -> None:
    print(line, flush=True)  # before what the command prints


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 2 without a GPU, 130 after Ctrl-C."""
    about = "All that convlab measures on a GPU, in one go; the files are left in this folder."
    parser = argparse.ArgumentParser("python -m convlab.bench.everything", description=about)
    parser.parse_args(arguments)
    if (reason := unavailable("gpu")) is not None:
        needs = "make bench needs a GPU, as a simulator's times mean nothing"
        print(f"convlab: {needs}: {reason}", file=sys.stderr)
        return 2
    # A time limit's end is as orderly as Ctrl-C. A shell makes what runs in the background ignore
    # Ctrl-C, which the commands would inherit.
    for number in ENDINGS[:2]:
        signal.signal(number, signal.default_int_handler)
    try:
        return run_all(COMMANDS)
    except KeyboardInterrupt:  # between two commands
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
