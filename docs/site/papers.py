"""The figures and tables of the four papers beside ours: ``python docs/site/papers.py``.

Each section names the paper's figure and the file in docs/results that holds our measurements, and
compares the paper's claim with our value. The command prints all sections; docs/papers.md shows the
claims and our values.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from convlab.measuring import analysis, table
from convlab.measuring.analysis import Contender, Speedup, contender
from convlab.measuring.results import MORE, ResultRow, Results, tensor_bytes
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import WHOLE
from convlab.problems.workloads import LAYER_NAMES
from convlab.running.compilers import NUMBA_CUDA, VARIABLE
from convlab.support import files, whole_files
from convlab.support.values import shown

ROOT = Path(__file__).parents[2]  # of the repository
RESULTS = "docs/results"
VERSIONS = ("numba-cuda", "numpy", "torch")
GIB = 2**30
TIE = 0.01  # two algorithms closer than this may swap places in another run
# Table 3 of the im2win paper: what cuDNN 8.0 chose on an RTX 3090.
TABLE_3 = dict.fromkeys(LAYER_NAMES, "IMPLICIT_GEMM") | {
    "conv5": "WINOGRAD", "conv8": "FFT", "conv9": "WINOGRAD", "conv10": "WINOGRAD",
    "conv11": "WINOGRAD",
}  # fmt: skip
# Our systems in Figures 2 and 3 of the im2win paper, by the name in `convlab bench`.
DIRECT = (analysis.BASELINE,)
IM2COLS = ("torch_own_im2col", "im2col_cublas_per_image", "im2col_cublas_batched")
CUDNN = (analysis.CUDNN, analysis.GEMM_CLASS)
GAINS = {
    "without_microkernel": "the micro-kernel",
    "without_vectorized": "vectorised access",
    "without_prefetch": "prefetching and double buffers",
}
SWEEPS = {
    "size": "1: image size", "in_channels": "2: input channels",
    "out_channels": "3: output channels", "kernel_size": "4: filter size",
}  # fmt: skip
SWEEP_SYSTEMS = (
    "c01_input_channels", "c03_output_channels", "c02_receptive_field",
    "cutlass_analytic", "cutlass_optimized",
    "torch_compile_fp32",
)  # fmt: skip
# Table 1 of Faster Convolution: milliseconds on an RTX A6000, by its rows.
TABLE_1 = {
    "conv2d": 121.819, "conv2d_tf32": 8.000, "fast_torch": 49.807, "fast_torch_tf32": 24.682,
    "fast_unfoldnd": 60.777, "fast_unfoldnd_tf32": 22.265,
}  # fmt: skip

Claim = tuple[str, str, str]  # where in the paper, its words, our value
Shown = tuple[str, Sequence[Claim]]  # our table, and the claims


class Section(NamedTuple):
    """One figure or table of a paper, and the function that shows our results in ``file``.

    ``show`` takes the file's rows, or the whole document if ``of_rows`` is false.
    """

    title: str
    file: str
    command: str
    show: Callable[[Any], Shown]
    of_rows: bool = True


def _ratios(speedup: Speedup) -> str:
    known = speedup.known
    if not known:
        return "not measured"
    return f"{speedup.mean:.2f}x ({min(known):.2f} to {max(known):.2f})"


def _cell(value: float | None, form: str = ".2f", row: ResultRow | None = None) -> str:
    """Return a formatted value, with ~ if its row did not settle."""
    mark = "~" if row is not None and row.settled is False else ""
    return "-" if value is None else f"{mark}{value:{form}}"


def _rates(results: Results, systems: Iterable[Contender]) -> list[tuple[str, ...]]:
    """Return the TFLOP/s of the systems, a row for each layer."""
    best = [one.rows() for one in systems]
    return [
        (layer, *(_cell(row and row.tflops, ".1f", row) for row in of_it))
        for (layer, _), *of_it in zip(results.layers(), *best, strict=True)
    ]


# The im2win paper.


def im2win_systems(results: Results) -> dict[str, Contender]:
    """Return the paper's systems and our fastest stage in fp32 arithmetic, by name."""
    every = [contender(results, name) for name in results.systems]
    known = {one.name: one for one in (*every, *analysis.fastest(results))}
    best = analysis.best_stage(results)
    names = [*DIRECT, *IM2COLS, *CUDNN, WHOLE, *([best.name] if best else [])]
    return {name: known[name] for name in names if name in known}


