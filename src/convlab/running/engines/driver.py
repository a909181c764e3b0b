"""CUDA's driver: its error codes as exceptions."""

from __future__ import annotations

from typing import Any


class LaunchRefused(RuntimeError):
    """An error of the driver. The message has the driver's name of the error and, where the call
    was about kernels, their names."""


def driver_result(answer: tuple[Any, ...], kernels: str = "") -> Any:
    """Return what a call of the driver gives: nothing, or one value of the call's own type, which
    is why it is ``Any``. Raises :class:`LaunchRefused` for an error, with the names of the kernels
    that the call was about."""
    error, *results = answer
    if error:
        refused = f"CUDA could not launch {kernels}" if kernels else "CUDA driver"
        raise LaunchRefused(f"{refused}: {error.name}")
    return results[0] if results else None
