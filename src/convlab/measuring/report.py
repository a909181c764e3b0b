"""The report: what ``report.md`` shows of results, as Markdown and as one page that works offline.

The Jinja template holds the words; here are its tables, and the sentences that follow from rows.
The page is the Markdown, rendered, with its plots inside.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from statistics import geometric_mean
from typing import Any
from urllib.parse import quote, unquote

from convlab.ladder import short_name
from convlab.measuring import analysis, plots, table
from convlab.measuring.analysis import Contender
from convlab.measuring.photograph import plots_needed
from convlab.measuring.results import Layer, ResultRow, Results
from convlab.measuring.roofline import PIECE, Why
from convlab.support.values import HIDDEN

TITLE = "Convolution on a GPU: stages and baselines"
NOTHING = "-"
ROOFLINE = "percent of the roofline"
SHORT = {"out of memory": "memory", "unsupported": NOTHING, "absent": NOTHING}
CLOCK_SHARE = 0.97  # of the highest clock: a lower one is told


@dataclass(frozen=True)
class ReportPages:
    """A report as Markdown, and the SVG pictures that it shows, by the names of their files."""

    title: str
    markdown: str
    pictures: dict[str, str]

    def html(self) -> str:
        """One page that needs no other file and no network."""
        from markdown_it import MarkdownIt

        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown)
        for old, new in (
            (
                r'<p><img src="(.*?)" alt="(.*?)" /></p>',
                lambda one: (
                    f'<figure role="img" aria-label="{one[2]}">{self.pictures[unquote(one[1])]}'
                    f"<figcaption>{one[2]}</figcaption></figure>"
                ),
            ),
            (r"<tr>\n<td>(.*?)</td>", r'<tr>\n<th scope="row">\1</th>'),
            (r"<th( style=[^>]*)?>", r'<th scope="col"\1>'),
            (r"<table>(.*?)</table>", r'<div class="scrolls" tabindex="0">\g<0></div>'),
        ):
            body = re.sub(old, new, body, flags=re.DOTALL)
        page = files("convlab.measuring").joinpath("report.html").read_text(encoding="utf-8")
        return page.replace("<!--{title}-->", escape(self.title)).replace("<!--{body}-->", body)


def make(
    results: Results,
    others: Sequence[Results] = (),
    why: Sequence[Why] = (),
    *,
    title: str = TITLE,
    pictures: str = "",
    brief: bool = False,
) -> ReportPages:
    """The report on results; ``others`` are further runs to compare with it, ``why`` the traced
    counts; the names of pictures begin with ``pictures``. Each batch has its own tables, plots and
    means. ``brief`` leaves the tables of times, shares and methods away, as docs/results.md does.
    Raises :class:`~convlab.measuring.photograph.PlotsMissing` where matplotlib or Jinja is not
    installed."""
    with plots_needed("a report"):
        import jinja2
        import markdown_it  # noqa: F401
        from matplotlib import rc_context
    drawn: dict[str, str] = {}

    def figure(name: str, results: Results, of: str, about: str) -> str:
        salt = name + of.replace(", batch ", "-")
        file = f"{pictures}{salt}.svg"
        with rc_context({"text.parse_math": False}):  # a dollar sign in a name is no formula
            drawn[file] = getattr(plots, name)(results, salt)
        return f"![{about}]({quote(file)})"

    loader = jinja2.PackageLoader("convlab.measuring", "")
    environment = jinja2.Environment(loader=loader, trim_blocks=True)
    environment.filters["number"] = number
    environment.globals |= {"analysis": analysis, "piece": PIECE, "figure": figure}
    for_the_template = (
        headline, by_layer, speedup_table, mean_table, why_not_faster, interrupted, slow_clocks,
        changes,
    )  # fmt: skip
    environment.globals |= {function.__name__: function for function in for_the_template}
    text = environment.get_template("report.md").render(
        title=title,
        brief=brief,
        whole=in_words(results),
        others=[*map(in_words, others)],
        why=why,
    )
    return ReportPages(title, re.sub(r"\n{3,}", "\n\n", text).strip() + "\n", drawn)


# Characters that Markdown or HTML takes for markup, and what stands for them in a report: as long,
# so that a table stays one, and the same inside of code, where nothing can be escaped.
STANDS_FOR = str.maketrans({
    "<": "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}",
    ">": "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}",
    "[": "(", "]": ")", "`": "'", "|": "/", "*": "\N{ASTERISK OPERATOR}",
    "\\": "\N{SET MINUS}", "\n": " ", "\t": " ",
})  # fmt: skip
ADDRESS = re.compile(r"(?<=:)//|(?i:(?<=www)\.)")  # of what readers of Markdown make links


def as_words(text: str) -> str:
    """A stranger's text as words: without markup, links, pictures and hidden characters."""
    text = HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text).translate(STANDS_FOR)
    return ADDRESS.sub(lambda found: "\N{DIVISION SLASH}" * 2 if found[0] == "//" else " ", text)


