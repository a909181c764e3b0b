"""The driven browser, without one: what it makes of answers."""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import browser
import pytest

pytestmark = pytest.mark.same_in_cudasim


def answering(*answers: dict[str, Any]) -> browser.Browser:
    """A browser that has these answers ready, in order."""
    opened = object.__new__(browser.Browser)
    opened._numbers, opened._session = itertools.count(1), None
    opened._in, opened._out = -1, os.open(os.devnull, os.O_WRONLY)
    numbered = ({"id": number} | answer for number, answer in enumerate(answers, start=1))
    opened._unread = b"".join(json.dumps(answer).encode() + b"\0" for answer in numbered)
    return opened


def value(found: object) -> dict[str, Any]:
    return {"result": {"result": {"value": found}}}


@pytest.mark.parametrize("said", browser.LEFT)
def test_waiting_goes_on_where_a_page_is_left(said: str) -> None:
    opened = answering(value(False), {"error": {"message": said}}, value(True))
    opened.wait("document.title === 'the next one'")
    assert opened._unread == b""


def test_whoever_does_not_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(browser.PageLeft, match=r"^Runtime\.evaluate: Inspected target"):
        answering({"error": {"message": browser.LEFT[0]}}).run("1")
    with pytest.raises(RuntimeError, match=r"^Runtime\.evaluate: no such thing$") as other:
        answering({"error": {"message": "no such thing"}}).wait("1")
    assert other.type is RuntimeError
    monkeypatch.setattr(browser, "PATIENCE_SECONDS", -1)
    with pytest.raises(TimeoutError, match="this did not come about: 1"):
        answering(value(False)).wait("1")
