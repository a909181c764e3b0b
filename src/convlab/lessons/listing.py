"""The im2win paper's Algorithm 3, line by line, beside the lines of m11 that do the same.

The paper (000) was read from a scanned copy. Where its letters are damaged, the line says what the
arithmetic needs; a test runs the listing on small matrices. The code is read in the stage's file.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from convlab.lessons.parts import lines_between, part_code, stage_code

# S and R are shared memory and registers, I the im2win tensor, F the filter, O the output.
ALGORITHM_3 = (
    "registers R_I[2][N_T], R_F[2][M_T], R_O[M_T x N_T]",
    "shared memory S_I[2][K_B x N_B], S_F[2][M_B x K_B]",
    "S_I[0] <- load K_B x N_B of I(0, by)",
    "S_F[0] <- load M_B x K_B of F(bx, 0)",
    "__syncthreads()",
    "R_I[0] <- vec_load N_T of S_I[0][0 x N_B]",
    "R_F[0] <- vec_load M_T of S_F[0][M_B x 0]",
    "for kk = 0 to K / K_B - 1 do",
    "  for k' = 1 to K_B - 1 do",
    "    R_I[load] <- vec_load N_T of S_I[store][k' x N_B]",
    "    R_F[load] <- vec_load M_T of S_F[store][M_B x k']",
    "    R_O += R_F[store] x R_I[store]",
    "  if kk != K / K_B - 1 then",
    "    S_I[load] <- load K_B x N_B of I(kk + 1, by)",
    "    S_F[load] <- load M_B x K_B of F(bx, kk + 1)",
    "    __syncthreads()",
    "    R_I[0] <- vec_load N_T of S_I[store][0 x N_B]",
    "    R_F[0] <- vec_load M_T of S_F[store][M_B x 0]",
    "  R_O += R_F[1] x R_I[1]",
    "O(bx, by) <- store R_O[M_T x N_T]",
)


class _Beside(NamedTuple):
    """Lines of the algorithm, and where m11 does the same: a part, or lines of its kernel."""

    numbers: range
    first: str
    last: str = ""
    part: str = ""


BESIDE = (
    _Beside(range(1, 2), "R_F0, R_F1 =", "R_O ="),
    _Beside(range(2, 3), "S_F =", "S_I ="),
    _Beside(range(3, 5), "fetch(windows, packed, first_F, first_I, t, 0", "store("),
    _Beside(range(5, 6), "cuda.syncthreads()  # line 5"),
    _Beside(range(6, 8), "read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 6-7"),
    _Beside(range(8, 9), "for slice_ in range("),
    # m11 fetches the next slice before it multiplies this one.
    _Beside(range(0), "if slice_ < SLICES:\nfetch(", "issue_loads()"),
    _Beside(range(9, 10), "steps(S_F, S_I"),
    _Beside(range(10, 12), "read(S_F, S_I, at_F, at_I, k + 1", part="two_steps"),
    _Beside(range(12, 13), "multiply(R_F0", part="two_steps"),
    # The second of two steps, with the registers exchanged.
    _Beside(range(0), "read(S_F, S_I, at_F, at_I, k + 2", "multiply(R_F1", "two_steps"),
    _Beside(range(13, 14), "if slice_ < SLICES:\nrow0 ="),
    _Beside(range(14, 16), "store(fetched_F, fetched_I, t, row0, S_F, S_I)  # lines 14-15"),
    _Beside(range(16, 17), "cuda.syncthreads()  # line 16"),
    _Beside(range(17, 19), "read(S_F, S_I, at_F, at_I, 0, R_F0, R_I0)  # lines 17-18"),
    _Beside(range(19, 20), "multiply(R_F1, R_I1, R_O)  # line 19"),
    _Beside(range(20, 21), "write("),
)


@dataclass(frozen=True)
class Listing:
    """An algorithm beside code: rows of the paper's lines and of the code that does the same."""

    title: str
    rows: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]

    def __str__(self) -> str:
        wide = max(len(line) for paper, _ in self.rows for line in paper)
        text = [self.title]
        for paper, code in self.rows:
            for number in range(max(len(paper), len(code))):
                left = paper[number] if number < len(paper) else ""
                right = code[number] if number < len(code) else ""
                text.append(f"{left:{wide}}  {right}".rstrip())
        return "\n".join(text)

    def as_html(self) -> str:
        """Return a table that reads on light and dark pages, and scrolls on narrow ones."""
        cell = '<td style="text-align:left;vertical-align:top">{}</td>'
        style = "margin:0;background:none;font-family:monospace;white-space:pre;word-break:normal"
        made = f'<pre style="{style}">{{}}</pre>'.format
        rows = "".join(
            f"<tr>{''.join(cell.format(made(escape(chr(10).join(side)))) for side in row)}</tr>"
            for row in self.rows
        )
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in ("the paper", "m11"))
        caption = f"<caption>{escape(self.title)}</caption>"
        wide = "width:max-content;max-width:none;table-layout:auto"
        table = f'<table style="{wide}">{caption}<tr>{head}</tr>{rows}</table>'
        return f'<div style="overflow-x:auto">{table}</div>'

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display({"text/html": self.as_html(), "text/plain": str(self)}, raw=True)


def algorithm_3() -> Listing:
    """Return Algorithm 3 of the im2win paper beside the lines of m11."""
    kernel = stage_code("m11", hidden=["find_windows", "clear", "write"]).splitlines()
    rows = []
    for one in BESIDE:
        source = part_code("m11", one.part).splitlines() if one.part else kernel
        code = lines_between(source, one.first, one.last or one.first.partition("\n")[0])
        numbered = tuple(f"{number:2} {ALGORITHM_3[number - 1]}" for number in one.numbers)
        rows.append((numbered, tuple(line.partition("  #")[0] for line in code)))
    return Listing("Algorithm 3 of the im2win paper, and the lines of m11", tuple(rows))
