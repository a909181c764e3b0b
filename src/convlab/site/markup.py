"""Small pieces of Markdown and HTML, for the pages that are generated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape


def raw(html: str) -> str:
    """HTML as a block of a MyST page."""
    return f"```````{{raw}} html\n{html}\n```````\n"


def figure(body: str, caption: str, kind: str) -> str:
    """A picture with its caption, which may hold HTML; ``kind`` is for the style sheet."""
    below = f"<figcaption>{caption}</figcaption>"
    return raw(f'<figure class="drawn {kind}">\n{body}\n{below}\n</figure>')


def table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; ``align`` has an ``l`` or ``r`` for each column."""
    rule = ["---:" if side == "r" else "---" for side in align]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


def prose(docstring: str) -> str:
    """A docstring, which is written for readers of the source, as Markdown.

    Double backticks become single ones, and roles such as ``:func:`` fall away.
    """
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", docstring)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    # Letters with an underscore and products of letters are code, not emphasis.
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([*_<>])", r"\\\1", piece) for piece in pieces
    )


def code(text: str) -> str:
    """Source code inside HTML."""
    return f"<code>{escape(text)}</code>"


def counted(number: int, noun: str) -> str:
    """``1 lane``, ``32 lanes``; ``pass`` takes ``es``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"
