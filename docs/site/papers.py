"""The figures and tables of the four papers beside ours: ``python docs/site/papers.py``.

Each section names the paper's figure, the file in docs/results that holds our measurements, what
the paper says and what we found. The command prints everything; docs/papers.md shows what the
papers say beside our values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from convlab.bench import analysis, table
from convlab.bench.analysis import Contender
from convlab.bench.results import Results, open_results, tensor_bytes
from convlab.bench.systems import WHOLE
from convlab.workloads import LAYER_NAMES, paper_layer

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
    "s02_cin_naive", "s02_cout", "s02_cin", "cutlass_analytic", "cutlass_optimized",
    "torch_compile_fp32",
)  # fmt: skip
# Table 1 of Faster Convolution: milliseconds on an RTX A6000, by its rows.
TABLE_1 = {
    "conv2d": 121.819, "conv2d_tf32": 8.000, "fast_torch": 49.807, "fast_torch_tf32": 24.682,
    "fast_unfoldnd": 60.777, "fast_unfoldnd_tf32": 22.265,
}  # fmt: skip

Claim = tuple[str, str, str]  # where in the paper, its words, our value
Rows = Mapping[str, Mapping[str, Any]]  # of one layer, by system
Shown = tuple[str, Sequence[Claim]]  # our table, and the claims


class Section(NamedTuple):
    """One figure or table of a paper, and what shows the results in ``file``."""

    title: str
    file: str
    command: str
    show: Callable[[Any], Shown]


def _ratios(values: Iterable[float | None]) -> str:
    known = [value for value in values if value]
    if not known:
        return "not measured"
    return f"{geometric_mean(known):.2f}x ({min(known):.2f} to {max(known):.2f})"


def _cell(value: float | None, form: str = ".2f", settled: bool | None = True) -> str:
    return "-" if value is None else f"{'~' if settled is False else ''}{value:{form}}"


def _rate(row: Mapping[str, Any] | None) -> str:
    return "-" if row is None else _cell(row["tflops"], ".1f", row["settled"])


def _by_layer(document: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in document["rows"]:
        found.setdefault(row["layer"], {})[row["system"]] = row
    return found


def _over(systems: Rows, slow: str, fast: str) -> float | None:
    """How many times as fast one system is as another, on one layer."""
    times = [systems.get(name, {}).get("time_ms") for name in (slow, fast)]
    return times[0] / times[1] if times[0] and times[1] else None


# The im2win paper.


def im2win_systems(results: Results) -> dict[str, Contender]:
    """The paper's systems and our fastest stage in fp32 arithmetic, by name."""
    known = {name: analysis.contender(results, name) for name in results.systems}
    known |= {one.name: one for one in analysis.fastest(results)}
    best = analysis.best_stage(results)
    names = [*DIRECT, *IM2COLS, *CUDNN, WHOLE, *([best.name] if best else [])]
    return {name: known[name] for name in names if name in known}


def _ours_over(
    systems: Iterable[str],
    said: Sequence[tuple[str, str, Sequence[str]]],
    value: Callable[[str, str], str],
) -> list[Claim]:
    """``value`` of each im2win stage over each of the others, a claim in a cell."""
    ours = [name for name in systems if name.startswith("s1")]
    return [
        (where, words, "; ".join(
            f"{mine[:3]} / {other}: {value(mine, other)}"
            for mine in ours for other in others if other in systems
        ))
        for where, words, others in said
    ]  # fmt: skip


def figure_2(results: Results) -> Shown:
    """TFLOP/s on the twelve layers."""
    systems, layers = im2win_systems(results), results.layers()

    def faster(mine: str, other: str) -> str:
        pair = systems[mine], systems[other]
        return _ratios(analysis.speedup(results, *pair, layer) for layer in layers)

    rows = []
    for layer in layers:
        best = [one.best(results, layer) for one in systems.values()]
        rows.append((layer[0], *(_rate(None if row is None else vars(row)) for row in best)))
    said = (
        ("4.2", '"on average 3.5x TFLOPS than that of im2col+cuBLAS"', IM2COLS),
        ("4.2", '"5x to 155x TFLOPS compared with the direct convolution"', DIRECT),
        ("1, 4.2", "1.1x cuDNN on average, up to 1.8x", CUDNN),
    )
    return table(("TFLOP/s", *systems), rows), _ours_over(systems, said, faster)


def figure_3(results: Results) -> Shown:
    """GiB on the twelve layers: the tensors and the workspace that each system asks for."""
    systems, layers = im2win_systems(results), results.layers()
    needed: dict[str, list[int | None]] = {}
    for name, one in systems.items():
        best = [one.best(results, layer) for layer in layers]
        needed[name] = [
            None
            if row is None or row.workspace_bytes is None
            else row.workspace_bytes + tensor_bytes(paper_layer(*layer))
            for row, layer in zip(best, layers, strict=True)
        ]

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
    """cuDNN's fastest algorithm on each layer, and those within :data:`TIE` of it."""
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


def figure_4(document: Mapping[str, Any]) -> Shown:
    """The ablation of s11."""
    rows, names = _by_layer(document), (WHOLE, *GAINS)
    cells = [(layer, *(_rate(of.get(name)) for name in names)) for layer, of in rows.items()]
    gains = [
        f"{words} {_ratios(_over(systems, name, WHOLE) for systems in rows.values())}"
        for name, words in GAINS.items()
    ]
    said = "micro-kernel gains most, then vectorised load, then prefetching"
    return table(("TFLOP/s", *names), cells), (("4.4", said, "; ".join(gains)),)


# The three articles.


