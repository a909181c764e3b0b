"""Results of the ladder, made into the picture, the tables and the sample of the documentation.

``python -m convlab.bench.plots`` reads ``docs/results/*.json``, which ``convlab ladder --json``
wrote on a GPU, and rewrites what shows them: ``docs/images/ladder.svg`` and the tables between
the markers of README.md and docs/ladder.md. It also runs the ladder on the simulator, for the
sample of its output there. ``--check`` rewrites nothing and exits 1 where a file differs from what
the results give. The picture is plain SVG text, so that the same results give the same bytes with
every version of everything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from convlab.bench import calls, counters
from convlab.stages import Stage, short_name, stage_named
from convlab.workloads import LAYER_NAMES, paper_layer

README, PAGE, PICTURE = "README.md", "docs/ladder.md", "docs/images/ladder.svg"
RESULTS = "docs/results"
COUNTERS, COUNTERS_PAGE = "counters_h200", "docs/counters.md"
CALLS, CALLS_PAGE = "calls_h200", "docs/engines.md"
HEADLINE = "ladder_conv9_h200"  # the results that README.md shows
BY_CALLS = (
    f"By `python -m convlab.bench.calls --json {RESULTS}/{CALLS}.json`: "
    f"[{CALLS}.json](results/{CALLS}.json)."
)
SAMPLE_COMMAND = ("ladder", "--engine", "simulator")
NOTHING = "-"
# What of a result's environment is told, and how it is called.
DRIVER = {"driver": "driver", "cuda": "CUDA"}
PACKAGES = ("numba-cuda", "numba", "numpy")


@dataclass(frozen=True)
class Step:
    """One stage's result: no numbers where it failed.

    ``kernel_ms`` is the main kernel's own time: ``time_ms`` without the pre-passes.
    """

    stage: Stage
    ok: bool
    workspace_bytes: int | None
    time_ms: float | None = None
    time_spread: float | None = None
    tflops: float | None = None
    speedup: float | None = None
    kernel_ms: float | None = None
    kernel_tflops: float | None = None

    @property
    def number(self) -> str:
        """``s05``, or the name where the number is several stages'."""
        return short_name(self.stage.name)

    @property
    def idea(self) -> tuple[str, str]:
        """The stage's title in two: the idea's name, and the idea."""
        name, _, rest = self.stage.title.partition(": ")
        return name, rest

    @property
    def reach(self) -> float | None:
        """TFLOP/s without the pre-passes where these cost enough to be seen, else with them."""
        if self.tflops and self.kernel_tflops and self.kernel_tflops > 1.02 * self.tflops:
            return self.kernel_tflops
        return self.tflops