def _all_in_words(value: Any) -> Any:
    """A value of JSON, its texts and names in words."""
    if isinstance(value, dict):
        return {as_words(name): _all_in_words(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_all_in_words, value)]
    return as_words(value) if isinstance(value, str) else value


def in_words(results: Results) -> Results:
    """The results with every text of their file in words, but for the layers' names, which are
    known ones."""

    def of_row(row: ResultRow) -> ResultRow:
        told = _all_in_words(vars(row) | {"layer": ""})
        return replace(row, **told | {"layer": row.layer})

    rows = [of_row(row) for row in results.rows.values()]
    return replace(
        results,
        machine=replace(results.machine, device=as_words(results.device)),
        environment=_all_in_words(results.environment),
        identity=as_words(results.identity),
        rows={row.key: row for row in rows},
        systems=_all_in_words(results.systems),
        commands=_all_in_words(results.commands),
        missing={(layer, batch, as_words(name)): None for layer, batch, name in results.missing},
    )


def number(value: float | None, form: str) -> str:
    """The value in that format; what says that there is none for None."""
    return NOTHING if value is None else format(value, form)


def headline(results: Results) -> list[tuple[str, str]]:
    """The few numbers to see first: number and what it is."""
    best, split = (analysis.best_stage(results, name) for name in ("fp32", "3xtf32"))
    if best is None:
        return []
    found = [
        (best.over(one), f"`{best.name}` over {one.title.partition(':')[0]}")
        for one in analysis.comparators(results)
        if (one.name == analysis.BASELINE or one.is_group) and one.name != best.name
    ]
    if split is not None:
        found.append((split.over(best), f"`{split.name}` over `{best.name}`, as accurate"))
    told = [(f"{ratio.mean:.2f} x{ratio.few}", what) for ratio, what in found if ratio.mean]
    most = max(row.tflops or 0 for row in best.measured())
    return [*told, (f"{most:.1f}", f"TFLOP/s of `{best.name}` at most")]


def _table_by_layer(head: Sequence[str], results: Results, rows: Iterable[Sequence[str]]) -> str:
    return table((*head, *(layer.capitalize() for layer, _ in results.layers())), rows)


def by_layer(results: Results, what: str, brief: bool = False) -> str:
    """``tflops``, ``time_ms`` or the percent of the roofline of every system on every layer, or in
    ``brief`` of the stages and the fastest of each library."""

    def cell(row: ResultRow | None) -> str:
        if what == ROOFLINE:
            return number(analysis.percent(results, row), ".0f")
        value = getattr(row, what, None)
        if row is None or value is None:
            return NOTHING if row is None else SHORT.get(row.state, row.state)
        return f"{'' if row.settled else '~'}{digits(value)}"

    def row(one: Contender, layer: Layer) -> ResultRow | None:
        return one.best(layer) or results.row(*layer, one.name)

    everybody = analysis.in_few_rows if brief else analysis.everybody
    rows = [
        (f"`{one.name}`", *(cell(row(one, layer)) for layer in results.layers()))
        for one in everybody(results)
    ]
    return _table_by_layer([what if what == ROOFLINE else "system"], results, rows)


