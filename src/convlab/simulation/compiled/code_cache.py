"""Machine code that all compiled kernels share, kept on disk (:mod:`convlab.support.kernel_files`).

It is made of convlab's own files, by Numba and LLVM, for one kind of CPU: all of these are in its
key. What is kept are the object files, after a line of JSON with each one's symbol, name and size.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm

from convlab.support import kernel_files
from convlab.support.whole_files import fingerprint

HERE = Path(__file__).parent


class ObjectCode(NamedTuple):
    """The object file of one function: its symbol for others, its name in the file, the file."""

    symbol: str
    name: str
    content: bytes


@cache
def _key() -> str:
    parts = [
        "simulator",
        fingerprint(sorted(HERE.glob("*.py")), below=HERE),
        *(version(name) for name in ("numba", "llvmlite", "numpy")),
        platform.python_version(),
        llvm.get_default_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
    ]
    return sha256("\n".join(parts).encode()).hexdigest()


def stored() -> list[ObjectCode] | None:
    """Return the machine code of this version of convlab on this CPU; None if it is not kept."""
    content = kernel_files.read(_key())
    if content is None:
        return None
    first, _, rest = content.partition(b"\n")
    codes, begin = [], 0
    for symbol, name, size in json.loads(first):
        codes.append(ObjectCode(symbol, name, rest[begin : begin + size]))
        begin += size
    return codes


def store(codes: Sequence[ObjectCode]) -> None:
    """Keep the machine code, if the cache's folder takes it."""
    header = json.dumps([(one.symbol, one.name, len(one.content)) for one in codes]).encode()
    kernel_files.write(_key(), b"\n".join([header, b"".join(one.content for one in codes)]))


@cache
def _loaded() -> list[llvm.ExecutionEngine]:
    return []  # engines, which keep the machine code alive


def address_of(code: ObjectCode) -> int:
    """Load an object file, and return the address of its function."""
    target = llvm.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    _loaded().append(engine)
    return int(engine.get_function_address(code.name))
