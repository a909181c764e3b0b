"""Programs that copies of one process run: after an interrupt the next one is right."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from warmed import Warmed

pytestmark = [
    pytest.mark.same_in_cudasim,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="copies are made by fork"),
]

FILES = [Path(os.devnull)] * 2
WAITS = "-c", "import time; time.sleep(60)"
ENDS = "-c", "import sys; sys.exit(3)"


@pytest.fixture(scope="module")
def warmed() -> Iterator[Warmed]:
    made = Warmed("")
    yield made
    made.close()


def start(warmed: Warmed, words: tuple[str, str]) -> int:
    return warmed.start(words, os.getcwd(), os.environ, FILES)


def test_a_program_that_nobody_waited_for_is_killed_when_the_next_starts(warmed: Warmed) -> None:
    first, second = start(warmed, WAITS), start(warmed, ENDS)
    assert first != second
    assert warmed.status(second) == 3
    assert warmed.has_ended(first)
    assert warmed.status(first) == -signal.SIGKILL


def test_an_answer_that_nobody_read_is_not_the_next_program_s(
    warmed: Warmed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(warmed, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start(warmed, WAITS)
    monkeypatch.undo()
    assert warmed.status(start(warmed, ENDS)) == 3


def test_ctrl_c_ends_the_program_and_not_the_process_it_is_a_copy_of(warmed: Warmed) -> None:
    os.kill(warmed._server.pid, signal.SIGINT)
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    done = warmed.run("-c", code)
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr
    assert warmed.run("-c", "print(7)").stdout == "7\n"