def sweeps(document: Mapping[str, Any]) -> Shown:
    """Figures 1 to 4: speedups over the seven loops in C++, on one image."""
    rows, cells, best, over_cutlass = _by_layer(document), [], [0.0], [0.0]
    for point in document["points"]:
        systems = rows[point["problem"]]
        ratios = {name: _over(systems, "cpp_seven_loops", name) for name in SWEEP_SYSTEMS}
        for name in SWEEP_SYSTEMS[:3]:
            best.append(ratios[name] or 0.0)
            over_cutlass.append(_over(systems, "cutlass_optimized", name) or 0.0)
        shown = (
            _cell(ratio, ",.0f", systems.get(name, {}).get("settled"))
            for name, ratio in ratios.items()
        )
        cells.append((SWEEPS[point["sweep"]], str(point["value"]), *shown))
    claims = (
        ("abstract", '"upto a 270x speedup over our C++ baseline"', f"up to {max(best):,.0f}x"),
        ("abstract", '"upto a 2.8x speedup over a highly optimized CUTLASS kernel"',
         f"up to {max(over_cutlass):.1f}x"),
    )  # fmt: skip
    return table(("figure", "value", *SWEEP_SYSTEMS), cells), claims


def unfold(document: Mapping[str, Any]) -> Shown:
    """Table 1: milliseconds there, of a first call here, and on the GPU here."""
    first = {name: {"time_ms": one.get("ms")} for name, one in document["first_calls"].items()}
    (systems,) = _by_layer(document).values()
    titles = {one["name"]: one["title"] for one in document["systems"]}
    rows = [
        (
            titles[name], f"{there:.3f}", _cell(first.get(name, {}).get("time_ms"), ".3f"),
            _cell(systems[name]["time_ms"], ".3f", systems[name]["settled"]),
        )
        for name, there in TABLE_1.items()
    ]  # fmt: skip

    def ratio(slow: str, fast: str) -> str:
        times = {"first calls": _over(first, slow, fast), "on the GPU": _over(systems, slow, fast)}
        return ", ".join(f"{words} {f'{one:.2f}x' if one else '-'}" for words, one in times.items())

    said = (
        ('conv2d_fast "more than 2x speed up compared to F.conv2d"', "conv2d", "fast_torch"),
        ('F.conv2d with TF32 "over 15x speedup"', "conv2d", "conv2d_tf32"),
        ('PyTorch\'s unfold with TF32 "~ 2x speedup"', "fast_torch", "fast_torch_tf32"),
        ('unfoldNd with TF32 "~ 2x speedup"', "fast_unfoldnd", "fast_unfoldnd_tf32"),
    )
    claims = [("4", words, ratio(*pair)) for words, *pair in said]
    return table(("Table 1", "there ms", "first call ms", "on the GPU ms"), rows), claims


BENCH = ("bench_h200.json", "`convlab bench`")
SECTIONS = [
    Section("im2win: Figure 2, TFLOP/s on the twelve layers", *BENCH, figure_2),
    Section("im2win: Figure 3, memory on the twelve layers", *BENCH, figure_3),
    Section("im2win: Table 3, what cuDNN chooses", *BENCH, table_3),
    *(
        Section(title, f"{name}_h200.json", f"`convlab bench --cases {name}`", show)
        for title, name, show in (
            ("im2win: Figure 4, what each technique gains", "ablation", figure_4),
            ("Accelerating 2D Convolutions on GPU: Figures 1 to 4, speedups over C++", "sweeps",
             sweeps),
            ("Faster Convolution: Table 1, unfold, einsum and fold", "unfold_table", unfold),
        )
    ),
]  # fmt: skip


def show() -> str:
    """Every section as Markdown: what the paper says, our value, our table and its command."""
    parts = []
    for section in SECTIONS:
        ours, claims, by = made(section)
        text = f"{table(('where', 'the paper', 'here'), claims, left=3)}\n{ours}\n" if ours else ""
        parts.append(f"### {section.title}\n\n{text}{by}")
    return "\n".join(parts)


def show_claims() -> str:
    """One table for docs/papers.md: what each paper says and our value."""
    rows, sources = [], []
    for section in SECTIONS:
        _, claims, by = made(section)
        rows += [(section.title, f"{where}: {words}", here) for where, words, here in claims]
        sources.append(f"- {by}")
    head = ("figure", "the paper", "here")
    return f"{table(head, rows, left=3)}\n{''.join(dict.fromkeys(sources))}"


def read_json(file: Path) -> Any:
    """The document in a file. Raises ``ValueError`` naming a file that holds no JSON."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as JSON: {error}") from error


def source(file: str, environment: Mapping[str, Any] | None, command: str) -> str:
    """The line below a table: the command that writes its file today, and of what is stored the
    date and the versions."""
    known = environment or {}
    packages = known.get("packages") or {}
    versions = (f"{name} {packages[name]}" for name in VERSIONS if packages.get(name))
    words = ", ".join(filter(None, (str(known.get("date") or "")[:10], *versions)))
    return f"{command}{f' ({words})' if words else ''}: [{file}](results/{file}).\n"


def made(section: Section) -> tuple[str, Sequence[Claim], str]:
    """A section's table, its claims and the line that names its command.

    Raises ``ValueError`` for a file of something else.
    """
    file = ROOT / RESULTS / section.file
    if not file.is_file():
        return "", (), f"Not measured yet: {section.command} on a GPU writes {section.file}.\n"
    try:
        results = open_results(file) if section.file == BENCH[0] else read_json(file)
        shown = section.show(results)
        known = results.environment if isinstance(results, Results) else results["environment"]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{file} is no result of {section.command}: {error!r}") from error
    return *shown, source(section.file, known, section.command)


if __name__ == "__main__":
    try:
        print(show())
    except ValueError as error:
        print(f"convlab: {error}", file=sys.stderr)
        sys.exit(2)