def digits(value: float) -> str:
    """Three digits that mean something: 0.123, 1.23, 12.3, 123."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 3 - whole)}f}"


def speedup_table(one: Contender, over: Iterable[Contender]) -> str:
    """One stage over each of the others: the geometric mean, and layer by layer."""
    ratios = {other.name: one.over(other) for other in over if other.name != one.name}
    rows = [
        (f"`{name}`", f"**{ratio.mean:.2f}**{ratio.few}",
         *(number(value, ".2f") for value in ratio.by_layer))
        for name, ratio in ratios.items() if ratio.mean is not None
    ]  # fmt: skip
    return _table_by_layer((f"{one.name} over", "mean"), one.results, rows)


def mean_table(results: Results, over: Iterable[Contender]) -> str:
    """Every stage over each of the others: the geometric mean over the layers that both have."""
    stages, rows = analysis.stages(results), []
    for other in over:
        ratios = {one.name: one.over(other) for one in stages}
        if any(ratio.known for name, ratio in ratios.items() if name != other.name):
            cells = [
                number(ratio.mean, ".2f") + (ratio.few if ratio.known else "")
                for ratio in ratios.values()
            ]
            rows.append((f"`{other.name}`", *cells))
    return table(("over", *(short_name(one.name) for one in stages)), rows)


def why_not_faster(
    results: Results, why: Iterable[Why]
) -> Iterator[tuple[Why, float | None, float | None]]:
    """The simulator's counts, and the peak's share that they allow and that was reached (%)."""
    machine = results.machine
    for one in why:
        peak = machine.peak_flops(results.systems.get(one.stage, {}).get("precision", "fp32"))
        speeds = [
            row.tflops for row in results.rows.values() if row.system == one.stage and row.tflops
        ]
        pace = peak / machine.fp32_flops if peak and machine.fp32_flops else 1.0
        share = 1e14 * geometric_mean(speeds) / peak if speeds and peak else None
        yield one, one.allows(pace), share


# Whole runs: was one interrupted, and how far do two agree?


def interrupted(results: Results) -> str | None:
    """A sentence that a run is incomplete, with its missing rows; None for a complete run."""
    if results.finished is not None:
        return None
    missing, asked = len(results.missing), len({**results.missing, **results.rows})
    return f"**The run was interrupted**, with {missing} of {asked} rows missing."


def slow_clocks(results: Results) -> list[str]:
    """The rows where the GPU's clock was below its highest as timing began or ended."""
    found = []
    for row in results.rows.values():
        clocks = row.clocks_mhz or {}
        seen = [clock for name in ("before", "after") if (clock := clocks.get(name))]
        most = clocks.get("max")
        if row.ok and seen and most and min(seen) < CLOCK_SHARE * most:
            found.append(f"`{row.system}` on {row.layer} ({min(seen)} of {most} MHz)")
    return found


def changes(one: Results, other: Results) -> list[tuple[str, str, str]]:
    """Return the differences between two runs: name, value here and value there."""
    here, there = _facts(one, other), _facts(other, one)
    return [
        (name, here.get(name) or NOTHING, there.get(name) or NOTHING)
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    ]


def _facts(one: Results, other: Results) -> dict[str, str | None]:
    return {
        "date, UTC": str(one.environment.get("date") or "")[:16].replace("T", " "),
        "GPU": one.device,
        "driver": (one.environment.get("gpu") or {}).get("driver"),
        "Python": one.environment.get("python"),
        "identity of GPU, packages and code": one.identity,
        **(one.environment.get("packages") or {}),
        "systems of one run alone": ", ".join(
            f"`{name}`" for name in one.systems if name not in other.systems
        ),
    }
