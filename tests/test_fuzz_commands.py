"""Command lines at random, with hostile files and settings: each ends in an answer or in one clear
sentence, in time.

``CONVLAB_FUZZ=1000`` tries that many. What a verb computes for minutes has tests of its own and is
left out here: arguments, files and what is printed are not.
"""

from __future__ import annotations

import json
import os
import traceback
from pathlib import Path
from time import process_time
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from test_cli import convlab_, numba_left_alone
from test_files import HOSTILE, changed, json_values, right_documents
from test_terminal import NASTY, assert_harmless

pytestmark = [pytest.mark.same_in_cudasim, pytest.mark.slow]

COUNT = int(os.environ.get("CONVLAB_FUZZ", "60"))
SECONDS = 10  # of this process, since the machine may have other work
VERBS = [
    "doctor", "stages", "ladder", "check", "trace", "lint", "tune", "bench", "report", "lessons",
    "run", "no", "help",
]  # fmt: skip
OPTIONS = [
    "--layer", "--batch", "--engine", "--stage", "--image", "--output", "--seed", "--json", "-h",
    "--block", "--html", "--problem", "--compiled", "--arch", "--against", "--as", "--cases", "-",
    "--markdown", "--forget", "--dance", "--tile", "--yes", "--no-counts", "--status", "--hint",
    "--reset", "--update", "--no-open", "--sarif", "--steps", "--no-typed", "-m", "--quick",
    "--baseline", "--again", "--seconds", "--version", "--help", "--",
]  # fmt: skip
WORDS = [
    "m01", "s99", "conv1", "conv13", "0", "1", "2", "-1", "1e9", "nan", "inf", "9999999999",
    "absent/file", ".", "..", "sm_90", "sm_9", "sm_999", "simulator", "gpu", "cudasim",
    "8x8x8", "0x0x0", "1x1x4x4 * 1x1x2x2", "1x1x1x1,1x1x1x1,p(((",
    "sizes", "05", "all", "\u2588", "\udcff", "", " ",
    "9" * 9999, "x" * 9999, "a\nb", "\0", "[/b]", "%s{}$", NASTY, "/dev/null", "/dev/zero",
    "/dev/full", "~", "-", "json", "numba", "no.such.module", "d" * 200 + " d" * 200,
]  # fmt: skip
# Documents that a verb takes, one of them with anything in it.
KINDS = {
    "results.json": "results", "trace.json": "trace", "rows.json": "stored machine code",
    "my/progress.json": "progress", "my/05_shared_memory.ipynb": "notebook",
}  # fmt: skip
# What the folder of a command line holds.
FILES = [
    "any.json", *KINDS, "program.py", "broken.py", "folder.json", "pipe.json", "loop.json",
    "picture.png", "kernel.py::kernel", "my",
]  # fmt: skip
PROGRAM = """import numpy as np
from numba import cuda
@cuda.jit
def kernel(a):
    a[cuda.threadIdx.x] = 1
if __name__ == "__main__":
    kernel[1, 2](np.zeros(2))
"""
words = st.sampled_from(WORDS) | st.sampled_from(FILES) | st.text(max_size=9)
# Half of them begin as a person's would, so that they get beyond the parser.
BEGUN = [
    ["report", "results.json"], ["report", "any.json"], ["trace", "trace.json"], ["trace", "m01"],
    ["lint", "m01", "--against", "rows.json"], ["lint", "m01", "--against", "any.json"],
    ["check", "kernel.py::kernel", "--as", "m01"], ["check", "broken.py", "--as", "m03"],
    ["run", "program.py"], ["run", "broken.py"], ["run", "-m"], ["lessons", "my", "--status"],
    ["lessons", "my", "--hint", "05"], ["lessons", "my", "--update"],
    ["lessons", "my", "--no-open"], ["ladder", "--image", "picture.png"],
    ["ladder", "--image", "any.json", "--output"],
    ["ladder", "--stage", "m01", "--json"], ["tune", "--forget"], ["tune", "--problem"],
    ["bench", "--cases"], ["report", "results.json", "--html"], ["doctor"],
    ["report", "results.json", "results.json"], ["stages", "--json"],
    ["report", "results.json", "--no-counts", "--markdown", "r.md"],
    ["trace", "trace.json", "--html"],
]  # fmt: skip
begun = st.sampled_from(BEGUN) | st.sampled_from(VERBS).map(lambda verb: [verb])
more = st.sampled_from(OPTIONS) | words
lines = st.tuples(begun, st.just([]) | st.lists(more, max_size=1) | st.lists(more, max_size=5))
variables = st.dictionaries(
    st.sampled_from(["CONVLAB_COMPILER", "CONVLAB_CACHE", "COLUMNS", "TERM", "NO_COLOR"]),
    st.sampled_from(["", "0", "-1", "80", "9" * 20, "mlir", "x", "dumb", "results.json", NASTY]),
    max_size=2,
)


