"""A headless Chromium for the tests of pages and for their pictures, driven by Playwright.

It is the system's own browser, and it has no network: whatever a page asks for is written down.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
COMPLAINTS = ("error", "warning", "assert")


class BrowserMissing(RuntimeError):
    """There is no Chromium or no Playwright here; the message says what to do."""


class Browser:
    """One browser with one page, Playwright's ``page``. ``errors`` are what its console complained
    of, ``asked_for`` the addresses that the page wanted beside its own."""

    def __init__(self) -> None:
        try:
            from playwright.sync_api import sync_playwright
        except ImportError:
            raise BrowserMissing("Playwright is missing: make .venv/.test installs it") from None
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise BrowserMissing("Chromium is missing (Debian and Ubuntu: apt install chromium)")
        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"]
        )
        self.page = self._browser.new_page()
        self.errors: list[str] = []
        self.asked_for: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("request", self._note)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._browser.close()
        self._playwright.stop()

    def _hear(self, message: Any) -> None:
        if message.type in COMPLAINTS:
            self.errors.append(message.text)

    def _note(self, request: Any) -> None:
        if request.resource_type != "document" and not request.url.startswith("data:"):
            self.asked_for.append(request.url)

    def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window's size, and which colours its person prefers."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if dark else "light")

    def open(self, path: Path) -> None:
        """Open a file and wait until it is there."""
        self.page.goto(path.resolve().as_uri())

    def wait(self, script: str) -> None:
        """Wait until a JavaScript expression is true, also on the next page; Playwright's
        ``TimeoutError`` where it does not get so."""
        self.page.wait_for_function(f"() => {script}")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; a promise is waited for."""
        return self.page.evaluate(script)
