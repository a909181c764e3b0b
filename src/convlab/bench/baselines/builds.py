"""Compiles a baseline's C++ or CUDA source once and keeps the library in convlab's cache folder.

The library's name holds a hash of the source, the command and the compiler's version, so that a
change of any of them builds it anew.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from convlab.bench.baselines.base import Unsupported
from convlab.tuned import cache_folder


class BuildFailed(Unsupported):
    """The compiler rejected the source; quotes its first error."""


@cache
def version(compiler: str) -> str:
    """What ``compiler --version`` prints. Raises :class:`BuildFailed` where it cannot run."""
    try:
        run = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise BuildFailed(f"{compiler} cannot be run: {error.strerror}") from error
    return run.stdout.strip()


def built(
    source: Path, compiler: str, options: Sequence[str], headers: Sequence[Path] = ()
) -> Path:
    """The shared library that ``compiler OPTIONS -o LIBRARY SOURCE`` makes, or has made before.

    A change of one of ``headers`` builds it anew. Raises :class:`BuildFailed` with the compiler's
    first error, or where the library cannot be written.
    """
    command = [compiler, *options]
    digest = hashlib.sha256()
    for file in (source, *headers):
        digest.update(file.read_bytes())
    digest.update("\0".join([*command, version(compiler)]).encode())
    library = cache_folder() / f"{source.stem}-{digest.hexdigest()[:16]}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            unfinished = Path(folder) / library.name
            run = subprocess.run(
                [*command, "-o", str(unfinished), str(source)], capture_output=True, text=True
            )
            if run.returncode != 0:
                name = Path(compiler).name
                raise BuildFailed(f"{name} could not build {source.name}: {_first_error(run)}")
            os.replace(unfinished, library)  # whole or not at all, also beside another process
    except OSError as error:
        raise BuildFailed(
            f"{source.name} could not be built in {library.parent}: {error.strerror or error}"
        ) from error
    return library


def _first_error(run: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (run.stderr + run.stdout).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [f"it ended with code {run.returncode}"])[0]
