"""A page for each stage: idea, code, what changed, its trace, its machine code, its results."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from convlab.bench.ladder_results import Results
from convlab.site import listings, trace_pictures
from convlab.site.links import STAGE_PAGES, Links, listing_name
from convlab.site.markup import figure, prose, raw, table
from convlab.stages import LADDER, Stage, stage_named
from convlab.tracing import Trace
from convlab.workloads import MODEL

LINT = "docs/results/lint_conv9_sm90.json"
LINT_COMMAND = f"convlab lint --layer conv9 --arch sm_90 --json {LINT}"
NOTHING = "-"


def stage_page(
    root: Path, stage: Stage, trace: Trace | None, every: list[Results], links: Links
) -> str:
    """The page, as Markdown."""
    file = root / f"src/{stage.module.replace('.', '/')}.py"
    text = file.read_text(encoding="utf-8")
    return "\n".join([
        f"# {stage.name}\n",
        f"**{prose(stage.title)}.**\n",
        _facts(root, stage),
        "## The idea\n",
        _idea(text),
        *_changes(root, stage, text),
        *_results(root, stage, every),
        *_pictures(root, stage, trace),
        *_machine_code(root, stage),
        "## The code\n",
        _code(file.relative_to(root).as_posix(), text, links),
    ])  # fmt: skip


def _facts(root: Path, stage: Stage) -> str:
    follow = [other for other in LADDER if stage.name in other.builds_on]
    position = LADDER.index(stage)
    rows = [
        ("source", f"{stage.source} ([the papers](../papers.md))"),
        ("builds on", _names(map(stage_named, stage.builds_on)) or "nothing: it is the first"),
        ("built on by", _names(follow) or "nothing yet"),
    ]
    if f"\n## {stage.name}\n" in (root / "docs/ladder.md").read_text(encoding="utf-8"):
        rows.append(("more", f"[why, and what it gained](../ladder.md#{stage.name})"))
    lesson = lesson_of(root, stage)
    if lesson is not None:
        rows.append(("lesson", f"[{lesson.stem}](../../lessons/{lesson.name})"))
    around = []
    if position > 0:
        around.append(f"before it {_names([LADDER[position - 1]])}")
    if position + 1 < len(LADDER):
        around.append(f"after it {_names([LADDER[position + 1]])}")
    rows.append(("on the ladder", ", ".join(around)))
    return table((f"stage {position + 1} of {len(LADDER)}", ""), "ll", rows)


def _names(stages: Any) -> str:
    return ", ".join(f"[{stage.name}]({stage.name}.md)" for stage in stages)


def lesson_of(root: Path, stage: Stage) -> Path | None:
    """The notebook that teaches a stage: ``lessons/05_*.ipynb`` for s05."""
    number = stage.name[1:3]
    return next(iter(sorted((root / "lessons").glob(f"{number}_*.ipynb"))), None)


def _idea(text: str) -> str:
    docstring = ast.get_docstring(ast.parse(text)) or ""
    _, _, rest = docstring.partition("\n\n")
    return f"{prose(rest)}\n"


def _code(path: str, text: str, links: Links) -> str:
    links.listed.add(path)
    alone = f'<p class="path"><a href="../{listing_name(path)}.html">{path}</a></p>'
    return raw(alone + listings.listing(text, anchors=False))


def _changes(root: Path, stage: Stage, text: str) -> Iterator[str]:
    after = listings.without_docstring(text)
    for name in stage.builds_on:
        base = stage_named(name)
        path = next(path for path, known in STAGE_PAGES.items() if known == base.name)
        before = listings.without_docstring((root / path).read_text(encoding="utf-8"))
        came, went = listings.changed_lines(before, after)
        yield f"## What changed from {name}\n"
        caption = (
            f'From <a href="{name}.html">{name}</a> to {stage.name}: {came} lines came '
            f'(<span class="key came"></span> with +), {went} went '
            f'(<span class="key went"></span> with -).'
        )
        fold = came + went > 150
        body = listings.difference(before, after)
        if fold:
            body = f"<details><summary>Show all {came + went} lines</summary>{body}</details>"
        yield figure(body, caption, "changes")


def _results(root: Path, stage: Stage, every: list[Results]) -> Iterator[str]:
    yield "## On a GPU\n"
    rows, devices = [], set()
    for results in every:
        for step in results.steps:
            if step.stage.name == stage.name and step.tflops is not None:
                devices.add(results.device)
                layer = f"{results.layer or results.name}, batch {results.problem['batch']}"
                rows.append((
                    layer, f"{step.time_ms:.3f}", f"{step.tflops:.2f}",
                    NOTHING if step.speedup is None else f"{step.speedup:.2f}",
                    f"{step.kernel_ms:.3f}", f"{(step.workspace_bytes or 0) / 2**20:,.1f}",
                ))  # fmt: skip
    if not rows:
        yield "It has not been measured yet.\n"
        return
    head = ("layer", "ms", "TFLOP/s", "speedup over s01", "main kernel ms", "workspace MiB")
    yield table(head, "lrrrrr", rows)
    how = "../measuring.md" if (root / "docs/measuring.md").is_file() else "../judging.md"
    yield (
        f"\nMeasured on an {', '.join(sorted(devices))}. Times are medians with every layout "
        'transform; "main kernel" is the last kernel alone. '
        f"[All measurements](../measurements.md), [how they are made]({how}).\n"
    )


def _pictures(root: Path, stage: Stage, trace: Trace | None) -> Iterator[str]:
    yield "## What it asks of memory\n"
    if trace is None:
        yield "An array library does its work, so there is no kernel to trace.\n"
        return
    first, second = trace_pictures.captions(trace)
    shapes = trace_pictures.shapes_of(stage.name, MODEL)
    yield figure(trace_pictures.footprints(trace.main, shapes), first, "footprints")
    yield figure(trace_pictures.requests(trace.main, f"{stage.name}.py"), second, "requests")
    yield (
        f"`convlab trace {stage.name} --html trace.html` makes a [page](../trace.md) on which to "
        "step through every request.\n"
    )


def lint_rows(root: Path) -> list[dict[str, Any]]:
    """What the compile gate said of every kernel, as :data:`LINT_COMMAND` wrote it."""
    found: list[dict[str, Any]] = json.loads((root / LINT).read_text(encoding="utf-8"))
    return found


def _machine_code(root: Path, stage: Stage) -> Iterator[str]:
    rows = [row for row in lint_rows(root) if row["stage"] == stage.name]
    yield "## Its machine code\n"
    if not rows:
        yield "It has no kernels of its own to compile.\n"
        return
    head = (
        "kernel", "registers (budget)", "shared memory, bytes", "spilled, bytes",
        "128-bit accesses", "verdict",
    )  # fmt: skip
    yield table(head, "lrrrll", (
        (
            f"`{row['kernel']}`", f"{row['registers']} ({row['budget']})",
            f"{row['shared_bytes']:,}", str(row["spill_bytes"]),
            ", ".join(f"{times} {kind}" for kind, times in row["wide"].items()) or "none",
            "fine" if not row["findings"] else escape("; ".join(row["findings"])),
        )
        for row in rows
    ))  # fmt: skip
    yield (
        f"\nCompiled for sm_90 (an H200) with the production tile of Conv9, by `{LINT_COMMAND}`: "
        "no GPU is needed. LDG and STG load from and store to global memory, LDS and STS shared; "
        "what is counted is instructions in the code. [What the compile gate holds]"
        "(../compile-gate.md).\n"
    )
