"""A report as blocks (headings, paragraphs, tables, figures), and these as HTML and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files

from convlab.bench.palette import LIGHT, with_dark_mode

CODE = re.compile(r"`([^`]+)`")
BOLD = re.compile(r"\*\*([^*]+)\*\*")


@dataclass(frozen=True)
class Heading:
    """The title of what follows, one level below the report's own."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Words; between backticks, code; between double asterisks, bold."""

    text: str


@dataclass(frozen=True)
class Table:
    """Cells as text; the first ``left`` columns hold words, which go to the left, the others
    numbers."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1


@dataclass(frozen=True)
class Figure:
    """A picture drawn twice, as SVG for wide screens and for narrow ones, and in words. ``name`` is
    what its file is called where it needs one. On a page its words and axes take the page's
    colours, so that it can be read in dark mode too."""

    name: str
    about: str
    wide: str
    narrow: str


@dataclass(frozen=True)
class Tiles:
    """The few numbers to see first: number and what it is."""

    entries: tuple[tuple[str, str], ...]


Block = Heading | Paragraph | Table | Figure | Tiles


def as_markdown(title: str, blocks: Sequence[Block], pictures: str = "") -> str:
    """Markdown; figures are files whose names begin with ``pictures``."""
    parts = [f"# {title}"] if title else []
    parts += [_markdown(block, pictures) for block in blocks]
    return "\n\n".join(parts) + "\n"


def picture_files(blocks: Sequence[Block], pictures: str) -> dict[str, str]:
    """The files that :func:`as_markdown` shows, by name."""
    return {
        f"{pictures}{block.name}.svg": with_dark_mode(block.wide)
        for block in blocks
        if isinstance(block, Figure)
    }


def _markdown(block: Block, pictures: str) -> str:
    if isinstance(block, Heading):
        return f"## {block.text}"
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Figure):
        return f"![{block.about}]({pictures}{block.name}.svg)"
    if isinstance(block, Tiles):
        return "\n".join(f"- **{number}** {what}" for number, what in block.entries)
    rule = ["---" if column < block.left else "---:" for column in range(len(block.head))]
    rows = (block.head, rule, *block.rows)
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows)


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """One page that needs no other file and no network."""
    body = "\n".join(map(_html, blocks))
    page = files("convlab.bench").joinpath("report.html").read_text(encoding="utf-8")
    return page.replace("<!--{title}-->", escape(title)).replace("<!--{body}-->", body)


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{_inline(block.text)}</h2>"
    if isinstance(block, Paragraph):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Figure):
        return (
            f'<figure role="img" aria-label="{escape(block.about)}">'
            f'<div class="wide" aria-hidden="true">{_themed(block.wide)}</div>'
            f'<div class="narrow" aria-hidden="true">{_themed(block.narrow)}</div>'
            f"<figcaption>{_inline(block.about)}</figcaption></figure>"
        )
    if isinstance(block, Tiles):
        tiles = "".join(
            f'<div class="tile"><b>{escape(number)}</b><span>{_inline(what)}</span></div>'
            for number, what in block.entries
        )
        return f'<div class="tiles">{tiles}</div>'
    head = "".join(
        f'<th scope="col"{_side(column, block.left)}>{_inline(name)}</th>'
        for column, name in enumerate(block.head)
    )
    rows = "".join(
        "<tr>"
        + f'<th scope="row">{_inline(row[0])}</th>'
        + "".join(
            f"<td{_side(column, block.left)}>{_inline(cell)}</td>"
            for column, cell in enumerate(row[1:], start=1)
        )
        + "</tr>"
        for row in block.rows
    )
    return (
        '<div class="scrolls" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _code(found: re.Match[str]) -> str:
    """Long names may break after an underscore."""
    return f"<code>{found[1].replace('_', '_<wbr>')}</code>"


def _themed(svg: str) -> str:
    """With the page's own colours, by the names that it has for them."""
    for name, colour in LIGHT.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _side(column: int, left: int) -> str:
    return ' class="left"' if column < left else ""


def _inline(text: str) -> str:
    marked = CODE.sub(_code, escape(text, quote=False))
    return BOLD.sub(r"<b>\1</b>", marked)
