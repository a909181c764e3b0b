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
# The copy leads a group of processes, so that whoever ends its group ends no others. Nobody asks
# for another copy before it has ended: what can be read until then is only the end of the tests.
SERVER = """
import gc, json, os, runpy, select, signal, sys
exec(sys.argv[1], {})
gc.freeze()
print(flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    copy = os.fork()
    if copy == 0:
        break
    os.setpgid(copy, copy)
    print(copy, flush=True)
    while not (ended := os.waitpid(copy, os.WNOHANG))[0]:
        if select.select([sys.stdin], [], [], 0.01)[0]:
            os.killpg(copy, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(ended[1]), flush=True)
else:
    sys.exit()
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
        self._answer()

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` in the current folder. WORDS begin with ``-m`` and a module, or with
        ``-c`` and a text."""
        with TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("stdout", "stderr")]
            self.start(words, os.getcwd(), self._environment | environment, files)
            status = self.status()
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
        its process."""
        asked = {
            "words": words,
            "folder": folder,
            "environment": dict(environment),
            "files": [*map(str, files)],
        }
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(asked).encode() + b"\n")
        return int(self._answer())

    def has_ended(self) -> bool:
        """Return whether the program that was started last has ended."""
        return bool(select.select([self._server.stdout], [], [], 0)[0])

    def status(self) -> int:
        """Wait for the end of the program that was started last. Return its exit status."""
        return int(self._answer())

    def close(self) -> None:
        """End the process."""
        self._server.communicate()

    def _answer(self) -> bytes:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the process ended"
        return line
