"""The built site in a real browser: it fits a phone, finds what is searched for, and is quiet."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import browser
import pytest

pytestmark = pytest.mark.site
PHONE, DESKTOP = (390, 800), (1280, 900)

try:
    browser.find()
except browser.BrowserMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Browser]:
    with browser.Browser() as opened:
        yield opened


def test_no_page_is_wider_than_its_window(site, chromium):
    too_wide = {}
    for path in sorted(site.rglob("*.html")):
        chromium.window(*PHONE)
        chromium.open(path)
        # A page turns dark and grows where it is: it need not be read again.
        for size, dark in product((PHONE, DESKTOP), (False, True)):
            chromium.window(*size, dark=dark)
            wide = chromium.run("document.documentElement.scrollWidth")
            if wide > size[0]:
                too_wide[path.relative_to(site).as_posix(), size, dark] = wide
    assert too_wide == {}
    assert chromium.errors == []
    assert [one for one in chromium.asked_for if not one.startswith("file:")] == []


def test_the_ladder_can_be_read_on_a_phone(site, chromium):
    chromium.window(*PHONE)
    chromium.open(site / "index.html")
    hidden = chromium.run(
        "[...document.querySelectorAll('td:nth-child(2) a')].filter(one => "
        f"one.getBoundingClientRect().right > {PHONE[0]}).map(one => one.textContent)"
    )
    assert hidden == []
    # Not with the mouse: the theme scrolls smoothly, and a middle that moves cannot be hit.
    chromium.run("document.querySelector('td a[href*=s05_shared_memory]').click()")
    chromium.wait("document.title.startsWith('s05_shared_memory')")


def test_the_search_finds_pages(site, chromium):
    chromium.window(*DESKTOP)
    chromium.open(site / "index.html")
    chromium.run("location.href = 'search.html?q=coalesced'")
    chromium.wait("document.querySelectorAll('#search-results ul.search li').length > 0")
    chromium.wait("document.querySelector('#search-results').innerText.includes('Glossary')")
    assert chromium.errors == []