def fill(folder: Path, content: bytes, documents: dict[str, Any]) -> None:
    """Make the files of a command line in the folder."""
    (folder / "my").mkdir()
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "any.json").write_bytes(content)
    (folder / "picture.png").write_bytes(content)
    (folder / "broken.py").write_bytes(content)
    for name in ("program.py", "kernel.py"):
        (folder / name).write_text(PROGRAM)
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "loop.json").symlink_to("loop.json")


CONTENTS = st.sampled_from([*HOSTILE.values()]) | json_values.map(
    lambda one: json.dumps(one).encode()
)


@settings(max_examples=COUNT, suppress_health_check=[*HealthCheck])
@given(
    line=lines,
    content=CONTENTS,
    other=st.sampled_from([*KINDS]),
    value=json_values,
    draw=st.randoms(use_true_random=False),
    environment=variables,
)
def test_a_command_line_ends_in_an_answer_or_one_sentence(
    tmp_path_factory, line, content, other, value, draw, environment
):
    documents = {name: right_documents()[kind] for name, kind in KINDS.items()}
    documents[other] = changed(documents[other], value, draw)
    typed = [*line[0], *line[1]]
    with pytest.MonkeyPatch.context() as patch, numba_left_alone():
        folder = tmp_path_factory.mktemp("fuzz")
        patch.chdir(folder)
        fill(folder, content, documents)
        patch.setenv("CONVLAB_CACHE", str(folder / "cache"))
        # Minutes of work, which tests of their own do.
        patch.setattr("convlab.measuring.ladder_run.run", lambda *_, **__: iter(()))
        patch.setattr("convlab.measuring.machine_code.lint_all", lambda *_: iter(()))
        patch.setattr("convlab.measuring.photograph.draw", lambda *_: b"")
        patch.setattr("convlab.tracing.trace_stage", Mock(side_effect=typer.Exit))
        patch.setattr("convlab.measuring.roofline.counted", lambda *_: iter(()))
        patch.setattr("convlab.commands.lessons._open", lambda _: None)
        patch.setattr("sys.setrecursionlimit", lambda _: None)
        started = process_time()
        result = convlab_(*typed, **environment)
        taken = process_time() - started
    event(f"exit code {result.exit_code}")  # pytest --hypothesis-show-statistics counts them
    said = (typed, environment, result.output[-2000:])
    if not isinstance(result.exception, SystemExit | None):
        pytest.fail("".join(traceback.format_exception(result.exception)) + repr(said))
    assert taken < SECONDS, said
    assert "Traceback" not in result.output or typed[0] == "run", said
    assert_harmless(result.output)
    if result.exit_code == 2:
        *_, last = result.stderr.splitlines() or [""]
        assert last.startswith("convlab: ") or "Usage:" in result.output, said
        assert len(last) < 300 + len("convlab: "), said
