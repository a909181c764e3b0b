"""The report: what ``report.md`` shows of results, as Markdown and as one page that works offline.

The Jinja template holds the words; here are its tables, and the sentences that follow from rows.
The page is the Markdown, rendered, with its plots inside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from statistics import geometric_mean
from typing import Any

from convlab.bench import analysis, plots, table
from convlab.bench.analysis import Contender
from convlab.bench.results import Results
from convlab.bench.roofline import PIECE, Why
from convlab.bench.rows import Row
from convlab.image import PlotsMissing
from convlab.stages import short_name

TITLE = "Convolution on a GPU: stages and baselines"
NOTHING = "-"
ROOFLINE = "percent of the roofline"
SHORT = {"out of memory": "memory", "unsupported": NOTHING, "absent": NOTHING}
PACKAGES = ("convlab", "numba-cuda", "numba", "numpy", "torch")
ENVIRONMENT = ("gpu", "packages", "clocks_mhz")
CLOCK_SHARE = 0.97  # of the highest clock: a lower one is told
MIB = 2**20


@dataclass(frozen=True)
class Report:
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
                    f'<figure role="img" aria-label="{one[2]}">{self.pictures[one[1]]}'
                    f"<figcaption>{one[2]}</figcaption></figure>"
                ),
            ),
            (r"<tr>\n<td>(.*?)</td>", r'<tr>\n<th scope="row">\1</th>'),
            (r"<th( style=[^>]*)?>", r'<th scope="col"\1>'),
            (r"<table>(.*?)</table>", r'<div class="scrolls" tabindex="0">\g<0></div>'),
        ):
            body = re.sub(old, new, body, flags=re.DOTALL)
        page = files("convlab.bench").joinpath("report.html").read_text(encoding="utf-8")
        return page.replace("<!--{title}-->", escape(self.title)).replace("<!--{body}-->", body)


def make(
    results: Results,
    others: Sequence[Results] = (),
    why: Sequence[Why] = (),
    *,
    title: str = TITLE,
    pictures: str = "",
    brief: bool = False,
) -> Report:
    """The report on results; ``others`` are further runs to compare with it, ``why`` the traced
    counts; the names of pictures begin with ``pictures``. Each batch has its own tables, plots and
    means. ``brief`` leaves the tables of times, shares and methods away, as docs/results.md does.

    Raises :class:`~convlab.image.PlotsMissing` where matplotlib or Jinja is not installed.
    """
    try:
        import jinja2
        import markdown_it  # noqa: F401
    except ImportError as error:
        raise PlotsMissing(
            "reports need Jinja and markdown-it: run make report, or python -m pip install -e "
            "'.[plots]'"
        ) from error
    drawn: dict[str, str] = {}

    def figure(name: str, part: dict[str, Any]) -> str:
        plot, name = getattr(plots, name), f"{name}{part['suffix']}"
        about, drawn[file := f"{pictures}{name}.svg"] = plot(part["results"], name)
        return f"![{about}]({file})"

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("convlab.bench", ""),
        trim_blocks=True,
    )
    batches = analysis.by_batch(results)
    text = environment.get_template("report.md").render(
        title=title,
        brief=brief,
        figure=figure,
        results=results,
        environment={name: results.environment.get(name) or {} for name in ENVIRONMENT},
        date=str(results.environment.get("date") or "")[:10],
        packages=PACKAGES,
        sizes=", ".join(map(str, batches)) or NOTHING,
        interrupted=None if brief else interrupted(results),
        parts=[
            _part(one, why, f", batch {batch}" if len(batches) > 1 else "")
            for batch, one in batches.items()
        ],
        piece=str(PIECE),
        runs=[_run(results, other) for other in others],
        slow_clocks=_slow_clocks(results),
        commands=[f"`{command}`" for command in dict.fromkeys(results.commands)],
    )
    markdown = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return Report(title, markdown, drawn)


def _part(results: Results, why: Sequence[Why], of: str) -> dict[str, Any]:
    """What the template shows of one batch; ``of`` is added to headings."""
    best, over = analysis.best_stage(results), analysis.comparators(results)
    stages = analysis.stages(results)
    groups = [one for one in over if one.name not in results.systems]
    return {
        "of": of,
        "suffix": of.replace(", batch ", "-"),
        "results": results,
        "measured": any(row.ok for row in results.rows.values()),
        "headline": headline(results),
        "throughput": by_layer(results, "tflops"),
        "times": by_layer(results, "time_ms"),
        "speedups": None if best is None else speedup_table(results, best, over),
        "means": mean_table(results, stages, over),
        "group_means": mean_table(results, stages, groups),
        "roofline": by_layer(results, ROOFLINE),
        "memory": memory_table(results),
        "why": why_table(results, why),
        "missing": [
            {**one, "layers": analysis.layers_in_words(one["layers"], len(results.layers()))}
            for one in analysis.numberless(results.rows.values())
        ],
    }


def headline(results: Results) -> list[tuple[str, str]]:
    """The few numbers to see first: number and what it is."""
    best = analysis.best_stage(results)
    if best is None:
        return []
    found = []
    for over in analysis.comparators(results):
        important = over.name == analysis.BASELINE or over.name not in results.systems
        if important and over.name != best.name:
            mean = analysis.mean_speedup(results, best, over)
            found.append((mean, f"`{best.name}` over {over.title.partition(':')[0]}"))
    if split := analysis.best_stage(results, "3xtf32"):
        mean = analysis.mean_speedup(results, split, best)
        found.append((mean, f"`{split.name}` over `{best.name}`, as accurate"))
    told = [(f"{mean[0]:.2f} x{_of_few(mean, results)}", what) for mean, what in found if mean]
    speeds = [row.tflops for row in results.rows.values() if row.system == best.name and row.tflops]
    return [*told, (f"{max(speeds):.1f}", f"TFLOP/s of `{best.name}` at most")]


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _heads(results: Results) -> list[str]:
    return [layer.capitalize() for layer, _ in results.layers()]


def by_layer(results: Results, what: str) -> str:
    """``tflops``, ``time_ms`` or the percent of the roofline of every system on every layer."""

    def cell(row: Row | None) -> str:
        if what == ROOFLINE:
            return _number(analysis.percent(results, row), ".0f")
        value = getattr(row, what, None)
        if row is None or value is None:
            return NOTHING if row is None else SHORT.get(row.state, row.state)
        return f"{'' if row.settled else '~'}{digits(value)}"

    rows = [
        (f"`{one.name}`", *(cell(results.row(*layer, one.name)) for layer in results.layers()))
        for one in analysis.everybody(results)
    ]
    return table((what if what == ROOFLINE else "system", *_heads(results)), rows)


def digits(value: float) -> str:
    """Three digits that mean something: 0.123, 1.23, 12.3, 123."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 3 - whole)}f}"


