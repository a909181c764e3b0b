"""Make the documentation's tables and pictures from the stored results: ``make results``.

The command reads docs/results and fills the marked sections of README.md and of the pages in docs.
With ``--check`` it writes nothing, and exits 1 if a file differs from the one that it would write.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ladder_results
import papers
import sanitizers
from ladder_results import HEADLINE, ladder_picture, ladder_section, ladder_table
from papers import RESULTS

from convlab.ladder import LADDER, short_name, stages_of
from convlab.measuring import analysis, plots, report, table
from convlab.measuring.analysis import Contender, Speedup, contender
from convlab.measuring.cases import M15, SIZES
from convlab.measuring.results import ResultRow, Results, open_results
from convlab.problems.workloads import GROUPED, LAYER_NAMES, UNSEEN, UNTUNED
from convlab.support.values import shown

BENCH = f"{RESULTS}/bench_h200.json"
LINT = f"{RESULTS}/lint_conv9_sm90"
PICTURE, PICTURES = "docs/images/ladder.svg", "bench-"
OF = "dinput", "dweight"  # the gradients, as the names of rows have them
Maker = Callable[[str], str]


def generated() -> dict[Path, str]:
    """Return the content of every file that shows results.

    Raises ``ValueError`` naming a file that is missing or is not a result.
    """
    root = papers.ROOT
    headline = root / RESULTS / f"{HEADLINE}.json"
    if not headline.is_file():
        raise ValueError(f"there is no {headline}: convlab ladder --json writes it")
    ladder = _ladder(headline)
    bench = open_results(root / BENCH)
    brief = report.make(bench, title="", pictures=f"images/{PICTURES}", brief=True)
    shown: dict[str, Maker] = {
        "sample": sample_section,
        "ladder": lambda _: f"\n{ladder_section(ladder)}\n",
        "bench": lambda _: f"\n{brief.markdown}\n",
        "papers": lambda _: f"\n{papers.show_claims()}\n",
        "compilers": lambda _: f"\n{compilers_table()}\n",
    }
    shown |= {name: partial(_section, section) for name, section in SECTIONS.items()}
    readme: dict[str, Maker] = {
        "ladder": lambda _: f"\n{ladder_table(ladder)}\n",
        "bench": lambda _: f"\n{_speedups(bench)}\n",
    }
    drawn = {root / "docs" / name: (text, root / BENCH) for name, text in brief.pictures.items()}
    drawn[root / PICTURE] = ladder_picture(ladder), headline
    files = {file: _kept(file, *of_it) for file, of_it in drawn.items()}
    pages = *sorted((root / "docs").glob("*.md")), *sorted((root / "docs/notes").glob("*.md"))
    for page in (root / "README.md", *pages):
        makers = readme if page == root / "README.md" else shown
        try:
            text = filled(page.read_text(encoding="utf-8"), makers)
        except ValueError as error:
            raise ValueError(f"{page}: {error}") from error
        in_notes = page.parent.name == "notes"
        files[page] = text.replace("](results/", "](../results/") if in_notes else text
    return files


def _ladder(file: Path) -> dict[str, Any]:
    """Return the ladder's results in a file. Raises ``ValueError`` naming any other file."""
    try:
        return ladder_results.read(file)
    except (ArithmeticError, LookupError) as error:
        raise ValueError(f"{file} is not a result of the ladder: {shown(error)}") from error


def _section(section: papers.Section, _: str) -> str:
    return f"\n{papers.show_one(section)}\n"


def filled(text: str, makers: Mapping[str, Maker]) -> str:
    """Return the text with each known section (``<!-- NAME:begin -->`` to ``<!-- NAME:end -->``)
    made anew. A maker gets the section's present text. Sections that the text lacks are skipped.

    Raises ``ValueError`` for a section that begins more than once or does not end.
    """
    for name, make in makers.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if begin.strip() not in text and end not in text:
            continue
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"section {name!r} must begin and end once, each on its own line")
        head, rest = text.split(begin)
        old, tail = rest.split(end)
        text = f"{head}{begin}{make(old)}{end}{tail}"
    return text


def _speedups(results: Results) -> str:
    """Return the table of the best fp32 stage over m01 and over the fastest baselines."""
    best = analysis.best_stage(results)
    assert best is not None
    return report.speedup_table(best, [*analysis.first(results), *analysis.fastest(results)])


