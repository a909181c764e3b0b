"""What a report says, as a document of :mod:`json`: what follows from a file of results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from convlab.bench import analysis
from convlab.bench.analysis import Contender, Layer
from convlab.bench.results import Results, agreement


def as_json(results: Results, others: Sequence[Results] = ()) -> dict[str, Any]:
    """Each batch's speedups, roofline shares and reasons; how far ``others`` agree with it."""
    batches = sorted({batch for _, batch in results.layers()})
    return {
        "device": results.device,
        "environment": results.environment,
        "identity": results.identity,
        "finished": results.finished,
        "batches": [
            _of_one_batch(
                replace(
                    results,
                    rows={key: row for key, row in results.rows.items() if row.batch == batch},
                ),
                batch,
            )
            for batch in batches
        ],
        "other_runs": [_agreement(results, other) for other in others],
    }


def _agreement(results: Results, other: Results) -> dict[str, Any]:
    systems = [
        {"system": name, "layers": layers, "median_percent": median, "largest_percent": largest}
        for name, layers, median, largest in agreement(results, other)
    ]
    return {
        "environment": other.environment,
        "identity": other.identity,
        "finished": other.finished,
        "systems": systems,
    }


def _of_one_batch(results: Results, batch: int) -> dict[str, Any]:
    everybody = [*analysis.stages(results), *analysis.baselines(results)]
    groups = analysis.fastest(results)
    over = [*(one for one in everybody if one.name == analysis.BASELINE), *groups]
    return {
        "batch": batch,
        "systems": [_system(results, one, over) for one in (*everybody, *groups)],
        "without_number": analysis.numberless(results),
    }


def _system(results: Results, one: Contender, over: list[Contender]) -> dict[str, Any]:
    means = {other.name: analysis.mean_speedup(results, one, other) for other in over}
    return {
        "name": one.name,
        "title": one.title,
        "mean_speedup_over": {
            name: None if mean is None else {"mean": mean[0], "layers": mean[1]}
            for name, mean in means.items()
        },
        "layers": [_layer(results, one, over, layer) for layer in results.layers()],
    }


def _layer(results: Results, one: Contender, over: list[Contender], layer: Layer) -> dict[str, Any]:
    row = one.best(results, layer)
    return {
        "layer": layer[0],
        "system": None if row is None else row.system,
        "time_ms": None if row is None else row.time_ms,
        "settled": None if row is None else row.settled,
        "tflops": None if row is None else row.tflops,
        "percent_of_roofline": analysis.percent(results, row),
        "speedup_over": {
            other.name: analysis.speedup(results, one, other, layer) for other in over
        },
        "workspace_bytes": None if row is None else row.workspace_bytes,
        "peak_bytes": None if row is None else row.peak_bytes,
    }
