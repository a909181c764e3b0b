"""Lists of cases beside those of ``convlab bench``: ``python -m convlab.bench.experiments NAME``.

============ ======================================================================================
sizes        s12, PyTorch and cuDNN's GEMM class on sizes that no tile was tuned for
ablation     Figure 4 of the im2win paper: s11 whole and without each technique, twelve layers
sweeps       Figures 1 to 4 of article 001: single images, one size changed at a time, and C++ loops
unfold_table Table 1 of article 002 (:mod:`convlab.bench.unfold_table`)
============ ======================================================================================

Each case is measured as ``convlab bench`` measures: in a process of its family, its output checked
before and after. ``--json FILE`` is written after each row, so that the same command can continue.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from convlab.bench import cases as all_cases
from convlab.bench import unfold_table
from convlab.bench.analysis import TORCH
from convlab.bench.cases import Case
from convlab.bench.measured import GPU_ONLY, INTERRUPTED, write_results
from convlab.bench.pool import WorkerDied
from convlab.bench.rows import LASTING, WRONG_STATES
from convlab.bench.systems import VARIANTS, WHOLE, system_named
from convlab.doctor import environment
from convlab.engines import EngineUnavailable, choose
from convlab.files import beside, strict
from convlab.problem import ConvProblem
from convlab.workloads import LAYER_NAMES, PAPER_BATCH, UNSEEN, UNTUNED, paper_layer

Document = Mapping[str, Any]

SIZES = UNTUNED | UNSEEN
S12 = "s12_fused_im2win"
SIZE_SYSTEMS = (S12, TORCH, "cudnn_implicit_gemm", "cudnn_implicit_precomp_gemm", "cudnn_gemm")
SWEEP_BASE = ConvProblem(1, 4, 128, 128, 16, 3)
# Article 001 gives no sizes but a filter of 64 x 64. These keep the C++ loops at seconds.
SWEEPS: dict[str, tuple[int, ...]] = {
    "size": (32, 64, 128, 256, 512, 1024),
    "in_channels": (1, 4, 16, 64, 256),
    "out_channels": (1, 4, 16, 64, 256),
    "kernel_size": (1, 3, 7, 16, 32, 64),
}
SWEEP_SYSTEMS = (
    "cpp_seven_loops", "s02_cin_naive", "s02_cout", "s02_cin", "cutlass_analytic",
    "cutlass_optimized", "torch_compile_fp32", "torch_compile_tf32", "cutlass_tf32", WHOLE,
)  # fmt: skip


def named(problems: Mapping[str, ConvProblem], systems: Iterable[str]) -> list[Case]:
    """Every system on every problem of that name."""
    chosen = [system_named(name) for name in systems]
    return [Case(name, problem, system) for name, problem in problems.items() for system in chosen]


def ablation() -> list[Case]:
    """Each technique switched off alone; a time includes the layout transform."""
    layers = {name: paper_layer(name, PAPER_BATCH) for name in LAYER_NAMES}
    return named(layers, (WHOLE, *VARIANTS))


def sweep_points() -> list[tuple[str, int, ConvProblem]]:
    """Every sweep, value and problem: the base with one of its sizes changed."""

    def problem(sweep: str, value: int) -> ConvProblem:
        changed = dict.fromkeys(("height", "width") if sweep == "size" else (sweep,), value)
        return replace(SWEEP_BASE, **changed)  # type: ignore[arg-type]

    return [(sweep, n, problem(sweep, n)) for sweep, values in SWEEPS.items() for n in values]


def sweeps() -> list[Case]:
    """The cases of ``sweeps``; a problem that several sweeps share is measured once."""
    return named({str(problem): problem for _, _, problem in sweep_points()}, SWEEP_SYSTEMS)


def points_as_json(older: Document | None) -> dict[str, Any]:
    """The points of all sweeps."""
    return {
        "points": [
            {"sweep": sweep, "value": value, "problem": str(problem)}
            for sweep, value, problem in sweep_points()
        ]
    }


class Experiment(NamedTuple):
    """``more`` gives what else belongs into the document, from an older document of the same
    machine, versions and code, or None; ``backend`` knows systems of its own."""

    cases: Callable[[], Sequence[Case]]
    more: Callable[[Document | None], dict[str, Any]] = lambda older: {}
    backend: str | None = None


EXPERIMENTS = {
    "sizes": Experiment(lambda: named(SIZES, SIZE_SYSTEMS)),
    "ablation": Experiment(ablation),
    "sweeps": Experiment(sweeps, points_as_json),
    "unfold_table": Experiment(
        unfold_table.cases, unfold_table.first_calls_once, unfold_table.BACKEND
    ),
}


def measure(
    experiment: Experiment, older: Document | None, save: Callable[[Document], None]
) -> bool:
    """Measure what is not in ``older``; ``save`` gets the machine, the versions and the rows after
    each row, and at the end with ``ok``: whether all is well, which is also returned.

    Rows of an ``older`` document with the same machine, versions and code stay. Raises
    :class:`~convlab.bench.pool.WorkerDied` where no process can measure.
    """
    cases = experiment.cases()
    with all_cases.open_bench(experiment.backend) as bench:
        same = bench.identity
        rows = [
            row
            for row in (older or {"rows": []})["rows"]
            if row["identity"] == same and row["state"] in LASTING
        ]
        document: dict[str, Any] = {
            "machine": bench.machine.as_json(),
            "packages": bench.environment["packages"],
            "identity": same,
            "systems": list({case.system.name: case.system.as_json() for case in cases}.values()),
            "rows": rows,
        }
        document |= experiment.more(older if older and older["identity"] == same else None)
        have = {(row["layer"], row["problem"], row["system"]) for row in rows}
        todo = [
            case for case in cases if (case.layer, str(case.problem), case.system.name) not in have
        ]
        _say(f"compiling for {len(todo)} rows" + (f", {len(rows)} are there" if rows else ""))
        problems = {case.key: str(case.problem) for case in todo}
        for number, row in enumerate(all_cases.run(todo, bench), start=1):
            rows.append({"problem": problems[row.key]} | strict(row.as_json()))
            said = f"{row.time_ms:.4f} ms" if row.ok else f"{row.state}: {row.reason}"
            _say(f"{number:4} of {len(todo)}  {row.layer:16} {row.system:32} {said}")
            save(document)
    document["ok"] = not any(row["state"] in WRONG_STATES for row in rows)
    save(document)
    return bool(document["ok"])


def read(file: Path) -> Document | None:
    """What an earlier run wrote; None where there is no file.

    Raises ``ValueError`` for a file of something else, and for one that cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside(file).touch()
        beside(file).unlink()
    except OSError as error:
        raise ValueError(
            f"--json is {str(file)!r}, which cannot be written ({error.strerror}): give another"
        ) from None
    try:
        document: Document = json.loads(file.read_text(encoding="utf-8"))
        document["identity"]
        for row in document["rows"]:
            row["identity"], row["state"], row["problem"], row["layer"], row["system"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(f"--json is {str(file)!r}, no file of this benchmark: {error!r}") from None
    return document


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its rows go to standard error as they come. Returns its exit code: 1 where
    something was wrong, 2 where it cannot run, 130 after Ctrl-C."""
    module = "python -m convlab.bench.experiments"
    parser = argparse.ArgumentParser(
        prog=module, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--json", metavar="FILE", type=Path, help="kept after every row")
    chosen = parser.parse_args(arguments)
    file: Path | None = chosen.json
    typed = f"{module} {chosen.name}" + (f" --json {shlex.quote(str(file))}" if file else "")

    try:
        older = None if file is None else read(file)
        here: Document = {
            "device": choose("gpu").device,
            "environment": environment([]) | {"command": typed},
        }
    except (ValueError, EngineUnavailable) as error:
        why = f": {GPU_ONLY}" if isinstance(error, EngineUnavailable) else ""
        _say(f"convlab: {error}{why}")
        return 2

    def save(document: Document) -> None:
        nonlocal older
        if file is None:
            return
        if older is not None and older["identity"] != document["identity"]:
            other = file.with_name(f"{file.stem}-{older['identity']}{file.suffix}")
            file.replace(other)
            _say(f"{file} was of another machine, versions or code: it is {other} now")
        older = None
        write_results(file, {**document, **here})

    try:
        return 0 if measure(EXPERIMENTS[chosen.name], older, save) else 1
    except WorkerDied as error:
        _say(f"convlab: no process can measure here: {error}")
        return 2
    except KeyboardInterrupt:
        left = "the same command goes on" if file else "nothing was written"
        _say(f"convlab: interrupted, {left}")
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
