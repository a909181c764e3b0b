"""Tables of text for a terminal, a file or a notebook. Every cell is shown whole at any width.

rich's own tables end a cell that finds no room with an ellipsis, so a number may lose its digits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from operator import attrgetter

from rich.console import Console, ConsoleOptions
from rich.text import Text

USUAL, NARROW = 2, 1  # blanks between two columns
LONGEST_WORD = 24  # a longer word of a folded column may be broken
SPANNING_INDENT = " " * 8  # of the second line of a row that spans all columns
RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"
Cells = Sequence[Text]


@dataclass(frozen=True)
class _Column:
    """A column's heading, which may have several lines, and its cells."""

    head: Text
    cells: Sequence[Text]
    is_text: bool  # left-aligned; numbers are right-aligned
    folds: bool  # its cells may take several lines

    @property
    def widest(self) -> int:
        """The width that shows every line of every cell without a break."""
        return max(_width(line) for cell in (self.head, *self.cells) for line in _lines(cell))

    @property
    def least(self) -> int:
        """The width below which a number, a name or a usual word would be broken."""
        if not self.folds:
            return self.widest
        words = (word for cell in (self.head, *self.cells) for word in cell.plain.split())
        longest = max((_width(Text(word)) for word in words), default=1)
        return min(longest, LONGEST_WORD, self.widest)

    def with_narrow_head(self) -> _Column:
        """The column with a heading that takes more lines instead of being wider than the cells."""
        words = max(map(len, self.head.plain.split()), default=1)
        cells = max((_width(line) for cell in self.cells for line in _lines(cell)), default=1)
        lines = textwrap.wrap(self.head.plain, max(words, cells), break_long_words=False)
        return replace(self, head=Text("\n".join(lines), self.head.style))


class Columns:
    """A table of ``words`` columns of text, then of numbers, one line for each row.

    Columns in ``folded`` hold text too, whose cells may take several lines. A table that is too
    wide gets headings of several lines, then narrower gaps. If this is not enough, the columns
    without room follow in a further table, which repeats the rows' names. A ``Text`` among the
    rows spans all columns; in a table with such rows, a first cell that is too long gets a line
    of its own instead.
    """

    def __init__(
        self,
        head: Sequence[str],
        rows: Iterable[Cells | Text],
        words: int = 1,
        folded: Iterable[str] = (),
    ) -> None:
        self.rows = list(rows)
        self._words = words
        self._hangs = any(isinstance(row, Text) for row in self.rows)
        folds = {*folded}
        cells = [row for row in self.rows if not isinstance(row, Text)]
        self._columns = [
            _Column(
                head=Text(name, "bold"),
                cells=[row[place] for row in cells],
                is_text=place < words or name in folds,
                folds=name in folds,
            )
            for place, name in enumerate(head)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        width = options.max_width
        for number, (columns, gap) in enumerate(self._parts(width)):
            if number:
                yield Text()
            yield from self._table(columns, gap, width, console)

    def _parts(self, width: int) -> list[tuple[list[_Column], int]]:
        """The columns of each table, and the gap between them."""
        whole = self._columns
        narrow = [column.with_narrow_head() for column in whole]
        tried = [(whole, USUAL), (narrow, USUAL), (narrow, NARROW)]
        for columns, gap in tried[:1] if self._hangs else tried:
            if _least(columns, gap) <= width:
                return [(columns, gap)]
        names = whole[: self._words]
        if 2 * _least(names, USUAL) > width:
            names = names[:1]
        taken = 0 if self._hangs else _least(names, USUAL) + USUAL
        parts: list[list[_Column]] = [[]]
        for column in whole[len(names) :]:
            if parts[-1] and taken + _least([*parts[-1], column], USUAL) > width:
                parts.append([])
            parts[-1].append(column)
        return [([*names, *part], USUAL) for part in parts]

    def _table(
        self, columns: Sequence[_Column], gap: int, width: int, console: Console
    ) -> Iterator[Text]:
        widths = self._widths(columns, gap, width)

        def lines_of(row: Cells) -> list[list[Text]]:
            return [_wrapped(cell, wide, console) for cell, wide in zip(row, widths, strict=True)]

        def joined(row: Sequence[Text]) -> Text:
            line = Text()
            for place, (cell, column, wide) in enumerate(zip(row, columns, widths, strict=True)):
                blanks = " " * (wide - cell.cell_len)
                line.append(" " * gap if place > 0 else "")
                line.append("" if column.is_text else blanks)
                line.append_text(cell)
                line.append(blanks if column.is_text else "")
            line.rstrip()
            return line

        head = lines_of([column.head for column in columns])
        tall = max(map(len, head))
        for row in zip(*([Text()] * (tall - len(cell)) + cell for cell in head), strict=True):
            yield joined(row)
        yield Text(RULE * min(sum(widths) + gap * (len(widths) - 1), width))
        cells = zip(*map(attrgetter("cells"), columns), strict=True)
        for one in self.rows:
            if isinstance(one, Text):
                lines = textwrap.wrap(one.plain, width, subsequent_indent=SPANNING_INDENT)
                yield Text("\n".join(lines), one.style)
                continue
            first, *others = next(cells)
            if self._hangs and first.cell_len > widths[0]:
                yield from _wrapped(first, width, console)
                first = Text()
            for row in zip_longest(*lines_of([first, *others]), fillvalue=Text()):
                yield joined(row)

    def _widths(self, columns: Sequence[_Column], gap: int, width: int) -> list[int]:
        """The columns' widths: the least ones, and what is left for columns that fold. The widest
        columns give way where even the least widths find no room."""
        widths = [column.least for column in columns]
        left = width - gap * (len(columns) - 1)
        if self._hangs:
            widths[0] = max(0, min(widths[0], left - sum(widths[1:])))
        while sum(widths) > left and max(widths) > 1:
            widths[widths.index(max(widths))] -= 1
        wanted = [column.widest - column.least for column in columns]
        share = min(1.0, (left - sum(widths)) / max(1, sum(wanted)))
        if share > 0:
            widths = [wide + int(share * more) for wide, more in zip(widths, wanted, strict=True)]
        return widths


def _width(line: Text) -> int:
    return line.cell_len


def _lines(cell: Text) -> list[Text]:
    return list(cell.split("\n", allow_blank=True))


def _least(columns: Sequence[_Column], gap: int) -> int:
    return sum(column.least for column in columns) + gap * (len(columns) - 1)


def _wrapped(cell: Text, width: int, console: Console) -> list[Text]:
    """A cell's lines, broken between words where they are too long, within words if necessary."""
    found = []
    for line in _lines(cell):
        if _width(line) <= width:  # with its blanks: units of different lengths stay aligned
            found.append(line)
            continue
        for part in line.wrap(console, max(width, 1), overflow="fold"):
            part.rstrip()
            found.append(part)
    return found
