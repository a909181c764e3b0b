"""What every page of the built site must hold: links, anchors, alternative texts, no network."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

# Where an element names something that a browser loads by itself.
LOADS = {
    "script": "src", "img": "src", "iframe": "src", "video": "src", "audio": "src", "source": "src",
    "embed": "src", "object": "data", "use": "href", "image": "href",
}  # fmt: skip
LOADING_LINKS = {"stylesheet", "icon", "shortcut icon", "preload", "modulepreload", "prefetch"}
IN_STYLES = re.compile(r"(?:url\(\s*['\"]?|@import\s+['\"])((?:https?:)?//[^'\")]+)")
ELSEWHERE = re.compile(r"(?:https?:)?//")


@dataclass
class Page(HTMLParser):
    """One page: its anchors, where it leads, what it loads, what is wrong with its pictures."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.text = self.path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.anchors.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel", "").lower() in LOADING_LINKS:
            self.loaded.append(values.get("href", ""))
        if tag in LOADS:
            self.loaded.append(values.get(LOADS[tag]) or values.get("xlink:href", ""))
        # Sphinx gives a picture without one its file's name.
        if tag == "img" and values.get("alt", "").strip() in ("", values.get("src")):
            self.unnamed.append(f"picture {values.get('src', '')}")
        if (
            tag == "svg"
            and values.get("role") == "img"
            and not values.get("aria-label", "").strip()
        ):
            self.unnamed.append("drawing")
        self.loaded += IN_STYLES.findall(values.get("style", ""))


def complaints(site: Path) -> list[str]:
    """What is wrong with a built site, a sentence each; nothing is best."""
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} has no pages"]
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        found += [f"{name}: {what} has no alternative text" for what in page.unnamed]
        found += [
            f"{name} loads {what} from the network"
            for what in [*page.loaded, *IN_STYLES.findall(page.text)]
            if ELSEWHERE.match(what)
        ]
        found += [f"{name}: {what}" for link in page.links if (what := _wrong(link, path, pages))]
        found += [
            f"{name} loads {what}, which is not there"
            for what in page.loaded
            if what and not what.startswith(("data:", "http", "//", "#"))
            and not (path.parent / unquote(what.split("?")[0])).exists()
        ]  # fmt: skip
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8")
        found += [f"{style.relative_to(site)} loads {what} from the network"
                  for what in IN_STYLES.findall(text)]  # fmt: skip
    if not (site / "searchindex.js").is_file():
        found.append("there is no search index")
    return found


def _wrong(link: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Why a link leads nowhere; None where it leads somewhere, or off the site."""
    if "://" in link or link.startswith(("mailto:", "javascript:", "data:")):
        return None
    address, anchor = urldefrag(link)
    target = (path.parent / unquote(address)).resolve() if address else path
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return f"{link} leads to no file"
    page = pages.get(target)
    if anchor and page is not None and unquote(anchor) not in page.anchors:
        return f"{link} leads to no place of that page"
    return None
