"""A headless Chromium, driven through a pipe: for the viewer's tests and pictures.

It speaks Chromium's DevTools protocol over two file descriptors, so it needs no driver, no port
and no package; it has no network: whatever a page asks for is written down.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_SECONDS = 30
# What Chromium answers where a page is left before it could.
LEFT = (
    "Inspected target navigated or closed",
    "Execution context was destroyed.",
    "Cannot find default execution context",
)


class BrowserMissing(RuntimeError):
    """There is no Chromium here; the message says what to do."""


def find() -> str:
    """Chromium's path. Raises :class:`BrowserMissing`."""
    if os.name != "posix":
        raise BrowserMissing("Chromium is driven through a pipe, which needs a POSIX system")
    for name in NAMES:
        if (found := shutil.which(name)) is not None:
            return found
    raise BrowserMissing("there is no Chromium here (Debian and Ubuntu: apt install chromium)")


class PageLeft(RuntimeError):
    """The page went on to another while something was asked of it."""


class Browser:
    """One browser with one page. ``errors`` are what its console complained of, ``asked_for`` the
    addresses that the page wanted beside its own."""

    def __init__(self) -> None:
        program = find()
        import fcntl  # there on POSIX systems only

        self._folder = tempfile.mkdtemp(prefix="convlab-browser-")
        self._numbers = itertools.count(1)
        self._unread = b""
        self.errors: list[str] = []
        self.asked_for: list[str] = []
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Above 4, so that neither is lost when Chromium's 3 and 4 are made of them.
        high_in, high_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out))
        command = [
            program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--no-first-run", "--hide-scrollbars", "--disable-dev-shm-usage",
            "--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={self._folder}", "about:blank",
        ]  # fmt: skip
        self._process = os.posix_spawn(
            command[0], command, os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, high_in, 3), (os.POSIX_SPAWN_DUP2, high_out, 4),
                (os.POSIX_SPAWN_CLOSE, high_in), (os.POSIX_SPAWN_CLOSE, high_out),
            ],
        )  # fmt: skip
        for end in (theirs_in, theirs_out, high_in, high_out):
            os.close(end)
        self._session: str | None = None
        pages = self._ask("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in pages if one["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser, wait for it and remove its profile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)  # its helpers may still write there

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size, and which colours its person prefers."""
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file and wait until it is there."""
        address = path.resolve().as_uri()
        self._ask("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def wait(self, script: str) -> None:
        """Wait until a JavaScript expression is true; ``TimeoutError`` where it does not get so."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not self._is_true(script):
            if time.monotonic() > until:
                raise TimeoutError(f"this did not come about: {script}")
            time.sleep(0.02)

    def _is_true(self, script: str) -> bool:
        try:
            return bool(self.run(script))
        except PageLeft:
            return False  # it may be of the next page

    def run(self, script: str) -> Any:
        """What a JavaScript expression gives; a promise is waited for."""
        found = self._ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key, ``ArrowRight`` or ``p``."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13,
                 "Tab": 9, "Home": 36, "End": 35}  # fmt: skip
        code = codes.get(key, ord(key[0].upper()))
        for kind in ("keyDown", "keyUp"):
            self._ask(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )  # fmt: skip

    def _middle(self, selector: str) -> dict[str, float]:
        found = self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center'}); const box = one.getBoundingClientRect();"
            "return {x: box.x + box.width / 2, y: box.y + box.height / 2} })()"
        )
        assert isinstance(found, dict)
        return found

    def point(self, selector: str) -> None:
        """Move the mouse to the middle of an element."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", **self._middle(selector))

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a person would."""
        place = self._middle(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", type=kind, **place, **button)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """What the window shows, or the whole page, as PNG."""
        if whole:
            size = self._ask("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"x": 0, "y": 0, **{k: size[k] for k in ("width", "height")}, "scale": 1}
            found = self._ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        else:
            found = self._ask("Page.captureScreenshot")
        return base64.b64decode(found["data"])

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    said = answer["error"]["message"]
                    raise (PageLeft if said in LEFT else RuntimeError)(f"{method}: {said}")
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            if not select.select([self._in], [], [], PATIENCE_SECONDS)[0]:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._in, 1 << 20)
            if not piece:
                raise RuntimeError("Chromium has ended")
            self._unread += piece
        message, self._unread = self._unread.split(b"\0", 1)
        heard: dict[str, Any] = json.loads(message)
        return heard

    def _hear(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                details = told["exceptionDetails"]
                self.errors.append(str(details.get("exception", details).get("description")))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.errors.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.errors.append(told["entry"]["text"])
            case "Network.requestWillBeSent" if told["type"] != "Document":
                address = told["request"]["url"]
                if not address.startswith("data:"):
                    self.asked_for.append(address)
