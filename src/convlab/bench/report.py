"""A report: results as blocks of words, tables and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convlab.bench import analysis, report_plots, report_runs
from convlab.bench.analysis import Contender
from convlab.bench.report_document import Block, Heading, Paragraph, Table, Tiles
from convlab.bench.report_why import PIECE, Why, instruction_percent
from convlab.bench.results import Results, tensor_bytes
from convlab.bench.rows import Row
from convlab.stages import short_name
from convlab.workloads import paper_layer

TITLE = "Convolution on a GPU: stages and baselines"
NOTHING = "-"
# What stands where a number would, for what is not plainly not there.
SHORT = {
    "wrong": "wrong", "refused": "refused", "unsteady": "unsteady", "busy": "busy",
    "failed": "failed", "out of memory": "memory",
}  # fmt: skip
PACKAGES = ("convlab", "numba-cuda", "numba", "numpy", "torch")
MIB = 2**20
TB = 1e12


def blocks(
    results: Results,
    others: Sequence[Results] = (),
    why: Sequence[Why] = (),
    *,
    plots: bool = True,
) -> list[Block]:
    """The whole report; ``others`` are further runs to compare with it, ``why`` the traced counts.
    Where results are of several batches, each has its own tables, plots and means.

    Raises :class:`convlab.image.PlotsMissing` with ``plots`` where matplotlib is not here.
    """
    parts: list[Block] = [Paragraph(_measured_on(results))]
    if stopped := report_runs.interrupted(results):
        parts.append(Paragraph(stopped))
    batches = sorted({batch for _, batch in results.layers()})
    for batch in batches:
        of_it = {key: row for key, row in results.rows.items() if row.batch == batch}
        of = f", batch {batch}" if len(batches) > 1 else ""
        parts += _of_one_batch(replace(results, rows=of_it), why, plots, of)
    for number, other in enumerate(others, start=2):
        heading = report_runs.nth_run(number, "a").capitalize()
        parts += [Heading(heading), *report_runs.second_run(results, other)]
    parts += [Heading("How it was measured"), Paragraph(HOW)]
    if slowed := report_runs.clocks_below(results):
        parts.append(Paragraph(slowed))
    parts += _commands(results)
    return parts


def page_blocks(results: Results) -> list[Block]:
    """The part of the report that docs/results.md shows: every plot, the table of TFLOP/s, the
    speedups of the best stage, memory, and what has no number."""
    best, every = analysis.best_stage(results), _comparators(results)
    parts: list[Block] = [Paragraph(_measured_on(results)), *_headline(results)]
    parts += [
        Heading("TFLOP/s"), report_plots.throughput(results, _most_important(results)),
        Paragraph(HOW_TO_READ), throughput_table(results),
    ]  # fmt: skip
    if best is not None:
        groups = [one for one in every if one.name not in results.systems]
        parts += [
            Heading("Speedup"), report_plots.speedups(results, best, every), Paragraph(GROUPS),
            mean_table(results, analysis.stages(results), groups),
        ]  # fmt: skip
    parts += [
        Heading("Roofline"), report_plots.roofline(results), Paragraph(_roof_in_words(results)),
        Heading("Memory"), report_plots.memory(results), Paragraph(MEMORY), memory_table(results),
    ]  # fmt: skip
    if missing := analysis.numberless(results):
        parts += [Heading("Without a number"), numberless_table(results, missing)]
    return parts


def _of_one_batch(results: Results, why: Sequence[Why], plots: bool, of: str) -> list[Block]:
    """What follows from the rows of one batch; ``of`` is added to headings and plots' names."""
    parts: list[Block] = []
    if any(row.ok for row in results.rows.values()):
        parts += [*_headline(results), *_numbers(results, why, plots, of)]
    else:
        parts.append(Paragraph(f"Nothing{of.replace(', ', ' of ')} has a number."))
    if missing := analysis.numberless(results):
        parts += [Heading(f"Without a number{of}"), numberless_table(results, missing)]
        if any("may make" in str(entry["reason"]) for entry in missing):
            parts.append(Paragraph(LIMITS))
    return parts


