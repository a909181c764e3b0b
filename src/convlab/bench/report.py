"""The report: what ``report.md`` shows of results, as Markdown and as one page that works offline.

The Jinja template holds the words; here are its tables, and the sentences that follow from rows.
The page is the Markdown, rendered, with its plots inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from statistics import geometric_mean
from typing import Any

from convlab.bench import analysis, plots
from convlab.bench.analysis import Contender
from convlab.bench.measured import table
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
TILE = re.compile(r"tilesize(\d+(?:x\d+)+)")


@dataclass(frozen=True)
class Table:
    """Cells as text; the first ``left`` columns hold words, the others numbers."""

    head: Sequence[str]
    rows: Sequence[tuple[str, ...]]
    left: int = 1

    def __str__(self) -> str:
        return table(self.head, self.rows, self.left)

    def __bool__(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class Report:
    """A report as Markdown, and its figures, whose files' names begin with ``pictures``."""

    title: str
    markdown: str
    figures: tuple[plots.Figure, ...]
    pictures: str = ""

    def files(self) -> dict[str, str]:
        """The pictures that the Markdown shows, by the names of their files."""
        return {
            f"{self.pictures}{one.name}.svg": plots.with_dark_mode(one.wide) for one in self.figures
        }

    def html(self) -> str:
        """One page that needs no other file and no network."""
        from markdown_it import MarkdownIt

        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown)
        for one in self.figures:
            image = rf'<p><img src="{re.escape(self.pictures + one.name)}\.svg" alt="(.*?)" /></p>'
            body = re.sub(image, partial(_html_figure, one), body)
        for old, new in (
            (r"<tr>\n<td>(.*?)</td>", r'<tr>\n<th scope="row">\1</th>'),
            (r"<th( style=[^>]*)?>", r'<th scope="col"\1>'),
            (r"<table>(.*?)</table>", r'<div class="scrolls" tabindex="0">\g<0></div>'),
        ):
            body = re.sub(old, new, body, flags=re.DOTALL)
        # A long name may break after an underscore.
        body = re.sub(r"<code>.*?</code>", lambda one: one[0].replace("_", "_<wbr>"), body)
        page = files("convlab.bench").joinpath("report.html").read_text(encoding="utf-8")
        return page.replace("<!--{title}-->", escape(self.title)).replace("<!--{body}-->", body)


def _html_figure(one: plots.Figure, image: re.Match[str]) -> str:
    """Both pictures, in the page's own colours by the names that it has for them."""
    about, shown = image[1], ""
    for width, svg in (("wide", one.wide), ("narrow", one.narrow)):
        for name, colour in plots.LIGHT.items():
            svg = svg.replace(colour, f"var(--{name})")
        shown += f'<div class="{width}" aria-hidden="true">{svg}</div>'
    return (
        f'<figure role="img" aria-label="{about}">{shown}<figcaption>{about}</figcaption></figure>'
    )


def make(
    results: Results,
    others: Sequence[Results] = (),
    why: Sequence[Why] = (),
    *,
    title: str = TITLE,
    pictures: str = "",
    draw: bool = True,
    brief: bool = False,
) -> Report:
    """The report on results; ``others`` are further runs to compare with it, ``why`` the traced
    counts. Each batch has its own tables, plots and means. ``brief`` leaves the tables of times,
    shares and methods away, as docs/results.md does; ``draw=False`` the plots.

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
    figures: list[plots.Figure] = []

    def figure(name: str, part: dict[str, Any]) -> str:
        if not draw:
            return ""
        plot: Callable[[Results, str], plots.Figure] = getattr(plots, name)
        figures.append(plot(part["results"], f"{name}{part['suffix']}"))
        return f"![{figures[-1].about}]({pictures}{figures[-1].name}.svg)"

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
        runs=[_run(number, results, other) for number, other in enumerate(others, start=2)],
        slow_clocks=_slow_clocks(results),
        commands=[f"`{command}`" for command in dict.fromkeys(results.commands)],
    )
    markdown = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"
    return Report(title, markdown, tuple(figures), pictures)


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
            for one in analysis.numberless(results)
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


def _layer_head(results: Results, *first: str) -> tuple[str, ...]:
    return (*first, *(layer.replace("conv", "Conv") for layer, _ in results.layers()))


def by_layer(results: Results, what: str) -> Table:
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
    return Table(_layer_head(results, what if what == ROOFLINE else "system"), rows)


def digits(value: float) -> str:
    """Three digits that mean something: 0.123, 1.23, 12.3, 123."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:.{max(0, 3 - whole)}f}"


def speedup_table(results: Results, one: Contender, over: Sequence[Contender]) -> Table:
    """One stage over each of the others: the geometric mean, and layer by layer."""
    rows = []
    for other in over:
        mean = analysis.mean_speedup(results, one, other)
        if mean is not None and other.name != one.name:
            ratios = (analysis.speedup(results, one, other, at) for at in results.layers())
            cells = (_number(ratio, ".2f") for ratio in ratios)
            rows.append((f"`{other.name}`", f"**{mean[0]:.2f}**{_of_few(mean, results)}", *cells))
    return Table(_layer_head(results, f"{one.name} over", "mean"), rows)


