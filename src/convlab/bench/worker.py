"""A process that measures: ``python -m convlab.bench.worker MODULE:BACKEND``.

The parent process sends one JSON command a line on standard input and gets one line back for each.
The parent checks the outputs, so nothing that breaks here (an error that stays with the CUDA
context, a crash, lost memory) reaches the check or another system's result.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from convlab.bench.bounds import Checked
from convlab.bench.harness import measure
from convlab.problem import ConvProblem

INPUT, WEIGHT, OUTPUT = "input.npy", "weight.npy", "output.npy"


def serve(make_backend: Any, commands: IO[str], answers: IO[str]) -> None:
    """Answer commands until the stream ends."""

    def answer(**document: Any) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    def check_by_parent(folder: Path, output: np.ndarray) -> Checked:
        shared = np.load(folder / OUTPUT, mmap_mode="r+")
        reason = None
        if output.dtype != np.float32:
            reason = f"the output is {output.dtype}, not float32"
        elif output.shape != shared.shape:
            reason = f"the output has shape {output.shape}, not {shared.shape}"
        if reason is not None:
            return Checked("none", float("inf"), reason)
        with ThreadPoolExecutor() as pool:
            list(pool.map(np.copyto, shared, output))
        answer(check=True)
        return Checked(**json.loads(commands.readline()))

    backend: Any = None
    for line in commands:
        command = json.loads(line)
        try:
            backend = backend or make_backend(command.get("allowed"))
            if command["do"] == "facts":
                answer(facts=backend.facts())
                continue
            problem = ConvProblem(**command["problem"])
            if command["do"] == "compile":
                # All are started before the first is waited for: builds run side by side.
                started = [backend.compile(name, problem) for name in command["systems"]]
                for future in started:
                    if future is not None:
                        future.result()
                answer(compiled=True)
                continue
            folder = Path(command["folder"])
            input, weight = (np.load(folder / name, mmap_mode="c") for name in (INPUT, WEIGHT))
            backend.allowed = command.get("allowed")
            outcome = measure(
                backend.system_named(command["system"]),
                problem,
                (input, weight),
                backend,
                partial(check_by_parent, folder),
            )
            answer(outcome=outcome.as_json())
        except Exception as error:
            traceback.print_exc()
            answer(error=f"{type(error).__name__}: {' '.join(str(error).split())}")


def main() -> None:
    """Serve on standard input and output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module, _, name = sys.argv[1].partition(":")
    serve(getattr(import_module(module), name), sys.stdin, answers)


if __name__ == "__main__":
    main()
