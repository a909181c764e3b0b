"""Imports go one way, from `cli` down to `problem` and `device`: who may know whom, as a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

pytestmark = pytest.mark.same_in_cudasim

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
TOP = "convlab"  # the package itself, whose __init__.py holds the public names

DESIGN = (SOURCE.parent / "docs/design.md").read_text(encoding="utf-8")
# Rows such as "| 3 | `kernels` |"; of two modules with "then" between, the second is higher.
ROWS = {
    int(number) + 0.1 * part: set(re.findall(r"`(\w+)`", text.split(" (")[0]))
    for number, row in re.findall(r"^\| (\d+) \| (.*) \|$", DESIGN, re.M)
    for part, text in enumerate(row.split(", then "))
}
RANK = {module: rank for rank, modules in ROWS.items() for module in modules}
# A module may import its own row and those above it in the page's table, without a cycle. These,
# which others stand on, may import only what is named.
NARROW: dict[str, set[str]] = {
    "arguments": set(),
    "problem": {"arguments"},
    "device": set(),
    "unfold": set(),
    "files": set(),
    "workloads": {"problem"},
    "convolution": {"arguments", "problem"},
    "rounding": {"problem"},
    "oracle": {"problem", "convolution", "rounding"},
    "stage": {"problem"},
    "kernels": {"problem", "device", "unfold", "stage"},
    "stages": {"problem", "device", "unfold", "stage", "kernels"},
    "simulation": {"problem", "device", "stage"},
    "engines": {"problem", "device", "stage", "simulation"},
    "tuned": {"problem", "stage", "stages"},
    "plans": {"problem", "stage", "stages", "engines", "tuned"},
    "api": {"arguments", "problem", "stage", "stages", "engines", "oracle", "plans"},
    "shell": {"files"},
    "cli": {"commands", "shell"},
}
COMMAND = {"tables", "shell", "commands", "cli"}


def allowed_of(layer: str) -> set[str]:
    """What a module or folder right below convlab may import, itself included."""
    if layer == TOP:
        return RANK.keys() - COMMAND | {TOP}
    if layer in NARROW:
        return NARROW[layer] | {layer}
    # The public names of the package come out of api, tracing and checking.
    top = {TOP} if RANK[layer] >= RANK["ladder"] or layer in ("tracing", "checking") else set()
    return {name for name, rank in RANK.items() if rank <= RANK[layer]} - {"cli"} | top


def layer_of(module: str) -> str:
    """``convlab.stage`` -> ``stages``; ``convlab`` -> ``convlab``."""
    return ".".join(module.split(".")[1:2]) or TOP


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, wherever it stands; names are relative to ``package``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            start = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:
                # `from convlab import api` imports the layer, `from convlab import plan` the top.
                below = module == TOP and alias.name in RANK
                yield node.lineno, f"{TOP}.{alias.name}" if below else module


def violations(source: str, file: str) -> list[str]:
    """The imports in ``source`` that the table forbids; ``file`` is its path below ``src``."""
    path = Path(file)
    package = ".".join(path.parent.parts)
    layer = layer_of(package if path.stem == "__init__" else f"{package}.{path.stem}")
    if layer not in RANK.keys() | {TOP}:
        return [f"{file}: {layer!r} is in no row of the table of docs/design.md"]
    allowed = allowed_of(layer)
    return [
        f"{file}:{line}: {layer} imports {name}, but may import only {', '.join(sorted(allowed))}"
        for line, name in imports(ast.parse(source), package)
        if name.split(".")[0] == TOP and layer_of(name) not in allowed
    ]


@pytest.mark.parametrize("file", FILES)
def test_imports_go_one_way(file):
    found = violations((SOURCE / file).read_text(encoding="utf-8"), file)
    assert not found, "\n".join(found)


def test_inside_a_layer_imports_go_one_way_too():
    modules = {
        file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file in FILES
    }
    below: dict[str, set[str]] = {}
    for module, file in modules.items():
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        # `from convlab.stages import s01_direct` is that module and not the package.
        named = [
            (node.module or "", f"{node.module}.{alias.name}")
            for node in found
            for alias in node.names
        ]
        names = {full if full in modules else package for package, full in named}
        below[module] = {
            name for name in names & modules.keys() if layer_of(name) == layer_of(module)
        }
    TopologicalSorter(below).prepare()  # raises CycleError, which names the circle


def test_no_two_modules_or_packages_import_each_other():
    below: dict[str, set[str]] = {}
    for file in FILES:
        path = Path(file)
        package = ".".join(path.parent.parts)
        layer = layer_of(package if path.stem == "__init__" else f"{package}.{path.stem}")
        tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
        found = {layer_of(name) for _, name in imports(tree, package) if name.startswith(TOP)}
        below.setdefault(layer, set()).update(found - {layer, TOP})
    del below[TOP]
    TopologicalSorter(below).prepare()


def test_the_table_names_what_there_is():
    assert set(map(layer_of, (file.removesuffix(".py").replace("/", ".") for file in FILES))) == (
        RANK.keys() | {"__init__"}
    )
    assert NARROW.keys() <= RANK.keys()
    assert all(RANK[name] <= RANK[layer] for layer, row in NARROW.items() for name in row)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("convlab/problem.py", "import convlab.device"),
        ("convlab/problem.py", "import convlab"),
        ("convlab/device/vector.py", "from convlab.problem import ConvProblem"),
        ("convlab/stages/s01_direct.py", "from convlab.engines import gpu"),
        ("convlab/stages/s01_direct.py", "from convlab import plan"),
        ("convlab/stages/s01_direct.py", "from convlab import engines"),
        ("convlab/stages/s01_direct.py", "from ..engines import gpu"),
        ("convlab/stages/s01_direct.py", "from .. import engines"),
        ("convlab/stages/__init__.py", "from ..engines.gpu import run"),
        ("convlab/engines/gpu.py", "from convlab.stages import LADDER"),
        ("convlab/simulation/greenlets.py", "from convlab.engines import choose"),
        ("convlab/kernels/gemm.py", "from convlab.plans import plan"),
        ("convlab/tracing/page.py", "from convlab.checking import check"),
        ("convlab/checking/checker.py", "from convlab.lint import lint_all"),
        ("convlab/engines/gpu.py", "def run():\n    from convlab.api import conv2d"),
        ("convlab/plans.py", "from convlab.api import conv2d"),
        ("convlab/api.py", "if True:\n    from convlab.tracing import trace"),
        ("convlab/bench/cases.py", "from convlab.cli import main"),
        ("convlab/bench/cases.py", "from convlab import tables"),
        ("convlab/bench/cases.py", "from convlab.commands.ladder import ladder"),
        ("convlab/commands/ladder.py", "from convlab.cli import app"),
        ("convlab/cli.py", "from convlab.bench import ladder"),
        ("convlab/__init__.py", "from convlab import cli"),
        ("convlab/helpers.py", ""),
    ],
)
def test_a_planted_violation_is_found(file, source):
    assert len(violations(source, file)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("convlab/stages/s01_direct.py", "from convlab.stage import Stage"),
        ("convlab/stages/s01_direct.py", "from ..stage import Stage\nfrom ..device import load4"),
        ("convlab/stages/__init__.py", "from ..stage import Stage"),
        ("convlab/engines/gpu.py", "import numpy\nfrom convlab.stage import Launch"),
        ("convlab/commands/trace.py", "import convlab\nfrom convlab import ConvProblem, trace"),
        ("convlab/cli.py", "from convlab.commands.trace import trace"),
    ],
)
def test_what_the_table_allows_passes(file, source):
    assert violations(source, file) == []
