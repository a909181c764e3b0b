"""The machine code of one kernel, the facts that a launch and a reader need of it, and its file.

A cubin is an ELF file. Its sections are named after the kernel: ``.text.NAME`` holds the
instructions, ``.nv.info.NAME`` the attributes, ``.nv.constant0.NAME`` the constant bank in which
the driver stores the kernel's parameters. Only a kernel has such a bank; device functions that were
not inlined have a section ``.text`` alone.

Kernels stay on disk (:mod:`convlab.support.kernel_files`). A file is named by a key of
:mod:`convlab.running.engines.kernel_identity`. Its first line is a JSON object, the facts about the
kernel; the machine code follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from struct import error as StructError
from struct import unpack_from
from typing import Literal, NamedTuple

import msgspec

from convlab.ladder.stage import Capability
from convlab.support import kernel_files

# The parameters that a kernel takes for one array, by the compiler's convention for calls: see
# `parameters.array_parameters`.
Layout = Literal["numba", "memref"]

CONSTANTS, INFO, TEXT = ".nv.constant0.", ".nv.info.", ".text."
PARAMETER_BYTES = 0x19  # the attribute of a kernel: how many bytes all its parameters take
WITH_BYTES = 4  # the form of an attribute whose value is a size and then so many bytes


# The names of GPU architectures, as NVIDIA's compilers and linkers take them.


def arch_of(capability: Capability) -> str:
    """Return the architecture of a compute capability: ``sm_90`` for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def own_instructions(capability: Capability) -> str:
    """Return the architecture with the instructions that only this kind of GPU has: ``sm_90a``.
    There are such instructions from 9.0 on, for example wgmma."""
    return f"{arch_of(capability)}a" if capability >= (9, 0) else arch_of(capability)


# Compiled kernels.


@dataclass(frozen=True)
class Cubin:
    """One compiled kernel: its name in the machine code, the layout of its array parameters and
    their bytes in all, registers, stack and spills per thread, shared memory per block, and the
    machine code itself."""

    capability: Capability
    name: str
    layout: Layout
    parameter_bytes: int
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    code: bytes


# The file on disk.


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


# The parts of an ELF file.


class Section(NamedTuple):
    """A named part of an ELF file."""

    name: str
    content: bytes


def sections(code: bytes) -> Iterator[Section]:
    """Yield the sections of an ELF file. Raises ``ValueError`` for anything else."""
    try:
        (begin,), (size, count, names) = unpack_from("<Q", code, 0x28), unpack_from("<3H", code, 58)
        # Of each section: where its name is, its offset in the file, its size.
        places = [
            (
                *unpack_from("<I", code, begin + size * number),
                *unpack_from("<2Q", code, begin + size * number + 0x18),
            )
            for number in range(count)
        ]
        strings = places[names][1]
        for name, offset, length in places:
            end = code.index(b"\0", strings + name)
            yield Section(code[strings + name : end].decode(), code[offset : offset + length])
    except (IndexError, StructError) as error:
        raise ValueError(f"the machine code is not a whole ELF file: {error}") from error


def instruction_bytes(code: bytes) -> bytes:
    """Return the instructions of a cubin: its sections .text, one for each function."""
    return b"".join(part.content for part in sections(code) if part.name.startswith(TEXT))


def kernel_in(code: bytes) -> tuple[str, int]:
    """Return the name of the only kernel of a cubin, and the bytes of its parameters. Raises
    ``ValueError`` where there is not exactly one kernel, or it does not say their size."""
    contents = {section.name: section.content for section in sections(code)}
    names = [name.removeprefix(CONSTANTS) for name in contents if name.startswith(CONSTANTS)]
    if len(names) != 1:
        raise ValueError(f"the machine code has {len(names)} kernels: it must have one")
    (name,) = names
    for attribute, value in _attributes(contents.get(INFO + name, b"")):
        if attribute == PARAMETER_BYTES:
            return name, value
    raise ValueError(f"the machine code does not say how many bytes of parameters {name} takes")


def _attributes(info: bytes) -> Iterator[tuple[int, int]]:
    """Yield the attributes of a section .nv.info, each with its value, or for a longer value with
    the size of that."""
    place = 0
    while place + 4 <= len(info):
        form, attribute, value = unpack_from("<2BH", info, place)
        yield attribute, value
        place += 4 + (value if form == WITH_BYTES else 0)
