"""Machine code of the compiled engine, kept on disk (:mod:`convlab.support.kernel_files`).

It depends on the simulator's files, on Numba and LLVM, and on the CPU: all of these are in its key,
and for a kernel its text. What is kept are facts and object files, after a line of JSON with each
one's symbol, name and size.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm
from numba.core import config

from convlab.support import kernel_files
from convlab.support.whole_files import fingerprint

# Not only the compiler's files: refusals are kept too, and depend on the rules and on the types
# that the other engine infers.
SIMULATION = Path(__file__).parent.parent
PACKAGES = "numba", "llvmlite", "numpy", "numba-cuda", "numba-cuda-mlir"
SETTINGS = "OPT", "DEBUGINFO_DEFAULT", "USING_SVML", "CPU_NAME", "CPU_FEATURES", "LOOP_VECTORIZE"


class ObjectCode(NamedTuple):
    """The object file of one function: its symbol for others, its name in the file, the file."""

    symbol: str
    name: str
    content: bytes


class Stored(NamedTuple):
    """Object files, and what else must be known to use them, as JSON has it."""

    codes: Sequence[ObjectCode]
    facts: Mapping[str, str | int | bool]


class Loaded(NamedTuple):
    """The address of a function in memory, and what keeps it there."""

    address: int
    engine: object


@cache
def _toolchain() -> str:
    """Return what makes the machine code, and the CPU that it is for."""
    return "\n".join(
        [
            "simulator",
            fingerprint(sorted(SIMULATION.rglob("*.py")), below=SIMULATION),
            *map(_version, PACKAGES),
            *(f"{name} {getattr(config, name, None)}" for name in SETTINGS),
            platform.python_version(),
            llvm.get_default_triple(),
            llvm.get_host_cpu_name(),
            llvm.get_host_cpu_features().flatten(),
        ]
    )


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def key_of(text: str) -> str:
    """Return the key of machine code whose source that text describes."""
    return sha256(f"{_toolchain()}\n{text}".encode()).hexdigest()


def stored(key: str) -> Stored | None:
    """Return what is kept under a key; None if nothing is."""
    content = kernel_files.read(key)
    if content is None:
        return None
    first, _, rest = content.partition(b"\n")
    header = json.loads(first)
    codes, begin = [], 0
    for symbol, name, size in header["codes"]:
        codes.append(ObjectCode(symbol, name, rest[begin : begin + size]))
        begin += size
    return Stored(codes, header["facts"])


def store(key: str, made: Stored) -> None:
    """Keep machine code, if the cache's folder takes it."""
    sizes = [(one.symbol, one.name, len(one.content)) for one in made.codes]
    header = json.dumps({"codes": sizes, "facts": made.facts}).encode()
    kernel_files.write(key, b"\n".join([header, b"".join(one.content for one in made.codes)]))


def loaded(code: ObjectCode) -> Loaded:
    """Load an object file into memory."""
    target = llvm.Target.from_default_triple().create_target_machine(
        codemodel="jitdefault", jit=True
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.content))
    engine.finalize_object()
    return Loaded(int(engine.get_function_address(code.name)), engine)
