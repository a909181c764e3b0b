"""The cache of compiled kernels on disk (:mod:`convlab.support.kernel_files`).

A kernel's key is :mod:`convlab.running.engines.kernel_identity`'s. The first line of what is kept
is a JSON object, the facts about the kernel; the machine code follows.
"""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from convlab.running.engines.cubin import Cubin, Layout
from convlab.support import kernel_files


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    """The facts about a kernel, and the key that it was stored under."""

    key: str
    capability: tuple[int, int]
    name: str
    layout: Layout
    parameter_bytes: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


def stored(key: str) -> Cubin | None:
    """Return the kernel of that key; None where the cache does not have it."""
    content = kernel_files.read(key)
    if content is None:
        return None
    try:
        return _decoded(content, key)
    except ValueError as error:
        kernel_files.refuse(key, str(error))
        return None


def store(key: str, cubin: Cubin) -> None:
    """Keep a kernel under that key, if the folder takes it."""
    facts = asdict(cubin)
    del facts["code"]
    header = msgspec.json.encode(_Header(key=key, **facts))
    kernel_files.write(key, header + b"\n" + cubin.code)


def _decoded(content: bytes, key: str) -> Cubin:
    """Return the kernel in a file. Raises ``ValueError`` for anything but the kernel of that
    key."""
    line, _, code = content.partition(b"\n")
    try:
        facts = msgspec.structs.asdict(msgspec.json.decode(line, type=_Header))
    except msgspec.DecodeError as error:
        raise ValueError(f"its header is not one of convlab's: {error}") from error
    if facts.pop("key") != key:
        raise ValueError("it holds another kernel")
    return Cubin(code=code, **facts)
