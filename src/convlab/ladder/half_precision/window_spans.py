"""The sizes of h04's work: how windows are cut for lanes, and where rows lie in shared memory.

In channels last, a window's numbers of one filter row are neighbours in memory: its *run*. If the
width is dilated, only the C_i numbers of one place of the filter are neighbours; then each place
counts as a filter row. Windows that are neighbours in a row overlap, and together they are a *span*
of the input's row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import gcd

from convlab.device.panel_products import PANEL_ALIGNMENT
from convlab.ladder.stage import MOST_SHARED_BYTES, Tile, blocks_for
from convlab.problems.problem import ConvProblem

WINDOWS = 64  # windows of a product: the rows of A
LANES = 4  # lanes that share a row of A
EIGHT = 8  # 16-bit numbers in 16 bytes, which one copy moves
BANKS = 32  # banks of shared memory, of 4 bytes each
PANEL_TERMS = 64  # terms of a panel, 128 bytes of 16-bit numbers
# Channels of a block's warpgroups together, 64 windows each: a block has 65,536 registers.
MOST_CHANNELS = 384


def _wavefronts(strips: list[tuple[int, int, int]], pitch: int, row_pitch: int) -> int:
    words = {(span * pitch + row * row_pitch + at) // 2 for span, row, at in strips}
    banks = [word % BANKS for word in words]
    return max(banks.count(bank) for bank in banks)


@dataclass(frozen=True)
class Spans:
    """A way to read 64 windows: as spans of ``width`` windows, by lanes that read whole strips.

    A run is cut in ``parts`` *strips*. A lane reads one strip of each of its windows at a time, and
    the four lanes of a group read four strips: those of ``4 // parts`` filter rows. A step of A has
    16 terms, four neighbours of each strip. A *slice* is ``rows`` filter rows, all that are in
    shared memory at a time. ``padding`` are the unused numbers after a span and after a row of
    spans, which spread the lanes' loads over the banks.
    """

    problem: ConvProblem
    width: int
    parts: int
    rows: int
    padding: tuple[int, int] = (0, 0)

    @property
    def elements(self) -> int:
        """Return the number of rows that a row of the filter counts as."""
        return self.problem.W_f if self.problem.d_w > 1 else 1

    @property
    def filter_rows(self) -> int:
        """The rows of a filter, or its elements if they are apart in the input."""
        return self.problem.H_f * self.elements

    @property
    def run(self) -> int:
        """The number of neighbours in the input that a window and a filter row have in common."""
        return self.problem.W_f // self.elements * self.problem.C_i

    @property
    def row(self) -> int:
        """The number of numbers in a row of the input."""
        return self.problem.W_i * self.problem.C_i

    @property
    def next(self) -> int:
        """The distance in numbers from a window to the next one."""
        return self.problem.s_w * self.problem.C_i

    @property
    def strip(self) -> int:
        """The number of terms in a strip, a multiple of four."""
        return 4 * blocks_for(self.run, 4 * self.parts)

    @property
    def fours(self) -> int:
        """The number of fours in a strip's terms."""
        return self.strip // 4

    @property
    def rows_at_a_time(self) -> int:
        """The number of filter rows that the four lanes of a group read at a time."""
        return LANES // self.parts

    @property
    def slices(self) -> int:
        """The number of slices of a product."""
        return blocks_for(self.filter_rows, self.rows)

    @property
    def steps(self) -> int:
        """The number of steps of a slice, 16 terms each."""
        return self.rows // self.rows_at_a_time * self.fours

    @property
    def panels(self) -> int:
        """The number of panels of the filter in a slice, four steps each."""
        return blocks_for(self.steps, 4)

    @property
    def count(self) -> int:
        """The number of spans in a product's 64 windows."""
        return WINDOWS // self.width

    @property
    def per_output_row(self) -> int:
        """The number of spans that cover a row of the output."""
        return blocks_for(self.problem.W_o, self.width)

    @property
    def total(self) -> int:
        """The number of spans of all images."""
        return self.problem.N_i * self.problem.H_o * self.per_output_row

    @property
    def tiles(self) -> int:
        """The number of products along the windows."""
        return blocks_for(self.total, self.count)

    @cached_property
    def alignment(self) -> int:
        """All spans begin at multiples of so many numbers, 1, 2, 4 or 8."""
        p = self.problem
        spans = self.width * self.next if self.per_output_row > 1 else 0
        elements = p.d_w * p.C_i if self.elements > 1 else 0
        return gcd(EIGHT, self.row, spans, elements, p.p_w * p.C_i)

    @property
    def may_be_odd(self) -> bool:
        """Some windows begin at an odd number, in the middle of a 32-bit word."""
        return gcd(self.alignment, self.next if self.width > 1 else 0) % 2 == 1

    @property
    def pieces(self) -> int:
        """16-byte pieces of a span, whose first one may begin before the span."""
        windows = min(self.width, self.problem.W_o)
        read = (windows - 1) * self.next + self.parts * self.strip + 2 * self.may_be_odd
        return blocks_for(EIGHT - self.alignment + read, EIGHT)

    @property
    def pitch(self) -> int:
        """The distance in numbers from a span to the next one in shared memory."""
        return EIGHT * self.pieces + self.padding[0]

    @property
    def row_pitch(self) -> int:
        """The distance in numbers from a filter row's spans to the next row's in shared memory."""
        return self.count * self.pitch + self.padding[1]

    @property
    def slice_numbers(self) -> int:
        """The number of 16-bit numbers of a slice in shared memory."""
        return self.rows * self.row_pitch

    def wavefronts(self) -> int:
        """The wavefronts of a warp's load of one word a lane: 1 is without bank conflicts."""
        return _wavefronts(self._strips(), self.pitch, self.row_pitch)

    def _strips(self) -> list[tuple[int, int, int]]:
        """Return where the strip of each lane of a warp lies: its span, its row of spans, and its
        first number in the span."""
        return [
            (
                row // self.width,
                lane // self.parts,
                row % self.width * self.next + lane % self.parts * self.strip,
            )
            for row in range(WINDOWS // 8)
            for lane in range(LANES)
        ]

    def padded(self, room: int) -> Spans:
        """Return the spans with the padding that has the fewest bank conflicts, and takes at most
        so many numbers of a slice."""
        strips, fewest, best = self._strips(), self.wavefronts(), self
        for behind_span in range(0, 2 * BANKS if self.count > 1 else EIGHT, EIGHT):
            for behind_row in range(0, 2 * BANKS, EIGHT):
                padded = replace(self, padding=(behind_span, behind_row))
                if fewest == 1 or padded.slice_numbers > room:
                    break
                found = _wavefronts(strips, padded.pitch, padded.row_pitch)
                if found < fewest:
                    fewest, best = found, padded
        return best

    def filter_numbers(self, M_B: int) -> int:
        """Return the number of 16-bit numbers of the filter of M_B channels in shared memory."""
        return self.slices * self.panels * M_B * PANEL_TERMS

    def shared_bytes(self, tile: Tile) -> int:
        """The filter of a block's channels and two slices of each warpgroup, from the first panel
        on, which begins at a multiple of 1,024 bytes."""
        numbers = self.filter_numbers(tile.M_B) + warpgroups_of(tile) * 2 * self.slice_numbers
        return PANEL_ALIGNMENT + 2 * numbers

    def cycles(self, M_B: int, wavefronts: int) -> float:
        """An estimate of an SM's cycles for all windows of M_B channels: for each 64 those of the
        tensor cores, of shared memory, or of the issue of instructions, whichever are most, and
        what a slice adds."""
        steps, pieces = self.steps, self.count * self.pieces  # of a slice; of a row of it
        products = steps * M_B / 2
        shared = steps * (M_B / 4 + 4 * 4 * wavefronts) + self.rows * pieces / 8
        reads = (12 if self.parts == 1 else 18) * steps
        copies = blocks_for(pieces, 32) / 4 * (35 + 10 * self.rows)
        issued = reads + copies + 100 + (3 * M_B + 150) / self.slices
        return self.tiles * self.slices * (max(products, shared, issued) + 60)


def warpgroups_of(tile: Tile) -> int:
    """Return how many warpgroups a block has: each has 64 windows."""
    return tile.N_B // WINDOWS


def tile_of(M_B: int, warpgroups: int) -> Tile:
    """Return the tile of blocks of M_B channels: a lane has a quarter of two windows' channels."""
    return Tile(M_B, warpgroups * WINDOWS, PANEL_TERMS, M_B // LANES, 2)


def _candidates(problem: ConvProblem, tile: Tile) -> Iterator[Spans]:
    """Yield the ways to read the windows whose slices fit shared memory."""
    for width in (1, 2, 4, 8, 16, 32, 64):
        if width > 1 and width >= 2 * problem.W_o:
            continue
        for parts in (1, 2, 4):
            at_a_time = LANES // parts
            turns = blocks_for(Spans(problem, width, parts, at_a_time).filter_rows, at_a_time)
            for slices in range(1, turns + 1):
                spans = Spans(problem, width, parts, at_a_time * blocks_for(turns, slices))
                if spans.shared_bytes(tile) <= MOST_SHARED_BYTES:
                    yield spans
                    break


@lru_cache(maxsize=1024)
def spans_of(problem: ConvProblem, tile: Tile) -> Spans | None:
    """Return the way to read the windows that takes the fewest cycles; None if none fits."""
    M_B, least, best = tile.M_B, math.inf, None
    candidates = sorted(_candidates(problem, tile), key=lambda spans: spans.cycles(M_B, 1))
    for spans in candidates:
        if spans.cycles(M_B, 1) >= least:
            break  # the others are slower even without bank conflicts
        free = MOST_SHARED_BYTES - spans.shared_bytes(tile)
        padded = spans.padded(spans.slice_numbers + free // (4 * warpgroups_of(tile)))
        if (cycles := padded.cycles(M_B, padded.wavefronts())) < least:
            least, best = cycles, padded
    return best


# By how much fewer warpgroups are slower: they hide each other's latencies.
SLOWER = {4: 1.0, 3: 1.05, 2: 1.2, 1: 1.5}


def production_tile(problem: ConvProblem) -> Tile:
    """Return the tile that takes the fewest cycles; the smallest one if no filter fits shared
    memory."""
    best = math.inf, tile_of(32, 1)
    for M_B in (32, 64, 96, 128):
        for warpgroups, slower in SLOWER.items():
            tile = tile_of(M_B, warpgroups)
            spans = spans_of(problem, tile) if M_B * warpgroups <= MOST_CHANNELS else None
            if spans is not None:
                blocks = blocks_for(problem.C_o, M_B)
                cycles = blocks * spans.cycles(M_B, spans.wavefronts()) * slower
                best = min(best, (cycles, tile), key=lambda one: one[0])
    return best[1]