def _numbers(results: Results, why: Sequence[Why], plots: bool, of: str) -> list[Block]:
    stages, every = analysis.stages(results), _comparators(results)
    name = of.replace(", batch ", "-")
    parts: list[Block] = [Heading(f"TFLOP/s{of}")]
    if plots:
        shown = _most_important(results)
        parts.append(report_plots.throughput(results, shown, f"throughput{name}"))
    parts += [Paragraph(HOW_TO_READ), throughput_table(results)]
    parts += [Heading(f"Milliseconds{of}"), time_table(results)]
    best = analysis.best_stage(results)
    if best is not None and (table := speedup_table(results, best, every)).rows:
        parts.append(Heading(f"Speedup{of}"))
        if plots:
            parts.append(report_plots.speedups(results, best, every, f"speedups{name}"))
        parts += [Paragraph(GROUPS), table]
        parts.append(Paragraph("Every stage over each, geometric mean over the layers:"))
        parts.append(mean_table(results, stages, every))
    elif (table := mean_table(results, stages, every)).rows:
        parts += [Heading(f"Speedup{of}"), Paragraph(GROUPS), table]
    parts += [Heading(f"Roofline{of}")]
    if plots:
        parts.append(report_plots.roofline(results, f"roofline{name}"))
    parts += [Paragraph(_roof_in_words(results)), roofline_table(results)]
    parts += [Heading(f"Memory{of}")]
    if plots:
        parts.append(report_plots.memory(results, f"memory{name}"))
    parts += [Paragraph(MEMORY), memory_table(results)]
    if why:
        parts += [Heading(f"Why not faster{of}"), Paragraph(WHY), why_table(results, why)]
    return parts


HOW_TO_READ = (
    "The operations of the convolution as it is defined (`2 * M * N * K`) over the median time, "
    "every layout transform included. ~ marks a spread of the runs above 2 %. The reasons for "
    "missing numbers are below."
)
GROUPS = (
    "A group is the fastest of several systems on each layer, in fp32: `torch_fastest` of "
    "PyTorch's, `cudnn_fastest` of cuDNN's (by its API or as PyTorch chose it, `torch_fp32`), "
    "`cudnn_gemm_class` of those of cuDNN's that do every multiplication of the convolution, as "
    "the stages do. Means are geometric; (7) marks a mean over 7 layers only."
)
MEMORY = (
    "Device memory beside input, filter and output, in MiB, on the layer that takes most: computed "
    "from what each system asks for, and measured from the GPU's free memory (in steps of 2 MiB, "
    "with what a library keeps for itself)."
)
WHY = (
    "The memory traffic of each stage's main kernel. The strict simulator counts it with the tile "
    f"that a GPU takes for Conv9, on a piece of that layer that fills the tile ({PIECE}). In one "
    "clock an SM starts four multiply-adds of a warp, and meanwhile takes one memory instruction, "
    'serves one pass of shared memory and moves four sectors out of L1. "Counts allow" is the '
    "share of the peak that the slowest of these leaves; for s13 it is at most what its "
    'instruction reaches alone. "Measured" is the geometric mean over the layers of the measured '
    "share of the peak of the stage's arithmetic: fp32, or a third of TF32 for 3xTF32."
)
LIMITS = (
    "An algorithm has two limits: one for the error in the 2-norm and one for the largest error of "
    "an element. The error above is a multiple of the limit that it exceeds by more."
)
HOW = (
    "CUDA events time replays of a captured graph, with L2 flushed before each, until the middle "
    "half of the runs lies within 2 % of the median or 3 seconds are over. Every output is filled "
    "with NaN and checked against a float64 reference before and after the timing. Each family "
    "runs in its own process. A time above the roofline, on a busy GPU, with falling clocks or "
    "with a spread above 20 % is no number."
)


def _measured_on(results: Results) -> str:
    environment = results.environment
    gpu = environment.get("gpu") or {}
    packages = environment.get("packages") or {}
    clocks = environment.get("clocks_mhz") or {}
    versions = [f"{name} {packages[name]}" for name in PACKAGES if packages.get(name)]
    known = [
        results.device,
        *(
            f"{word} {gpu[key]}"
            for key, word in (("driver", "driver"), ("cuda", "CUDA"))
            if gpu.get(key)
        ),
        *versions,
    ]
    if clocks.get("max_sm"):
        known.append(f"up to {clocks['max_sm']} MHz")
    date = str(environment.get("date") or "")[:10]
    batches = sorted({batch for _, batch in results.layers()})
    return (
        f"{', '.join(known)}; {date}. float32 NCHW, batch "
        f"{', '.join(map(str, batches)) or NOTHING}, no bias."
    )