# The sample of the command in docs/ladder.md: the main route and the tensor cores.

SHOWN = tuple(
    short_name(one.name) for route in ("main", "tensor_cores") for one in stages_of(route)
)


def sample(json_file: Path | None = None) -> str:
    """Return the ladder's output for SHOWN without a GPU, 80 columns wide.

    Its JSON goes to ``json_file``, if one is given.
    """
    more = [] if json_file is None else ["--json", str(json_file)]
    for name in SHOWN:
        more += ["--stage", name]
    code = "from convlab.commands.cli import main; main()"
    output = subprocess.run(
        [sys.executable, "-c", code, "ladder", "--engine", "simulator", *more],
        env={**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"},
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def same_but_for_rounding(one: str, other: str) -> bool:
    """Return True if two samples differ only in the last digit of an error / bound.

    NumPy sums the reference in another order on another CPU.
    """
    # A library may compute with other rounding on another CPU; its work is not counted.
    texts = (re.sub(r"OK {6} *[\d.e-]+(?= +-)", "LIBRARY", text) for text in (one, other))
    pieces = [re.split(r"(?<=OK {6} )( *[\d.e-]+)", text) for text in texts]
    if pieces[0][::2] != pieces[1][::2]:
        return False
    errors = zip(*(map(float, part[1::2]) for part in pieces), strict=True)
    return all(abs(a - b) <= 0.011 * max(a, b) for a, b in errors)


def sample_section(stored: str) -> str:
    """Return the stored section if it still shows the ladder's output, otherwise a new one."""
    new = f"```text\n{sample()}```\n"
    return stored if same_but_for_rounding(stored, new) else new


# Sizes for which no tile was tuned.


def sizes_tables(results: Results) -> papers.Shown:
    """Return two tables: speedups of m15, and the problems where it is slower."""
    ours, torch = (contender(results, name) for name in (M15, analysis.TORCH))
    libraries = [name for name in results.systems if name != M15]
    gemm_class = Contender(results, analysis.GEMM_CLASS, "", libraries, gemm_class=True)
    layers, means = results.layers(), []
    for words, other in (("the GEMM class", gemm_class), ("PyTorch", torch)):
        names = (name for name, _ in layers)
        over = dict(zip(names, ours.over(other).by_layer, strict=True))
        for which, of_it in (("fitted", UNTUNED), ("unseen", UNSEEN)):
            speedup = Speedup([over.get(name) for name in of_it])
            if ratios := speedup.known:
                values = (speedup.mean, min(ratios), max(ratios))
                below = sum(ratio < 1 for ratio in ratios)
                cells = (str(len(ratios)), *(f"{value:.2f}" for value in values), str(below))
                means.append((f"{words}, {which}", *cells))
    slower = sorted(
        (ratio, str(SIZES[layer[0]]), _time(ours.best(layer)), _time(gemm_class.best(layer)))
        for layer, ratio in zip(layers, ours.over(gemm_class).by_layer, strict=True)
        if ratio and ratio < 1
    )
    columns = ("m15 over", "problems", "geometric mean", "least", "most", "below 1")
    head = ("m15 is slower than the GEMM class", "m15 ms", "GEMM class ms", "ratio")
    lines = [(*cells, f"{ratio:.2f}") for ratio, *cells in slower]
    return "\n".join(filter(None, (table(columns, means), table(head, lines)))), ()


def grouped_tables(results: Results) -> papers.Shown:
    """Return the table of grouped layers' times beside PyTorch's."""
    ours, torch = (contender(results, name) for name in ("grouped", analysis.TORCH))
    ratios = zip(results.layers(), ours.over(torch).by_layer, strict=True)
    lines = [
        (name, str(GROUPED[name]), _time(ours.best((name, batch))),
         _time(torch.best((name, batch))), f"{over:.2f}")
        for (name, batch), over in sorted(ratios, key=lambda pair: len(pair[0][0]))
    ]  # fmt: skip
    return table(("name", "layer", "convlab ms", "PyTorch ms", "PyTorch / convlab"), lines), ()


def gradients_tables(results: Results) -> papers.Shown:
    """Return the table of both gradients of each layer by g01, g02 with m15, and PyTorch."""
    systems = "g01_direct_gradients", M15, analysis.TORCH
    contenders = [contender(results, name) for name in systems]
    layers = {name: (name, batch) for name, batch in results.layers()}
    lines = [
        (name, *(_time(one.best(layers[f"{name} {of}"])) for of in OF for one in contenders))
        for name in LAYER_NAMES
    ]
    head = [f"{of}: {by}" for of in OF for by in ("g01", "g02", "PyTorch")]
    return table(("layer", *head), lines), ()


def _time(row: ResultRow | None) -> str:
    """Return milliseconds, with ~ if the runs' spread stayed above 2 %."""
    return "" if row is None else f"{'~' if row.settled is False else ''}{row.time_ms:.4g}"


# The two compilers.

COMPILERS = "", "_mlir"  # endings of the names of their results


def compilers_table() -> str:
    """Return the table of each stage's main kernel by both compilers.

    It has the machine code's registers and instructions, and times if both compilers' kernels were
    timed. A cell with one number holds for both.
    """
    made = [
        # The last row of a stage is its main kernel's.
        {row["stage"]: row for row in papers.read_json(papers.ROOT / f"{LINT}{end}.json")}
        for end in COMPILERS
    ]
    timed = [papers.ROOT / RESULTS / f"{HEADLINE}{end}.json" for end in COMPILERS]
    times = [_ladder(file)["steps"] for file in timed] if timed[1].exists() else []
    rows = []
    for name in (stage.name for stage in LADDER if stage.name in made[0]):
        both = [one[name] for one in made]
        if not both[0]["multiply_adds"]:  # a library's work
            continue
        cells = [[str(row["registers"]) for row in both], [_per_multiply_add(row) for row in both]]
        if times:
            cells.append([f"{one[name]['time_ms']:.3f}" if name in one else "-" for one in times])
        rows.append((short_name(name), *("/".join(dict.fromkeys(cell)) for cell in cells)))
    columns = "stage", "registers", "loop instructions per multiply-add"
    return table((*columns, "ms") if times else columns, rows)


def _per_multiply_add(row: Mapping[str, Any]) -> str:
    adds = row["loop_multiply_adds"]
    return f"{row['loop_instructions'] / adds:.3g}" if adds else "-"


# Mutants of the stages.

KINDS = "synchronisation", "index", "bound", "constant"


def mutants_tables(document: dict[str, Any]) -> papers.Shown:
    """Return the tables of mutants: results by kind of change, reasons why a mutant is equivalent,
    and the mutants that no check tells from the stage."""
    rows = document["rows"]
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    lines = []
    for name, tried in [*kinds.items(), ("all", rows)]:
        found = Counter(
            "left" if row["result"] != "rejected" and not row["equivalent"] else row["result"]
            for row in tried
        )
        counts = [found[one] for one in ("rejected", "told", "survived", "left")]
        shares = (counts[0] / n for n in (len(tried), counts[0] + counts[-1]))
        cells = (*map(str, (len(tried), *counts)), *(f"{100 * share:.1f} %" for share in shares))
        lines.append((name, *cells))
    results = "rejected", "told", "equivalent", "left"
    head = "change", "mutants", *results, "rejected of all", "of the rest"
    reasons = Counter(row["equivalent"] for row in rows if row["equivalent"])
    same = [(why, str(many)) for why, many in reasons.most_common()]
    left = [
        (row["module"].rpartition(".")[2], f"`{row['code']}`", f"`{row['old']}`", f"`{row['new']}`")
        for row in rows
        if row["result"] != "rejected" and not row["equivalent"]
    ]
    tables = [table(head, lines), table(("right, because", "mutants"), same)]
    if left:
        tables.append(table(("file", "line", "is", "becomes"), left))
    return "\n".join(tables), ()


# Public programs on the simulator.


def ledger_table(document: Mapping[str, Any]) -> papers.Shown:
    """Return the table of public programs: what was found in each, and whether it is a fault."""
    head = "program", "ran", "found", "result", "why", "launches", "CPU s"
    lines = [
        (_program(row), _ran(row), _found(row), row["result"], row["why"], str(row["launches"]),
         f"{row['cpu_seconds']:.0f}")
        for row in document["rows"]
    ]  # fmt: skip
    return table(head, lines, left=5), ()


def _program(row: Mapping[str, Any]) -> str:
    """Return a link to the program's file as it was at the commit that ran."""
    repository, commit, path = row["repository"], row["commit"], row["path"]
    link = f"[`{Path(path).name}`](https://github.com/{repository}/blob/{commit}/{path})"
    return f"{link} of {repository} at `{commit[:7]}`"


def _ran(row: Mapping[str, Any]) -> str:
    return f"{row['ran']}; {row['changed']}" if row["changed"] else row["ran"]


def _found(row: Mapping[str, Any]) -> str:
    """Return the kinds of findings, each with the lines that it names."""
    kinds = []
    for one in row["findings"]:
        lines = ", ".join(map(str, one["lines"]))
        kinds.append(f"{one['kind']}, {'lines' if len(one['lines']) > 1 else 'line'} {lines}")
    return "; ".join(kinds) or "-"


# The ladder before and after it had routes.


def routes_table(document: Mapping[str, Any]) -> papers.Shown:
    """Return the table of each stage's main kernel and time, before and after the routes."""
    head = "stage", "before", "registers", "instructions per multiply-add", "ms", "after / before"
    lines = []
    for row in document["rows"]:
        code, times = row["machine_code"], row["time_ms"]
        before, after = (min(times[when]) for when in ("before", "after"))
        lines.append(
            (
                row["stage"],
                row["before"],
                _both(code, _registers_used),
                _both(code, _per_multiply_add),
                f"{before:.3f}, {after:.3f}",
                f"{after / before:.3f}",
            )
        )
    return table(head, lines, left=2), ()


def _both(code: Mapping[str, Any], shown: Callable[[Mapping[str, Any]], str]) -> str:
    """Return a figure of the kernel before and after, once if it is the same."""
    figures = [shown(code[when]) if code[when] else "-" for when in ("before", "after")]
    return ", ".join(dict.fromkeys(figures))


def _registers_used(kernel: Mapping[str, Any]) -> str:
    return str(kernel["registers"])


# The sections that show one file of results each, by their names in pages.
SECTIONS = {
    "sizes": papers.of_cases("", "sizes", sizes_tables),
    "grouped": papers.of_cases("", "grouped", grouped_tables),
    "gradients": papers.of_cases("", "gradients", gradients_tables),
    "sanitizers": papers.Section(
        "", "sanitizers_h200.json", "`make sanitize`",
        lambda document: (sanitizers.show(document), ()), of_rows=False,
    ),
    "ledger": papers.Section(
        "", "ledger.json", "`convlab run --json`", ledger_table, of_rows=False
    ),
    "routes": papers.Section(
        "", "routes_h100.json", "`convlab ladder --layer conv9 --json` and `convlab lint --json`",
        routes_table, of_rows=False,
    ),
    "stage-mutants": papers.Section(
        "", "stage_mutants.json", "`python -m stage_mutants`", mutants_tables, of_rows=False
    ),
}  # fmt: skip


# Pictures.


def _kept(file: Path, text: str, rows: Path) -> str:
    """Return the stored picture if it shows the same rows and words, drawn by the same code.

    Otherwise return the new picture. Each version of matplotlib has another layout.
    """
    told = papers.read_json(rows)
    code = "".join(map(inspect.getsource, (plots, ladder_results)))
    hashes = (
        hashlib.sha256(one.encode()).hexdigest()[:12]
        for one in (json.dumps(told.get("rows", told)), code)
    )
    new = f"{text}<!-- rows {', drawn by '.join(hashes)} -->\n"
    old = file.read_text(encoding="utf-8") if file.is_file() else ""
    return old if same_but_for_layout(old, new) else new


def same_but_for_layout(one: str, other: str) -> bool:
    """Return True if two pictures show the same rows and words and were drawn by the same code."""
    told = r"<text[^>]*>([^<]*)</text>|<!-- (rows [^>]*) -->"
    return re.findall(told, one) == re.findall(told, other)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the files anew, or with ``--check`` only compare them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 on differences")
    chosen = parser.parse_args(arguments)
    try:
        files = generated()
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        return 2
    stale = [
        file
        for file, text in files.items()
        if not file.is_file() or file.read_text(encoding="utf-8") != text
    ]
    for file in stale:
        if chosen.check:
            print(f"{file} differs from {RESULTS}: run make results", file=sys.stderr)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(files[file], encoding="utf-8", newline="\n")
            print(f"wrote {file}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