def _ours_over(
    systems: Iterable[str],
    said: Sequence[tuple[str, str, Sequence[str]]],
    value: Callable[[str, str], str],
) -> list[Claim]:
    """Return the paper's claims, each with ``value`` of our im2win stages over the others."""
    ours = [name for name in systems if re.match(r"m1\d|t\d\d", name)]
    return [
        (where, words, "; ".join(
            f"{mine[:3]} / {other}: {value(mine, other)}"
            for mine in ours for other in others if other in systems
        ))
        for where, words, others in said
    ]  # fmt: skip


def figure_2(results: Results) -> Shown:
    """Compare TFLOP/s on the twelve layers."""
    systems = im2win_systems(results)

    def faster(mine: str, other: str) -> str:
        return _ratios(systems[mine].over(systems[other]))

    said = (
        ("4.2", '"on average 3.5x TFLOPS than that of im2col+cuBLAS"', IM2COLS),
        ("4.2", '"5x to 155x TFLOPS compared with the direct convolution"', DIRECT),
        ("1, 4.2", "1.1x cuDNN on average, up to 1.8x", CUDNN),
    )
    cells = table(("TFLOP/s", *systems), _rates(results, systems.values()))
    return cells, _ours_over(systems, said, faster)


def figure_3(results: Results) -> Shown:
    """Compare GiB on the twelve layers: the tensors and the workspace of each system."""
    systems, layers = im2win_systems(results), results.layers()
    needed = {
        name: [
            None
            if row is None or row.workspace_bytes is None
            else row.workspace_bytes + tensor_bytes(row.problem)
            for row in one.rows()
        ]
        for name, one in systems.items()
    }

    def more(mine: str, other: str) -> str:
        pairs = zip(needed[mine], needed[other], strict=True)
        parts = [one / two - 1 for one, two in pairs if one and two]
        return f"{100 * sum(parts) / len(parts):+.1f} %" if parts else "not measured"

    rows = [
        (layer, *(_cell(size and size / GIB) for size in sizes))
        for (layer, _), *sizes in zip(layers, *needed.values(), strict=True)
    ]
    said = (
        ("4.3", '"23.1% less memory than cuBLAS", on average', IM2COLS),
        ("4.3", '"32.8% less memory than cuDNN", on average', CUDNN[:1]),
        ("4.3", '"slightly higher memory usage than the direct convolution"', DIRECT),
    )
    return table(("GiB", *systems), rows), _ours_over(systems, said, more)


def table_3(results: Results) -> Shown:
    """List cuDNN's fastest algorithm on each layer, and those within :data:`TIE` of it."""
    rows, same = [], 0
    for layer in results.layers():
        of_api = [results.row(*layer, name) for name in analysis.in_fp32(results, "cudnn")]
        timed = sorted((row.time_ms, row.system) for row in of_api if row and row.time_ms)
        near = [one for one in timed if one[0] <= (1 + TIE) * timed[0][0]]
        names = [name.removeprefix("cudnn_").upper() for _, name in near]
        same += TABLE_3[layer[0]] in names
        times = ", ".join(f"{time:.3f}" for time, _ in near)
        rows.append((layer[0], TABLE_3[layer[0]], ", ".join(names) or "-", times or "-"))
    head = ("layer", "cuDNN 8.0, RTX 3090", f"here, {results.device}", "ms")
    claim = ("Table 3", "cuDNN's own choice", f"the same on {same} of {len(rows)} layers")
    return table(head, rows, left=3), (claim,)