def _headline(results: Results) -> list[Block]:
    best = analysis.best_stage(results)
    if best is None:
        return []
    tiles = []
    for over in _comparators(results):
        mean = analysis.mean_speedup(results, best, over)
        important = over.name == analysis.BASELINE or over.name not in results.systems
        if mean is not None and over.name != best.name and important:
            few = _of_few(mean, results.layers())
            tiles.append(
                (f"{mean[0]:.2f} x{few}", f"`{best.name}` over {over.title.partition(':')[0]}")
            )
    split = analysis.best_stage(results, "3xtf32")
    gain = None if split is None else analysis.mean_speedup(results, split, best)
    if split is not None and gain is not None:
        tiles.append((f"{gain[0]:.2f} x", f"`{split.name}` over `{best.name}`, as accurate"))
    rows = [best.best(results, layer) for layer in results.layers()]
    fastest = max((row.tflops for row in rows if row is not None and row.tflops), default=None)
    if fastest is not None:
        tiles.append((f"{fastest:.1f}", f"TFLOP/s of `{best.name}` at most"))
    return [Tiles(tuple(tiles))]


def _comparators(results: Results) -> list[Contender]:
    """What a stage is held against: s01, each baseline, and the fastest of some."""
    first = [one for one in analysis.stages(results) if one.name == analysis.BASELINE]
    return [*first, *analysis.baselines(results), *analysis.fastest(results)]


def _most_important(results: Results) -> list[Contender]:
    """Few enough for one plot: s01, im2col with BLAS, the last three stages, the fastest
    baselines."""
    names = results.names("stage")
    few = [name for name in names if name in (analysis.BASELINE, "s03_im2col_blas")] + names[-3:]
    chosen = [Contender(name, name, (name,)) for name in dict.fromkeys(few)]
    return [*chosen, *analysis.fastest(results)]


def _everybody(results: Results) -> list[Contender]:
    return [*analysis.stages(results), *analysis.baselines(results)]


def _by_layer(results: Results, cell: str) -> Table:
    layers = results.layers()
    head = ("system", *(layer.replace("conv", "Conv") for layer, _ in layers))
    rows = tuple(
        (f"`{one.name}`", *(_cell(results.row(*layer, one.name), cell) for layer in layers))
        for one in _everybody(results)
    )
    return Table(head, rows)


def throughput_table(results: Results) -> Table:
    """TFLOP/s of every system on every layer."""
    return _by_layer(results, "tflops")


def time_table(results: Results) -> Table:
    """Milliseconds of every system on every layer."""
    return _by_layer(results, "time_ms")


def _cell(row: Row | None, name: str) -> str:
    value = None if row is None else getattr(row, name)
    if row is None or value is None:
        return SHORT.get(NOTHING if row is None else row.state, NOTHING)
    return f"{'' if row.settled else '~'}{_digits(value)}"


def _digits(value: float) -> str:
    """Three digits that mean something: 0.123, 1.23, 12.3, 123."""
    return (
        f"{value:.{max(0, min(3, 2 - len(str(int(abs(value)))) + 1 if abs(value) >= 1 else 3))}f}"
    )


