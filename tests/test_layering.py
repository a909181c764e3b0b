"""Imports go one way, from `cli` down to `problem` and `device`: who may know whom, as a table."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_in_cudasim

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
TOP = "convlab"  # the package itself, whose __init__.py holds the public names

PAGE = (SOURCE.parent / "docs/design.md").read_text(encoding="utf-8")
DESIGN = PAGE.split("\n## Imports go one way\n")[1].split("\n## ")[0]
# Rows such as "| 3 | `kernels` |"; of two modules with "then" between, the second is higher.
RANK = {
    module: int(number) + 0.1 * part
    for number, row in re.findall(r"^\| (\d+) \| (.*) \|$", DESIGN, re.M)
    for part, text in enumerate(row.split(", then "))
    for module in re.findall(r"`(\w+)`", text.split(" (")[0])
}
# A module may import its own row and those above it in the page's table, without a cycle. These,
# which others stand on, may import only what is named.
NARROW = {
    "arguments": "",
    "columns": "",
    "compilers": "arguments",
    "problem": "arguments",
    "gradient": "arguments problem",
    "device": "",
    "arrays": "arguments installing",
    "installing": "",
    "unfold": "arguments arrays",
    "files": "arguments",
    "interrupts": "",
    "terminal": "arguments",
    "numba_imports": "",
    "workloads": "arguments problem gradient",
    "convolution": "arguments problem gradient",
    "oracle": "problem gradient convolution",
    "stage": "arguments problem",
    "kernels": "problem device unfold stage",
    "stages": "arguments problem gradient device unfold stage kernels",
    "simulation": "arguments problem device stage",
    "engines": "arguments compilers installing problem device stage simulation",
    "tuned": "compilers files problem stage stages",
    "plans": "arguments arrays problem gradient stage stages engines tuned",
    "api": "arguments arrays problem stage stages engines plans",
    "torch_operators": "arguments arrays problem gradient stage stages engines plans",
    "torch": "arguments engines stages torch_operators",
    "shell": "arguments files interrupts terminal problem workloads stage stages engines ladder "
    "doctor",
    "cli": "commands shell tables checking doctor stages interrupts",
    "__main__": "cli interrupts",
}
COMMAND = {"tables", "shell", "commands", "cli", "__main__"}


def allowed_of(layer: str) -> set[str]:
    """What a module or folder right below convlab may import, itself included."""
    if layer == TOP:
        return RANK.keys() - COMMAND | {TOP}
    if layer in NARROW:
        return {*NARROW[layer].split(), layer}
    # The public names of the package come out of api, tracing and checking.
    top = {TOP} if RANK[layer] >= RANK["ladder"] or layer in ("tracing", "checking") else set()
    return {name for name, rank in RANK.items() if rank <= RANK[layer]} - {"cli"} | top


def layer_of(module: str) -> str:
    """``convlab.ladder.main.m01_direct`` -> ``stages``; ``convlab`` -> ``convlab``."""
    return ".".join(module.split(".")[1:2]) or TOP


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imports(source: str) -> list[tuple[int, str, str]]:
    """Line, module and name of every import, wherever it stands. None is relative."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            found += [(node.lineno, str(node.module), alias.name) for alias in node.names]
    return found


def layers_imported(source: str) -> Iterator[tuple[int, str]]:
    for line, module, name in imports(source):
        if module.split(".")[0] == TOP:
            # `from convlab import api` imports the layer, `from convlab import plan` the top.
            yield line, name if module == TOP and name in RANK else layer_of(module)


def violations(source: str, file: str) -> list[str]:
    """The imports in ``source`` that the table forbids; ``file`` is its path below ``src``."""
    layer = layer_of(module_of(file))
    if layer not in RANK.keys() | {TOP}:
        return [f"{file}: {layer!r} is in no row of the table of docs/design.md"]
    allowed = allowed_of(layer)
    return [
        f"{file}:{line}: {layer} imports {name}, but may import only {', '.join(sorted(allowed))}"
        for line, name in layers_imported(source)
        if name not in allowed
    ]


def test_imports_go_one_way():
    found = [line for file in FILES for line in violations((SOURCE / file).read_text(), file)]
    assert not found, "\n".join(found)


def test_no_two_modules_import_each_other():
    """Neither two layers nor two modules of one layer; ``CycleError`` names the circle."""
    modules = {module_of(file): (SOURCE / file).read_text() for file in FILES}
    layers: dict[str, set[str]] = {}
    below: dict[str, set[str]] = {}
    for module, source in modules.items():
        layer = layer_of(module)
        found = {name for _, name in layers_imported(source)}
        layers.setdefault(layer, set()).update(found - {layer, TOP})
        # `from convlab.ladder import m01_direct` is that module and not the package.
        named = {
            f"{start}.{name}" if f"{start}.{name}" in modules else start
            for _, start, name in imports(source)
        }
        below[module] = {one for one in named & modules.keys() if layer_of(one) == layer}
    del layers[TOP]
    TopologicalSorter(layers).prepare()
    TopologicalSorter(below).prepare()


def test_the_table_names_what_there_is():
    assert {layer_of(module_of(file)) for file in FILES} == RANK.keys() | {TOP}
    assert all(
        RANK[name] <= RANK[layer] for layer, names in NARROW.items() for name in names.split()
    )
    assert max(Counter(RANK.values()).values()) < 8  # that may all import one another


FORBIDDEN = """
problem.py: import convlab.device
problem.py: import convlab
stages/m01_direct.py: from convlab import plan
stages/m01_direct.py: from convlab import engines
stages/__init__.py: from convlab.running.engines.gpu import run
engines/gpu.py: if run(): from convlab.running.api import conv2d
tracing/views.py: from convlab.checking import check
bench/cases.py: from convlab import tables
__init__.py: from convlab import cli
helpers.py: pass
"""


@pytest.mark.parametrize("line", FORBIDDEN.strip().split("\n"))
def test_a_planted_violation_is_found(line):
    file, source = line.split(": ", 1)
    assert len(violations(source, f"convlab/{file}")) == 1