def figure_4(results: Results) -> Shown:
    """Compare m11 with m11 without one of its techniques."""
    whole, *without = (contender(results, name) for name in (WHOLE, *GAINS))
    gains = [f"{GAINS[one.name]} {_ratios(whole.over(one))}" for one in without]
    said = "micro-kernel gains most, then vectorised load, then prefetching"
    cells = table(("TFLOP/s", WHOLE, *GAINS), _rates(results, [whole, *without]))
    return cells, (("4.4", said, "; ".join(gains)),)


# The three articles.


def sweeps(results: Results) -> Shown:
    """Compare speedups over the seven loops in C++, on one image (Figures 1 to 4)."""
    ours = [contender(results, name) for name in SWEEP_SYSTEMS]
    cpp, cutlass = (contender(results, name) for name in ("cpp_seven_loops", "cutlass_optimized"))
    ratios = [one.over(cpp).by_layer for one in ours]
    layers = [layer for layer, _ in results.layers()]
    cells = []
    for point in results.more["points"]:
        place = layers.index(point["problem"])
        of_it = zip(ratios, (one.rows()[place] for one in ours), strict=True)
        values = (_cell(over[place], ",.0f", row) for over, row in of_it)
        cells.append((SWEEPS[point["sweep"]], str(point["value"]), *values))
    most = [
        max([0.0, *(ratio for one in ours[:3] for ratio in one.over(other).known)])
        for other in (cpp, cutlass)
    ]
    claims = (
        ("abstract", '"upto a 270x speedup over our C++ baseline"', f"up to {most[0]:,.0f}x"),
        ("abstract", '"upto a 2.8x speedup over a highly optimized CUTLASS kernel"',
         f"up to {most[1]:.1f}x"),
    )  # fmt: skip
    return table(("figure", "value", *SWEEP_SYSTEMS), cells), claims


def unfold(results: Results) -> Shown:
    """Compare the milliseconds of Table 1 with our first calls and our times on the GPU."""
    (layer,) = results.layers()
    first = {name: one.get("ms") for name, one in results.more["first_calls"].items()}
    on_gpu = {name: row.time_ms for (*_, name), row in results.rows.items()}
    rows = [
        (
            results.systems[name]["title"], f"{there:.3f}", _cell(first.get(name), ".3f"),
            _cell(on_gpu[name], ".3f", results.row(*layer, name)),
        )
        for name, there in TABLE_1.items()
    ]  # fmt: skip

    def ratio(times: Mapping[str, float | None], slow: str, fast: str) -> str:
        one, other = times.get(slow), times.get(fast)
        return f"{one / other:.2f}x" if one and other else "-"

    said = (
        ('conv2d_fast "more than 2x speed up compared to F.conv2d"', "conv2d", "fast_torch"),
        ('F.conv2d with TF32 "over 15x speedup"', "conv2d", "conv2d_tf32"),
        ('PyTorch\'s unfold with TF32 "~ 2x speedup"', "fast_torch", "fast_torch_tf32"),
        ('unfoldNd with TF32 "~ 2x speedup"', "fast_unfoldnd", "fast_unfoldnd_tf32"),
    )
    claims = [
        ("4", words, f"first calls {ratio(first, *pair)}, on the GPU {ratio(on_gpu, *pair)}")
        for words, *pair in said
    ]
    return table(("Table 1", "there ms", "first call ms", "on the GPU ms"), rows), claims


BENCH = ("bench_h200.json", "`convlab bench`")


def of_cases(title: str, cases: str, show: Callable[[Any], Shown], gpu: str = "h200") -> Section:
    """Return the section that shows a file of ``convlab bench --cases``, measured on that GPU."""
    return Section(title, f"{cases}_{gpu}.json", f"`convlab bench --cases {cases}`", show)