def speedup_table(results: Results, one: Contender, over: Sequence[Contender]) -> Table:
    """One stage over each of the others: the geometric mean, which is looked for first, and layer
    by layer."""
    layers = results.layers()
    head = (
        f"{one.name} over", "mean", *(layer.replace("conv", "Conv") for layer, _ in layers)
    )  # fmt: skip
    rows = []
    for other in over:
        mean = analysis.mean_speedup(results, one, other)
        if mean is None or other.name == one.name:
            continue
        ratios = [analysis.speedup(results, one, other, layer) for layer in layers]
        cells = [NOTHING if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        rows.append((f"`{other.name}`", f"**{mean[0]:.2f}**{_of_few(mean, layers)}", *cells))
    return Table(head, tuple(rows))


def mean_table(results: Results, stages: Sequence[Contender], over: Sequence[Contender]) -> Table:
    """Every stage over each of the others: the geometric mean over the layers that both have."""
    head = ("over", *(short_name(stage.name) for stage in stages))
    rows = []
    for other in over:
        means = [analysis.mean_speedup(results, stage, other) for stage in stages]
        others = [
            mean for stage, mean in zip(stages, means, strict=True) if stage.name != other.name
        ]
        if any(others):
            cells = [
                NOTHING if mean is None else f"{mean[0]:.2f}{_of_few(mean, results.layers())}"
                for mean in means
            ]
            rows.append((f"`{other.name}`", *cells))
    return Table(head, tuple(rows))


def _of_few(mean: tuple[float, int], layers: Sequence[analysis.Layer]) -> str:
    """`` (7)`` after a mean over 7 layers, where there are more."""
    return "" if mean[1] == len(layers) else f" ({mean[1]})"


def _roof_in_words(results: Results) -> str:
    machine, parts = results.machine, []
    if machine.fp32_flops:
        parts.append(f"{machine.fp32_flops / TB:.1f} TFLOP/s in fp32")
    if machine.tf32_flops:
        parts.append(f"{machine.tf32_flops / TB:.0f} in TF32 on the tensor cores")
    if machine.memory_bytes_per_second:
        parts.append(f"{machine.memory_bytes_per_second / TB:.2f} TB/s of memory")
    measured = []
    if machine.sgemm_tflops:
        measured.append(f"cuBLAS SGEMM reaches {machine.sgemm_tflops:.1f} TFLOP/s")
    if machine.copy_bytes_per_second:
        measured.append(f"a copy {machine.copy_bytes_per_second / TB:.2f} TB/s (read and written)")
    roofs = f"The roofs follow from the clocks: {', '.join(parts)}." if parts else ""
    return (
        f"{roofs} {'Measured: ' + ', '.join(measured) + '.' if measured else ''} In the table, "
        "percent of the roofline: of the arithmetic peak of the system's precision or of memory, "
        "whichever takes longer."
    ).strip()


def roofline_table(results: Results) -> Table:
    """Percent of the roofline of every system on every layer."""
    layers = results.layers()
    head = ("percent of the roofline", *(name.replace("conv", "Conv") for name, _ in layers))
    rows = []
    for one in _everybody(results):
        shares = [analysis.percent(results, results.row(*layer, one.name)) for layer in layers]
        rows.append(
            (f"`{one.name}`", *(NOTHING if share is None else f"{share:.0f}" for share in shares))
        )
    return Table(head, tuple(rows))


def memory_table(results: Results) -> Table:
    """Workspaces in MiB, computed and measured, and the mean of all memory over the tensors'."""
    rows = []
    for one in _everybody(results):
        found = [row for row in results.rows.values() if row.system == one.name and row.ok]
        pairs = [analysis.memory(row) for row in found]
        totals = [
            row.peak_bytes / tensor_bytes(paper_layer(row.layer, row.batch))
            for row in found
            if row.peak_bytes
        ]
        rows.append((
            f"`{one.name}`",
            *(_mib([pair[place] for pair in pairs]) for place in (0, 1)),
            f"{analysis.geometric_mean(totals):.2f}" if totals else NOTHING,
        ))  # fmt: skip
    return Table(
        ("system", "workspace, computed", "workspace, measured", "all memory over the tensors'"),
        tuple(rows),
    )


def _mib(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known) / MIB:,.1f}" if known else NOTHING


def why_table(results: Results, why: Sequence[Why]) -> Table:
    """Counts of the simulator beside the measured share of the peak."""
    rows = []
    fp32 = results.machine.fp32_flops
    for one in why:
        precision = results.systems.get(one.stage, {}).get("precision", "fp32")
        peak = results.machine.peak_flops(precision)
        if peak and fp32:
            one = replace(one, pace=peak / fp32)
        one = replace(one, instruction=instruction_percent(results.machine, one.stage))
        shares = [
            100 * row.tflops * TB / peak
            for layer in results.layers()
            if (row := results.row(*layer, one.stage)) is not None and row.tflops and peak
        ]
        tightest = one.tightest
        rows.append((
            f"`{one.stage}`",
            *map(_count, (one.requests, one.sectors, one.passes, one.bytes_per_flop)),
            NOTHING if tightest is None else f"{tightest[1]:.0f} %",
            NOTHING if not shares else f"{analysis.geometric_mean(shares):.1f} %",
        ))  # fmt: skip
    head = (
        "stage", "requests / warp FMA", "sectors / warp FMA", "passes / warp FMA", "bytes / FLOP",
        "counts allow", "measured",
    )  # fmt: skip
    return Table(head, tuple(rows))


def _count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3g}"


def numberless_table(results: Results, missing: Sequence[dict[str, object]]) -> Table:
    """What has no number, where, and why."""
    layers = len(results.layers())
    rows = []
    for entry in missing:
        names = entry["layers"]
        assert isinstance(names, list)
        where = analysis.layers_in_words(names, layers)
        rows.append((f"`{entry['system']}`", where, str(entry["state"]), str(entry["reason"])))
    return Table(("system", "layers", "what", "why"), tuple(rows), left=4)


def _commands(results: Results) -> list[Block]:
    commands = [f"`{command}`" for command in dict.fromkeys(results.commands)]
    return [Paragraph(f"Measured with {', '.join(commands)}.")] if commands else []