@dataclass(frozen=True)
class Results:
    """One file of results: a problem, a machine, and how each stage did."""

    name: str
    problem: dict[str, Any]
    device: str
    environment: dict[str, Any]
    steps: tuple[Step, ...]

    @classmethod
    def read(cls, path: Path) -> Results:
        """The results in a file.

        Raises ``ValueError`` naming a file that is not a GPU's result, or has unknown stages.
        """
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["engine"] != "gpu":
                raise ValueError(f"its engine is {document['engine']!r}: only a GPU's times count")
            flops = document["problem"]["flops"]
            return cls(
                path.stem,
                document["problem"],
                document["device"],
                document.get("environment") or {},
                tuple(_step(entry, flops) for entry in document["stages"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a result of the ladder: {error!r}") from error

    @property
    def layer(self) -> str | None:
        """``Conv9``: the paper's layer with these shapes, if any."""
        batch = self.problem["batch"]
        keys = ("input_shape", "weight_shape", "output_shape")
        for name in LAYER_NAMES:
            problem = paper_layer(name, batch)
            if all(list(getattr(problem, key)) == self.problem[key] for key in keys):
                return name.capitalize()
        return None

    @property
    def title(self) -> str:
        """``Conv9, batch 128, on an NVIDIA H200``"""
        layer = self.layer or "x".join(map(str, self.problem["input_shape"]))
        return f"{layer}, batch {self.problem['batch']}, on an {self.device}"

    @property
    def shapes(self) -> str:
        """The problem in words."""
        n, c, h, w = self.problem["input_shape"]
        c_o, _, h_f, w_f = self.problem["weight_shape"]
        return (
            f"{n} images of {h} x {w} pixels and {c} channels, {c_o} filters of {h_f} x {w_f}: "
            f"{self.problem['flops'] / 1e9:,.1f} GFLOP in float32"
        )

    @property
    def machine(self) -> str:
        """What it ran on, and when, as far as it is known."""
        gpu = self.environment.get("gpu") or {}
        known = gpu if isinstance(gpu, dict) else {}
        packages = self.environment.get("packages") or {}
        parts = [
            self.device,
            *(f"{label} {known[key]}" for key, label in DRIVER.items() if known.get(key)),
            *(f"{name} {packages[name]}" for name in PACKAGES if packages.get(name)),
            str(self.environment.get("date") or "")[:10],
        ]
        return ", ".join(part for part in parts if part)

    @property
    def command(self) -> str | None:
        """What to type to measure it again."""
        command = self.environment.get("command")
        return None if command is None else str(command)


def _step(entry: dict[str, Any], flops: int) -> Step:
    stage, workspace_bytes = stage_named(entry["name"]), entry["workspace_bytes"]
    if not entry["ok"]:  # whatever was measured means nothing
        return Step(stage, False, workspace_bytes)
    kernel_ms = list(entry["launch_ms"].values())[-1]
    return Step(
        stage,
        True,
        workspace_bytes,
        entry["time_ms"],
        entry["time_spread"],
        entry["tflops"],
        entry["speedup"],
        kernel_ms,
        flops / kernel_ms / 1e9,
    )


# The tables.


def short_table(results: Results) -> str:
    """README.md's table: what each stage adds and what that gains."""
    rows = (
        (
            f"[{step.number}](src/{step.stage.module.replace('.', '/')}.py)",
            step.stage.title,
            _cell(step, step.time_ms, 3),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
        )
        for step in results.steps
    )
    return _table(("stage", "idea", "ms", "TFLOP/s", "speedup"), "llrrr", rows)


def full_tables(every: Iterable[Results]) -> str:
    """docs/ladder.md's tables: all that is known of each stage, for each file of results."""
    return "\n".join(_section(results) for results in every)


def _section(results: Results) -> str:
    head = (
        "stage", "ms", "spread %", "TFLOP/s", "speedup", "main kernel ms", "main kernel TFLOP/s",
        "workspace MiB",
    )  # fmt: skip
    rows = (
        (
            f"[{step.stage.name}](../src/{step.stage.module.replace('.', '/')}.py)",
            _cell(step, step.time_ms, 3),
            _cell(step, step.time_spread, 1),
            _cell(step, step.tflops),
            _cell(step, step.speedup),
            _cell(step, step.kernel_ms, 3),
            _cell(step, step.kernel_tflops),
            NOTHING if step.workspace_bytes is None else f"{step.workspace_bytes / 2**20:,.1f}",
        )
        for step in results.steps
    )
    command = f" with `{results.command}`" if results.command else ""
    file = f"{results.name}.json"
    return (
        f"### {results.title}\n\n{results.shapes}.\n\n{_table(head, 'lrrrrrrr', rows)}\n"
        f"Measured{command} ({results.machine}): [{file}](results/{file}).\n"
    )


def _cell(step: Step, value: float | None, digits: int = 2) -> str:
    if not step.ok:
        return "failed"
    return NOTHING if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    rule = ["---:" if side == "r" else "---" for side in align]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, rule, *rows))


# The picture.

WIDTH, MARGIN = 860, 28
TOP, ROW, BAR = 108, 49, 17  # where the rows begin, their pitch, a bar's height
LABEL = 205  # to the right of the longest bar
CARD, INK, QUIET, LINE, BAD = "#ffffff", "#1f2328", "#59636e", "#d1d9e0", "#b3261e"
# By what the stages' names have: what they read, and the colour of their bars.
FAMILIES = {
    "": ("the input as it lies in memory", "#0969da"),
    "s03_": ("the im2col matrix", "#9a6700"),
    "im2win": ("the im2win tensor", "#1a7f37"),
}
LEGEND_AT = {2: (MARGIN, 296, 488), 3: (MARGIN, 262, 424, 590)}  # by how many families there are
TIMES = "\N{MULTIPLICATION SIGN}"
PALE = 0.3  # opacity of what a bar would be without pre-passes
FONT = "-apple-system, 'Segoe UI', 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"


def picture(results: Results) -> str:
    """An SVG with a bar for each stage: its TFLOP/s, its speedup and its idea."""
    bottom = TOP + ROW * len(results.steps)
    caption = list(_caption(results, bottom + 24))
    height = bottom + 24 + 19 * len(caption) + 6
    title = f"From seven loops to im2win: one convolution in {len(results.steps)} stages"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" font-family="{FONT}" font-size="13">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape('; '.join(map(_in_words, results.steps)))}</desc>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" fill="{CARD}" '
        f'stroke="{LINE}"/>',
        _text(MARGIN, 38, title, size=18, bold=True),
        _text(MARGIN, 61, f"{results.title}. Longer is faster."),
        *_legend(results.steps),
        *_bars(results.steps),
        *caption,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bars(steps: Sequence[Step]) -> Iterator[str]:
    longest = max((step.reach for step in steps if step.reach), default=1.0)
    scale = (WIDTH - 2 * MARGIN - LABEL) / longest
    before = None
    for row, step in enumerate(steps):
        y = TOP + row * ROW
        yield _heading(step, before, y + 12)
        yield from _bar(step, y + 18, scale)
        before = step


def _heading(step: Step, before: Step | None, y: float) -> str:
    """The stage's idea, above its bar; where it starts from, unless that is the row above."""
    name, rest = step.idea
    base = step.stage.builds_on
    if base and before is not None and before.stage.name not in base:
        rest += f" (starts again from {', '.join(map(short_name, base))})"
    return (
        f'<text x="{MARGIN}" y="{y}" fill="{INK}"><tspan fill="{QUIET}">{step.number}</tspan> '
        f'<tspan font-weight="600">{escape(name)}</tspan>'
        f'<tspan fill="{QUIET}" dx="8">{escape(rest)}</tspan></text>'
    )


def _bar(step: Step, y: float, scale: float) -> Iterator[str]:
    end = step.reach
    if step.tflops is None or end is None:
        yield _text(MARGIN, y + 13, "failed", fill=BAD, bold=True)
        return
    colour = FAMILIES[_family(step)][1]
    if end > step.tflops:
        yield _rect(MARGIN, y, scale * end, colour, opacity=PALE)
    yield _rect(MARGIN, y, scale * step.tflops, colour)
    ratio = "" if step.speedup is None else f"{_brief(step.speedup)}{TIMES}"
    slower = step.speedup is not None and step.speedup < 1
    x = MARGIN + scale * end + 9
    yield (
        f'<text x="{x:.1f}" y="{y + 13}" fill="{INK}">'
        f'<tspan font-weight="600">{_brief(step.tflops)}</tspan> TFLOP/s'
        f'<tspan dx="10" font-weight="600" fill="{BAD if slower else INK}">{ratio}</tspan></text>'
    )
    if end > step.tflops:
        alone = f"{_brief(end)} without pre-passes"
        yield _text(x, y + 29, alone, size=12, fill=QUIET)


def _family(step: Step) -> str:
    return next(mark for mark in reversed(FAMILIES) if mark in step.stage.name)


def _legend(steps: Sequence[Step]) -> Iterator[str]:
    shown = {"", "im2win"} | set(map(_family, steps))
    entries = [
        (f"reads {name}", colour, 1.0) for mark, (name, colour) in FAMILIES.items() if mark in shown
    ]
    places = LEGEND_AT[len(entries)]
    entries.append(("its main kernel alone, without pre-passes", FAMILIES["im2win"][1], PALE))
    for x, (text, colour, opacity) in zip(places, entries, strict=True):
        yield _rect(x, 78, 12, colour, opacity, height=12)
        yield _text(x + 18, 89, text, size=12, fill=QUIET)


def _caption(results: Results, y: float) -> Iterator[str]:
    paragraphs = (
        f"{results.shapes[0].upper()}{results.shapes[1:]}. {TIMES} is the speedup over the "
        "first bar, red where a stage is slower. im2win copies the input into an order in which "
        "the pixels that a filter sees at once lie together; that copy and every other pre-pass "
        "is part of the time. Each result was checked, element by element, against a float64 "
        "reference.",
        f"Measured on: {results.machine}.",
    )
    for text, columns, font in (
        *((paragraph, 116, None) for paragraph in paragraphs),
        (results.command or "", 104, MONO),
    ):
        for line in textwrap.wrap(text, columns):
            yield _text(MARGIN, y, line, size=12, fill=QUIET, font=font)
            y += 19


def _in_words(step: Step) -> str:
    """The bar for those who cannot see it."""
    if step.tflops is None:
        return f"{step.stage.name} failed"
    ratio = "" if step.speedup is None else f", {_brief(step.speedup)} times the first"
    return f"{step.stage.name} {_brief(step.tflops)} TFLOP/s{ratio}"


def _brief(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _rect(
    x: float, y: float, width: float, colour: str, opacity: float = 1.0, height: float = BAR
) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 13,
    fill: str = INK,
    bold: bool = False,
    font: str | None = None,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    family = f' font-family="{font}"' if font else ""
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{fill}"{weight}{family}>'
        f"{escape(text)}</text>"
    )


# The sample.


def sample() -> str:
    """What the ladder prints without a GPU, 80 columns wide."""
    code = "from convlab.cli import main; main()"
    output = subprocess.run(
        [sys.executable, "-c", code, *SAMPLE_COMMAND],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def same_but_for_rounding(one: str, other: str) -> bool:
    """Whether two samples differ in nothing but the last digit of an error / bound: NumPy sums
    the reference in another order on another CPU."""
    # What a library computes, whose work is not counted, it computes otherwise on another CPU.
    texts = (re.sub(r"OK {6} *[\d.e-]+(?= +-)", "LIBRARY", text) for text in (one, other))
    pieces = [re.split(r"(?<=OK {6} )( *[\d.e-]+)", text) for text in texts]
    if len(pieces[0]) != len(pieces[1]):
        return False
    for a, b in zip(*(part[::2] for part in pieces), strict=True):
        if a != b:
            return False
    errors = zip(*(map(float, part[1::2]) for part in pieces), strict=True)
    return all(abs(a - b) <= 0.011 * max(a, b) for a, b in errors)


def _sample_section(stored: str) -> str:
    """The stored section where it still says what the ladder does, else a new one."""
    new = f"```text\n{sample()}```\n"
    return stored if same_but_for_rounding(stored, new) else new


# The files.


def generated(root: Path) -> dict[Path, str]:
    """Every file that shows results, and what it has to hold.

    Raises ``ValueError`` saying what is missing: results, a file or its markers.
    """
    folder = root / RESULTS
    every = [Results.read(path) for path in sorted(folder.glob("ladder_*.json"))]
    every.sort(key=lambda results: results.name != HEADLINE)  # that one first
    if not every or every[0].name != HEADLINE:
        raise ValueError(f"there is no {folder / HEADLINE}.json: convlab ladder --json writes it")
    sections: dict[str, dict[str, Callable[[str], str]]] = {
        README: {"ladder": lambda _: f"\n{short_table(every[0])}\n"},
        PAGE: {"ladder": lambda _: f"\n{full_tables(every)}\n", "sample": _sample_section},
    }
    counted = folder / f"{COUNTERS}.json"
    if counted.is_file():
        document = json.loads(counted.read_text(encoding="utf-8"))
        sections[COUNTERS_PAGE] = {"counters": lambda _: f"\n{counters.table(document)}\n\n"}
    called = folder / f"{CALLS}.json"
    if called.is_file():
        host = json.loads(called.read_text(encoding="utf-8"))
        sections[CALLS_PAGE] = {"calls": lambda _: f"\n{calls.show(host)}\n{BY_CALLS}\n\n"}
    files = {root / name: filled(root / name, makers) for name, makers in sections.items()}
    return files | {root / PICTURE: picture(every[0])}


def filled(path: Path, makers: dict[str, Callable[[str], str]]) -> str:
    """The file's text with each marked section made anew; a maker gets what stands there now."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"there is no {path}: run this in convlab's source folder") from error
    for name, make in makers.items():
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        marked = re.compile(f"(?<={begin}\n).*?(?={end})", re.DOTALL)
        found = marked.findall(text)
        if len(found) != 1:
            raise ValueError(f"{path} must have {begin} and {end} once")
        section = make(found[0])
        text = text.replace(f"{begin}\n{found[0]}{end}", f"{begin}\n{section}{end}")
    return text


def differing(files: dict[Path, str]) -> list[Path]:
    """The files that do not hold what they have to."""
    return [
        path
        for path, text in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Regenerate, or with ``--check`` only compare; returns the exit code."""
    about = f"Make the ladder's picture and tables from {RESULTS}/*.json, and its sample."
    return regenerate("convlab.bench.plots", about, generated, arguments)


def regenerate(
    module: str,
    about: str,
    generated: Callable[[Path], dict[Path, str]],
    arguments: Sequence[str] | None,
) -> int:
    """The command of a module that makes files from results; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    parser.add_argument("--root", type=Path, default=Path(), help="convlab's source folder")
    chosen = parser.parse_args(arguments)
    try:
        files = generated(chosen.root)
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    stale = differing(files)
    for path in stale:
        if chosen.check:
            print(f"{path} is not what {RESULTS} gives: run make results", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8", newline="\n")
            print(f"wrote {path}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