ARTICLES = "Accelerating 2D Convolutions on GPU: Figures 1 to 4, speedups over C++"
SECTIONS = [
    Section("im2win: Figure 2, TFLOP/s on the twelve layers", *BENCH, figure_2),
    Section("im2win: Figure 3, memory on the twelve layers", *BENCH, figure_3),
    Section("im2win: Table 3, what cuDNN chooses", *BENCH, table_3),
    of_cases("im2win: Figure 4, what each technique gains", "ablation", figure_4),
    of_cases(ARTICLES, "sweeps", sweeps),
    of_cases("Faster Convolution: Table 1, unfold, einsum and fold", "unfold_table", unfold),
]


def show() -> str:
    """Return all sections as Markdown: the claims, our values, our table and its command."""
    parts = []
    for section in SECTIONS:
        ours, claims, by = made(section)
        text = f"{table(('where', 'the paper', 'here'), claims, left=3)}\n{ours}\n" if ours else ""
        parts.append(f"### {section.title}\n\n{text}{by}")
    return "\n".join(parts)


def show_one(section: Section) -> str:
    ours, _, by = made(section)
    return f"{ours}\n{by}"


def show_claims() -> str:
    """Return the table of docs/papers.md: each paper's claims and our values."""
    rows, sources = [], []
    for section in SECTIONS:
        _, claims, by = made(section)
        rows += [(section.title, f"{where}: {words}", here) for where, words, here in claims]
        sources.append(f"- {by}")
    head = ("figure", "the paper", "here")
    return f"{table(head, rows, left=3)}\n{''.join(dict.fromkeys(sources))}"


def read_json(file: Path) -> Any:
    """Return the document in a file. Raises ``ValueError`` naming a file that is not JSON."""
    try:
        return files.document(whole_files.bytes_of(file))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def compiler_of(environment: Mapping[str, Any]) -> str:
    """Return the compiler of a measurement. Older documents name it only in their command."""
    named = re.match(rf"{VARIABLE}=(\S+) ", str(environment.get("command") or ""))
    return str(environment.get("compiler") or (named[1] if named else NUMBA_CUDA))


def date_of(environment: Mapping[str, Any]) -> str:
    """Return the day of a measurement, or an empty string if it is not known."""
    return str(environment.get("date") or "")[:10]


def versions_of(environment: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return the packages with their versions, as far as the versions are known."""
    packages = environment.get("packages") or {}
    return [f"{name} {packages[name]}" for name in names if packages.get(name)]


def opened(document: Mapping[str, Any]) -> Results:
    """Return the results in a document, which may be older than today's format.

    Rows are left out if their name means another problem today.
    """
    rows = {}
    for told in document["rows"]:
        row = ResultRow.from_json(told)
        with suppress(ValueError):  # the name may be gone
            if told.get("problem") in (None, str(row.problem)):
                rows[row.key] = row
    systems = {one["name"]: one for one in document["systems"]}
    more = {name: document[name] for name in MORE if name in document}
    about = (Machine(document["device"]), document["environment"], document["identity"])
    return Results(*about, rows, systems, more=more)


def made(section: Section) -> tuple[str, Sequence[Claim], str]:
    """Return a section's table, its claims, and a line with its command, date and versions.

    Raises ``ValueError`` for a file that holds something else.
    """
    file = ROOT / RESULTS / section.file
    if not file.is_file():
        return "", (), f"Not measured yet: {section.command} on a GPU writes {section.file}.\n"
    document = read_json(file)
    try:
        parts = section.show(opened(document) if section.of_rows else document)
        known = document["environment"] or {}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{file} is no result of {section.command}: {shown(error)}") from error
    words = ", ".join(filter(None, (date_of(known), *versions_of(known, VERSIONS))))
    by = f"{section.command}{f' ({words})' if words else ''}"
    return *parts, f"{by}: [{section.file}](results/{section.file}).\n"


if __name__ == "__main__":
    try:
        print(show())
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        sys.exit(2)
