"""Programs run by copies of one process that has imported what they import.

To import Numba and convlab takes one to two seconds. Tests of what happens while Python starts, or
at a first import, start a process of their own instead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

# For each line it forks, and the copy runs to its own end what `python` would run for these words.
SERVER = """
import gc, json, os, runpy, sys
exec(sys.argv[1], {})
gc.freeze()
print(flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if os.fork() == 0:
        break
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
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
    """A process that has run the program ``before``, with Numba as its CUDA simulator."""

    def __init__(self, before: str, path: Path) -> None:
        self._environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": str(path)}
        self._server = subprocess.Popen(
            [sys.executable, "-c", SERVER, before],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment,
        )  # fmt: skip
        self._answer()

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``python WORDS`` in the current folder. WORDS begin with ``-m`` and a module, or with
        ``-c`` and a text."""
        with TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("stdout", "stderr")]
            asked = {
                "words": words,
                "folder": os.getcwd(),
                "environment": self._environment | environment,
                "files": [*map(str, files)],
            }
            assert self._server.stdin is not None
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            status = int(self._answer())
            output, errors = (file.read_text(encoding="utf-8") for file in files)
        return subprocess.CompletedProcess(words, status, output, errors)

    def close(self) -> None:
        """End the process."""
        self._server.communicate()

    def _answer(self) -> str:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the process ended"
        return line
