"""The memory of this machine, and the refusal of work that needs more than there is."""

from __future__ import annotations

import os


def host_bytes() -> int | None:
    """All memory of this machine; None where unknown. How much is free changes by the minute."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return None


def check_memory(
    what: str, needed: int, there: int | None, where: str = "this machine", hint: str = ""
) -> None:
    """Raise ``MemoryError`` with the sizes for more bytes than there are; None is 2**63."""
    if needed >= 2**63:
        raise MemoryError(f"{what} needs more than 2**63 bytes: no machine has them{hint}")
    if there is not None and needed > there:
        sizes = f"{_size(needed)}, but {_size(there)} are all there is on {where}"
        raise MemoryError(f"{what} needs {sizes}{hint}")


def _size(nbytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes} bytes"
