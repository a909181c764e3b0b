"""Every notebook of the lessons runs, on the strict simulator and in Numba's, and says the same as
its stored outputs."""

from __future__ import annotations

import os
import re
import signal
import time
from functools import partial
from pathlib import Path

import build_notebooks
import nbformat
import pytest
from nbformat import v4
from numba.cuda.core import config
from warmed import Warmed

from convlab.lessons.source import CHECKOUT, LEARNER, SOLUTION, place, read, sources

pytestmark = pytest.mark.notebooks

SECONDS = 60  # what a notebook may take on two cores
IN_CUDASIM = ("00_", "03", "13", "16")  # the others do nothing that these do not
RUN = [path for path in sources() if not config.ENABLE_CUDASIM or path.stem.startswith(IN_CUDASIM)]
KINDS = (SOLUTION,) if config.ENABLE_CUDASIM else (SOLUTION, LEARNER)
# Both notebooks of a lesson run in one process, which imports Numba once and traces a stage once.
FIRST = """
import functools, gc, convlab
gc.freeze()  # imports stay, so nobody looks for garbage among them, nor as often
gc.set_threshold(100_000)
convlab.trace_stage = functools.cache(convlab.trace_stage)
"""
BETWEEN = """import gc
gc.freeze()  # or %reset would look through all that was made
%reset -f
import os
from convlab.lessons import pictures
pictures._explained.clear()  # each notebook explains legends anew
os.chdir({!r})"""
# What each notebook imports before its first cell. Matplotlib reads MPLBACKEND when it is imported.
BEFORE = """
import ipykernel.kernelapp, matplotlib.backends.backend_agg, matplotlib.figure
import convlab
from convlab.lessons import pictures
convlab.trace_stage
"""
BACKEND = "module://matplotlib_inline.backend_inline"
PYTHONPATH = os.pathsep.join([str(CHECKOUT / "src"), os.environ.get("PYTHONPATH", "")])
# The bytes of pictures depend on matplotlib, and a cell's number on what ran before it here.
PICTURE = re.compile(r'base64,[^"]*|(?<= of cell )\[\d+\]')


def said(notebook) -> list[list[object]]:
    """Return the text of the cells' outputs, of pictures the alt texts."""
    return [
        [
            output.get("text")
            or {kind: PICTURE.sub("", text) for kind, text in output.data.items()}
            for output in cell.get("outputs", ())
        ]
        for cell in notebook.cells
        # which differ from machine to machine
        if "where()" not in cell.source and "time_mine(" not in cell.source
    ]


class WarmedKernel:
    """A notebook's kernel as ``jupyter_client`` has one: what it uses of ``subprocess.Popen``."""

    stdin = stdout = stderr = None
    returncode: int | None = None

    def __init__(self, warmed, command, env, cwd, **_options):
        words = command[command.index("-m") :]
        self._warmed, nothing = warmed, [Path(os.devnull)] * 2
        self.pid = warmed.start(words, str(cwd), env, nothing)

    def poll(self):
        ended = self.returncode is not None or self._warmed.has_ended(self.pid)
        return self.wait() if ended else None

    def wait(self):
        if self.returncode is None:
            self.returncode = self._warmed.status(self.pid)
        return self.returncode

    def send_signal(self, signum):
        if self.poll() is None:  # else the number may be another process's
            os.kill(self.pid, signum)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def terminate(self):
        self.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def warmed():
    made = Warmed(BEFORE, PYTHONPATH=PYTHONPATH, MPLBACKEND=BACKEND)
    yield made
    made.close()


def test_no_signal_is_sent_to_a_kernel_that_has_ended(warmed, monkeypatch):
    """The number of its process may be another one's."""
    words = ["python", "-m", "ipykernel", "--version"]
    kernel = WarmedKernel(warmed, words, dict(os.environ), os.getcwd())
    kernel.terminate()
    assert kernel.wait() in (0, -signal.SIGTERM)
    monkeypatch.delattr(os, "kill")
    kernel.kill()
    kernel.terminate()
    assert kernel.poll() == kernel.returncode


@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_notebooks_run_and_say_what_is_stored(path, warmed, monkeypatch):
    launch = "jupyter_client.provisioning.local_provisioner.launch_kernel"
    monkeypatch.setattr(launch, partial(WarmedKernel, warmed))
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    made = {kind: build_notebooks.notebook(read(path), kind) for kind in KINDS}
    cells = [v4.new_code_cell(FIRST)]
    for kind, one in made.items():
        folder = str(place(path.stem, kind).parent)
        for cell in one.cells:
            cell.id = f"{kind}-{cell.id}"
        cells += [v4.new_code_cell(BETWEEN.format(folder)), *one.cells]
    start = time.monotonic()
    build_notebooks.execute(v4.new_notebook(cells=cells), CHECKOUT)
    assert time.monotonic() - start < SECONDS * len(made)
    for kind, one in made.items():
        assert said(one) == said(nbformat.read(place(path.stem, kind), as_version=4))


TRANSPORT = """
import json
from ipykernel.connect import get_connection_file
with open(get_connection_file()) as file:
    print(json.load(file)["transport"])
"""


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has sockets that are paths")
def test_notebooks_run_at_once_share_no_ports(tmp_path):
    """Two kernels that picked the same one would end the second before its first cell."""
    made = v4.new_notebook(cells=[v4.new_code_cell(TRANSPORT)])
    build_notebooks.execute(made, tmp_path)
    assert made.cells[0].outputs[0].text == "ipc\n"
    assert not list(tmp_path.iterdir())
