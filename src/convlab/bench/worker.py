"""A process that measures: ``python -m convlab.bench.worker MODULE:LABORATORY``.

The process that started it sends a command a line on standard input, in JSON, and gets a line back
for each. Its results are judged over there, so that nothing that goes wrong here (an error that
stays with CUDA, a crash, memory that is gone) can touch the judge or another system's result.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from convlab.bench.bounds import Judged
from convlab.bench.measuring import measure
from convlab.problem import ConvProblem

INPUT, WEIGHT, OUTPUT = "input.npy", "weight.npy", "output.npy"


def serve(laboratory: Any, commands: IO[str], answers: IO[str]) -> None:
    """Answer commands until there are no more."""

    def answer(**document: Any) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    place: Any = None
    for line in commands:
        command = json.loads(line)
        try:
            place = place or laboratory(command.get("allowed"))
            if command["do"] == "facts":
                answer(facts=place.facts())
                continue
            problem = ConvProblem(**command["problem"])
            if command["do"] == "compile":
                started = [place.compile(name, problem) for name in command["systems"]]
                for future in started:
                    if future is not None:
                        future.result()
                answer(compiled=True)
                continue
            folder = Path(command["folder"])
            tensors = (
                np.load(folder / INPUT, mmap_mode="c"),
                np.load(folder / WEIGHT, mmap_mode="c"),
            )

            def judge(output: np.ndarray, folder: Path = folder) -> Judged:
                if output.dtype != np.float32:
                    return Judged(
                        "none", float("inf"), f"the output is {output.dtype}, not float32"
                    )
                shared = np.load(folder / OUTPUT, mmap_mode="r+")
                if output.shape != shared.shape:
                    reason = f"the output has shape {output.shape}, not {shared.shape}"
                    return Judged("none", float("inf"), reason)
                with ThreadPoolExecutor() as pool:
                    list(pool.map(np.copyto, shared, output))
                answer(judge=True)
                return Judged(**json.loads(commands.readline()))

            place.allowed = command.get("allowed")
            system = place.system_named(command["system"])
            answer(outcome=measure(system, problem, tensors, place, judge).as_json())
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
