"""Links of the Markdown pages, which suit a forge, made to suit the site.

On a forge a link leads to a file of the repository. Here a stage's file becomes the stage's page,
any other source file a listing with its lines numbered, a result a download.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from convlab.stages import LADDER

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```+)[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
INDEX = "docs/README.md"
RESULTS = "docs/results"
STAGE_PAGES = {f"src/{stage.module.replace('.', '/')}.py": stage.name for stage in LADDER}


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Change a page's text but for its fenced blocks."""
    done, parts = 0, []
    for fence in FENCED.finditer(text):
        parts += [change(text[done : fence.start()]), fence[0]]
        done = fence.end()
    return "".join([*parts, change(text[done:])])


def listing_name(path: str) -> str:
    """The page of a file's listing: ``source/src-convlab-lint.py``."""
    return f"source/{path.replace('/', '-')}"


@dataclass
class Links:
    """Rewrites links; ``listed`` are the files that something links to: they need a listing."""

    root: Path
    listed: set[str] = field(default_factory=set)

    def page(self, text: str, source: str, staged: str) -> str:
        """A page's text with its links rewritten: ``source`` is its path in the repository,
        ``staged`` the one on the site."""

        def change(piece: str) -> str:
            return LINK.sub(lambda link: self.link(link[1], link[2], source, staged), piece)

        return outside_fences(text, change)

    def link(self, text: str, target: str, source: str, staged: str) -> str:
        """One link, as Markdown or HTML."""
        if "://" in target or target.startswith("#"):
            return f"[{text}]({target})"
        name, _, anchor = target.partition("#")
        path = os.path.normpath(PurePosixPath(source).parent / name)
        mark = f"#{anchor}" if anchor else ""
        up = "../" * staged.count("/")
        if path in (INDEX, "README.md", "docs"):
            return f"[{text}]({up}index.md{mark if path == INDEX else ''})"
        if path == RESULTS:
            return f"[{text}]({up}measurements.md)"
        if path.startswith("docs/") and path.endswith(".md"):
            if text == PurePosixPath(name).name:  # the file's name, which means nothing here
                text = self.title(path)
            return f"[{text}]({up}{path.removeprefix('docs/')}{mark})"
        if path.startswith("lessons/solutions/solutions/"):
            return text  # a lesson's link to its solution, as the solution has it too
        if path.startswith("lessons/") and path.endswith(".ipynb"):
            return f"[{text}]({up}{path})"
        if path in STAGE_PAGES and not anchor:
            return f"[{text}]({up}stages/{STAGE_PAGES[path]}.md)"
        if path.startswith(f"{RESULTS}/"):
            return _html(text, f"{up}results/{path.removeprefix(RESULTS + '/')}")
        if (self.root / path).is_file():
            self.listed.add(path)
            return _html(text, f"{up}{listing_name(path)}.html{mark}")
        return text  # a folder, which the site has no page for

    def title(self, path: str) -> str:
        """What a page is called, without what comes after a colon: ``Findings``."""
        first = (self.root / path).read_text(encoding="utf-8").partition("\n")[0]
        return first.removeprefix("# ").partition(":")[0]


def _html(text: str, address: str) -> str:
    return f'<a href="{address}">{text}</a>'