def speedup_table(results: Results, one: Contender, over: Sequence[Contender]) -> str:
    """One stage over each of the others: the geometric mean, and layer by layer."""
    rows = []
    for other in over:
        mean = analysis.mean_speedup(results, one, other)
        if mean is not None and other.name != one.name:
            ratios = (analysis.speedup(results, one, other, at) for at in results.layers())
            cells = (_number(ratio, ".2f") for ratio in ratios)
            rows.append((f"`{other.name}`", f"**{mean[0]:.2f}**{_of_few(mean, results)}", *cells))
    return table((f"{one.name} over", "mean", *_heads(results)), rows)


def mean_table(results: Results, stages: Sequence[Contender], over: Sequence[Contender]) -> str:
    """Every stage over each of the others: the geometric mean over the layers that both have."""
    rows = []
    for other in over:
        means = {one.name: analysis.mean_speedup(results, one, other) for one in stages}
        if any(mean for name, mean in means.items() if name != other.name):
            cells = (
                f"{mean[0]:.2f}{_of_few(mean, results)}" if mean else NOTHING
                for mean in means.values()
            )
            rows.append((f"`{other.name}`", *cells))
    return table(("over", *(short_name(one.name) for one in stages)), rows)


def _of_few(mean: tuple[float, int], results: Results) -> str:
    """`` (7)`` after a mean over 7 layers, where there are more."""
    return "" if mean[1] == len(results.layers()) else f" ({mean[1]})"


def memory_table(results: Results) -> str:
    """Workspaces in MiB, computed and measured, and the mean of all memory over the tensors'."""
    rows = []
    for one in analysis.everybody(results):
        mine = [row for row in results.rows.values() if row.system == one.name and row.ok]
        cells = []
        for kind in (0, 1):
            known = [taken for row in mine if (taken := analysis.memory(row)[kind]) is not None]
            cells.append(_number(max(known) / MIB, ",.1f") if known else NOTHING)
        mean = analysis.memory_ratios(results, one.name)[1]
        rows.append((f"`{one.name}`", *cells, _number(mean, ".2f")))
    head = ("system", "workspace, computed", "workspace, measured", "all memory over the tensors'")
    return table(head, rows)


def why_table(results: Results, why: Sequence[Why]) -> str:
    """Counts of the simulator beside the measured share of the peak."""
    rows = []
    for one in why:
        precision = results.systems.get(one.stage, {}).get("precision", "fp32")
        peak = results.machine.peak_flops(precision)
        shares = [
            1e14 * row.tflops / peak
            for row in results.rows.values()
            if row.system == one.stage and row.tflops and peak
        ]
        fp32 = results.machine.fp32_flops
        allowed = one.allows(peak / fp32 if peak and fp32 else 1.0)
        counts = (one.requests, one.sectors, one.wavefronts, one.bytes_per_flop)
        rows.append((
            f"`{one.stage}`",
            *(_number(count, ".3g") for count in counts),
            NOTHING if allowed is None else f"{allowed:.0f} %",
            f"{geometric_mean(shares):.1f} %" if shares else NOTHING,
        ))  # fmt: skip
    head = (
        "stage", "requests / warp FMA", "sectors / warp FMA", "wavefronts / warp FMA",
        "bytes / FLOP", "counts allow", "measured",
    )  # fmt: skip
    return table(head, rows)


# Whole runs: was one interrupted, and how far do two agree?


def interrupted(results: Results) -> str | None:
    """A sentence that a run is incomplete, with its missing rows; None for a complete run."""
    if results.finished is not None:
        return None
    missing, asked = len(results.missing), len({**results.missing, **results.rows})
    return f"**The run was interrupted**, with {missing} of {asked} rows missing."


def _slow_clocks(results: Results) -> list[str]:
    """The rows where the GPU's clock was below its highest as timing began or ended."""
    found = []
    for row in results.rows.values():
        clocks = row.clocks_mhz or {}
        seen = [clock for name in ("before", "after") if (clock := clocks.get(name))]
        most = clocks.get("max")
        if row.ok and seen and most and min(seen) < CLOCK_SHARE * most:
            found.append(f"`{row.system}` on {row.layer} ({min(seen)} of {most} MHz)")
    return found


def _run(results: Results, other: Results) -> dict[str, Any]:
    """Another run beside this one: what differs between the two, and how far their times agree."""
    here, there = _facts(results, other), _facts(other, results)
    return {
        "changes": [
            (name, here.get(name) or NOTHING, there.get(name) or NOTHING)
            for name in dict.fromkeys((*here, *there))
            if here.get(name) != there.get(name)
        ],
        "interrupted": interrupted(other),
        "agreement": analysis.agreement(results, other),
    }


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
