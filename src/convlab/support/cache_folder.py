"""The folder of all that convlab keeps on disk: tuned tiles, compiled kernels, built baselines."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path

VARIABLE = "CONVLAB_CACHE"


def cache_folder() -> Path:
    """Return ``$CONVLAB_CACHE``, else the system's folder for caches: ``convlab`` in
    ``$XDG_CACHE_HOME`` or ``~/.cache`` on Linux, ``%LOCALAPPDATA%`` on Windows. It need not exist.
    Raises ``RuntimeError`` where there is no such folder, as without a home folder."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    try:
        usual = user_cache_path("convlab", appauthor=False)
    except RuntimeError:  # from some version of platformdirs on
        usual = Path("~")
    if not usual.is_absolute():
        raise RuntimeError(f"no home folder was found: set {VARIABLE} to a folder for the cache")
    return usual