def mean_table(results: Results, stages: Sequence[Contender], over: Sequence[Contender]) -> Table:
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
    return Table(("over", *(short_name(one.name) for one in stages)), rows)


def _of_few(mean: tuple[float, int], results: Results) -> str:
    """`` (7)`` after a mean over 7 layers, where there are more."""
    return "" if mean[1] == len(results.layers()) else f" ({mean[1]})"


def memory_table(results: Results) -> Table:
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
    return Table(head, rows)


def why_table(results: Results, why: Sequence[Why]) -> Table:
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
        tightest = one.on(results.machine, precision).tightest
        counts = (one.requests, one.sectors, one.wavefronts, one.bytes_per_flop)
        rows.append((
            f"`{one.stage}`",
            *(_number(count, ".3g") for count in counts),
            NOTHING if tightest is None else f"{tightest[1]:.0f} %",
            f"{geometric_mean(shares):.1f} %" if shares else NOTHING,
        ))  # fmt: skip
    head = (
        "stage", "requests / warp FMA", "sectors / warp FMA", "wavefronts / warp FMA",
        "bytes / FLOP", "counts allow", "measured",
    )  # fmt: skip
    return Table(head, rows)


# Whole runs: was one interrupted, and how far do two agree?


def interrupted(results: Results) -> str | None:
    """A sentence that a run is incomplete and how many rows are missing; None for a complete run.

    An older file does not name the ``missing`` rows: there all its systems on all its layers count.
    """
    if results.finished is not None:
        return None
    layers, systems = results.layers(), list(results.systems)
    missing = len(results.missing) or sum(
        results.row(*layer, name) is None for layer in layers for name in systems
    )
    tried = f"{_count(len(systems), 'system')} on {_count(len(layers), 'layer')}"
    if not missing:
        return f"**The run did not come to its end**, but of {tried} no row is missing."
    rows = f"{_count(missing, 'row')} {'is' if missing == 1 else 'are'} missing"
    return f"**The run was interrupted**, with {tried} so far: {rows}."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


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


def _run(number: int, results: Results, other: Results) -> dict[str, Any]:
    """Another run beside this one: what differs between the two, how far their times agree, and
    where a library chose another kernel."""
    agreed = [
        (f"`{name}`", str(layers), f"{median:.2f}", f"{largest:.2f}")
        for name, layers, median, largest in analysis.agreement(results, other)
    ]
    head = ("system", "layers", "median difference, %", "largest difference, %")
    kernels = ("system", "layer", "here", "there", "the other's time, %")
    return {
        "heading": {2: "A second run", 3: "A third run"}.get(number, f"Run {number}"),
        "changes": Table(("", "this run", "that run"), [*_changes(results, other)], left=3),
        "interrupted": interrupted(other),
        "agreement": Table(head, agreed),
        "kernels": Table(kernels, [*_other_kernels(results, other)], left=4),
    }


def _changes(results: Results, other: Results) -> Iterator[tuple[str, str, str]]:
    """Date, GPU, driver, package versions, code and systems, each where the runs differ."""
    here, there = _facts(results), _facts(other)
    for name in dict.fromkeys((*here, *there)):
        if here.get(name) != there.get(name):
            yield name, here.get(name) or NOTHING, there.get(name) or NOTHING
    here_only, there_only = (
        ", ".join(f"`{name}`" for name in one.systems if name not in two.systems)
        for one, two in ((results, other), (other, results))
    )
    if here_only or there_only:
        yield "systems of one run alone", here_only or NOTHING, there_only or NOTHING


def _facts(one: Results) -> dict[str, str | None]:
    return {
        "date, UTC": str(one.environment.get("date") or "")[:16].replace("T", " "),
        "GPU": one.device,
        "driver": (one.environment.get("gpu") or {}).get("driver"),
        "Python": one.environment.get("python"),
        "identity of GPU, packages and code": one.identity,
        **(one.environment.get("packages") or {}),
    }


def _other_kernels(results: Results, other: Results) -> Iterator[tuple[str, ...]]:
    for key, row in results.rows.items():
        again = other.rows.get(key)
        baseline = results.systems[row.system]["kind"] == "baseline"
        if not (baseline and again and row.time_ms and again.time_ms):
            continue
        here, there = _kernels(row.algorithm), _kernels(again.algorithm)
        swapped = here[1] in there[1:] and there[1] in here[1:]
        if here[0] != there[0] or swapped:
            continue
        change = 100 * (again.time_ms / row.time_ms - 1)
        yield f"`{row.system}`", row.layer, here[1], there[1], f"{change:+.1f}"


def _kernels(algorithm: str | None) -> tuple[str, ...]:
    """What a row says before its kernels, such as which package made them, then their names, the
    one that took longest first."""
    said, colon, named = (algorithm or "none named").rpartition(": ")
    return said + colon, *map(_short, named.split("; "))


def _short(kernel: str) -> str:
    """The tile in a kernel's name, or that name without types and where it is from."""
    if tile := TILE.search(kernel):
        return f"tiles of {tile[1]}"
    name = kernel.removeprefix("void ").replace("(anonymous namespace)::", "")
    return re.split("[<(]", name)[0].rpartition("::")[2]
