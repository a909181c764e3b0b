"""Programs run by copies of one process that has imported what they import.

To import Numba and convlab takes one to two seconds. Tests of what happens while Python starts, or
at a first import, start a process of their own instead.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

# For each line it forks, and the copy runs to its own end what `python` would run for these words.
# It answers `started PID NUMBER`, the number being that of the request, and `ended PID STATUS`.
# The copy leads a group of processes, so that whoever ends its group ends no others. Input that
# arrives before it has ended is the end of the tests or, where waiting for this copy was
# interrupted, the request for the next one: either ends this one. Ctrl-C is for the client, which
# then closes the input.
SERVER = """
import gc, json, os, runpy, select, signal, sys
at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
exec(sys.argv[1], {})
gc.freeze()
print("ready", flush=True)
requests = open(0, "rb", buffering=0)  # select sees nothing of what is in a buffer
for line in requests:
    asked = json.loads(line)
    copy = os.fork()
    if copy == 0:
        break
    os.setpgid(copy, copy)
    print("started", copy, asked["number"], flush=True)
    while not (ended := os.waitpid(copy, os.WNOHANG))[0]:
        if select.select([requests], [], [], 0.01)[0]:
            os.killpg(copy, signal.SIGKILL)
    print("ended", copy, os.waitstatus_to_exitcode(ended[1]), flush=True)
else:
    sys.exit()
signal.signal(signal.SIGINT, at_interrupt)
os.chdir(asked["folder"])
os.environ.clear()
os.environ.update(asked["environment"])
for number, name in enumerate((os.devnull, *asked["files"])):
    os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o600), number)
option, program, *sys.argv[1:] = asked["words"]
sys.argv[0], sys.path[0] = option, asked["folder"]
if option == "-c":
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
else:
    runpy.run_module(program, run_name="__main__", alter_sys=True)
"""


class Warmed:
    """A process that has run the program ``before``, with more of an ``environment``."""

    def __init__(self, before: str, **environment: str) -> None:
        self._environment = os.environ | environment
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, before],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment,
            bufsize=0,  # so that what is not read yet is in the pipe, for has_ended
        )  # fmt: skip
        self._requests = 0
        self._statuses: dict[int, int] = {}  # of programs that have ended, by number of process
        self._answer()

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` in the current folder. WORDS begin with ``-m`` and a module, or with
        ``-c`` and a text."""
        with TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("stdout", "stderr")]
            process = self.start(words, os.getcwd(), self._environment | environment, files)
            status = self.status(process)
            output, errors = (file.read_text(encoding="utf-8") for file in files)
        return subprocess.CompletedProcess(words, status, output, errors)

    def start(
        self,
        words: Sequence[str],
        folder: str,
        environment: Mapping[str, str],
        files: Sequence[Path],
    ) -> int:
        """Start ``python WORDS``, with these files for its output and errors. Return the number of
        its process. A program that was started earlier and has not ended is killed."""
        self._requests += 1
        asked = {
            "number": self._requests,
            "words": words,
            "folder": folder,
            "environment": dict(environment),
            "files": [*map(str, files)],
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked).encode() + b"\n")
        while True:  # if waiting for an earlier program was interrupted, its end comes first
            answer, process, *number = self._answer()
            if (answer, number) == ("started", [str(self._requests)]):
                return int(process)

    def has_ended(self, process: int) -> bool:
        """Return whether the program with this number has ended."""
        while process not in self._statuses and select.select([self._server.stdout], [], [], 0)[0]:
            self._answer()
        return process in self._statuses

    def status(self, process: int) -> int:
        """Wait for the end of the program with this number. Return its exit status."""
        while process not in self._statuses:
            self._answer()
        return self._statuses[process]

    def close(self) -> None:
        """End the process."""
        self._server.communicate()

    def _answer(self) -> list[str]:
        """Wait for the next answer, and remember what it says of a program. Return its words."""
        assert self._server.stdout is not None
        words = self._server.stdout.readline().decode().split()
        assert words, "the process ended"
        if words[0] == "started":
            self._statuses.pop(int(words[1]), None)  # of an earlier program with the same number
        elif words[0] == "ended":
            self._statuses[int(words[1])] = int(words[2])
        return words
