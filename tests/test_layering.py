"""Imports go one way: which room may import which, by the tables of docs/design.md."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from convlab.simulation.launch import SimulatedLaunch

pytestmark = pytest.mark.same_in_cudasim

SOURCE = Path(__file__).parents[1] / "src"
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
TOP = "convlab"  # the package itself, whose __init__.py holds the public names
DESIGN = (SOURCE.parent / "docs/design.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return DESIGN.split(f"\n## {title}\n")[1].split("\n## ")[0]


# Rows such as "| `ladder` | `support`, `device`, `problems` |".
MAY_IMPORT = {
    room: set(re.findall(r"`(\w+)`", imported))
    for room, imported in re.findall(r"^\| `(\w+)` \|(.*)\|$", section("Imports go one way"), re.M)
}
# Parts of the simulator, each of which imports only those before it.
PARTS = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", section("The simulator"), re.M)
# In the ladder: what every route may import, and routes.
SHARED = {"stage", "layouts", "tile_heuristic"}
ROUTES = {"main", "tensor_cores", "half_precision", "channels", "im2col", "gradients"}


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODULES = {module_of(file) for file in FILES}


def room_of(module: str) -> str:
    """``convlab.ladder.main.m01_direct`` -> ``ladder``; ``convlab`` -> ``convlab``."""
    return ".".join(module.split(".")[1:2]) or TOP


def part_of(module: str) -> str:
    """``convlab.simulation.rules.races`` -> ``rules``."""
    return ".".join(module.split(".")[2:3])


@cache
def imports(source: str) -> list[tuple[int, str]]:
    """Line and whole name of every module that is imported, wherever it stands. None is
    relative."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: a relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append((node.lineno, whole if whole in MODULES else str(node.module)))
    return [(line, name) for line, name in found if name.split(".")[0] == TOP]


def violations(source: str, file: str) -> list[str]:
    """The imports in ``source`` that the tables forbid; ``file`` is its path below ``src``."""
    module = module_of(file)
    room, part = room_of(module), part_of(module)
    if room not in MAY_IMPORT:
        return [f"{file}: {room!r} is in no row of the table of docs/design.md"]
    found = []
    for line, name in imports(source):
        other, its_part = room_of(name), part_of(name)
        if other != room:
            if other not in MAY_IMPORT[room]:
                found.append(f"{file}:{line}: {room} imports {other}")
        elif room == "simulation" and part and its_part and part != its_part:
            if PARTS.index(its_part) > PARTS.index(part):
                found.append(f"{file}:{line}: {part} imports {its_part}, which comes after it")
        elif room == "ladder" and part in ROUTES and its_part not in {*SHARED, "main", part}:
            if part != "gradients" or its_part not in ("variants", "tensor_cores"):
                found.append(f"{file}:{line}: the route {part} imports {its_part or other}")
        elif room == "ladder" and part == "main" and its_part in ROUTES - {"main"}:
            found.append(f"{file}:{line}: main imports the route {its_part}")
    return found


def test_imports_go_one_way():
    found = [line for file in FILES for line in violations((SOURCE / file).read_text(), file)]
    assert not found, "\n".join(found)


def test_no_two_rooms_and_no_two_modules_import_each_other():
    """``CycleError`` names the circle."""
    rooms: dict[str, set[str]] = {}
    modules: dict[str, set[str]] = {}
    for file in FILES:
        module = module_of(file)
        names = {name for _, name in imports((SOURCE / file).read_text())}
        rooms.setdefault(room_of(module), set()).update(map(room_of, names))
        # A package's __init__.py hands on what its modules have, so those do not import it.
        modules[module] = names & MODULES - {module}
    for room, others in rooms.items():
        others.discard(room)
    TopologicalSorter(rooms).prepare()
    TopologicalSorter(modules).prepare()


def test_the_tables_name_what_there_is():
    assert {room_of(module) for module in MODULES} == MAY_IMPORT.keys()
    parts = {part_of(module) for module in MODULES if room_of(module) == "simulation"}
    assert parts - {""} == {*PARTS}
    used = {
        (room_of(module_of(file)), room_of(name))
        for file in FILES
        for _, name in imports((SOURCE / file).read_text())
        if room_of(module_of(file)) != room_of(name)
    }
    allowed = {(room, other) for room, others in MAY_IMPORT.items() for other in others}
    assert used == allowed  # a row that allows more than the code does would hide the next arrow
    assert len(used) <= 60


def test_the_root_holds_only_the_public_faces():
    loose = {path.name for path in (SOURCE / TOP).iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "torch.py", "py.typed"}


def test_a_name_of_the_simulator_has_one_meaning():
    """Names of classes and type aliases begin with a capital and are not all capitals."""
    places: dict[str, list[str]] = {}
    for file in FILES:
        if not file.startswith("convlab/simulation/"):
            continue
        for node in ast.parse((SOURCE / file).read_text()).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            name = target.id if isinstance(target, ast.Name) else getattr(node, "name", "")
            if name[:1].isupper() and not name.isupper():
                places.setdefault(name, []).append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_a_launch_takes_its_options_by_name():
    parameters = [*inspect.signature(SimulatedLaunch).parameters.values()][1:]
    assert {one.kind for one in parameters} == {inspect.Parameter.KEYWORD_ONLY}


FORBIDDEN = """
problems/problem.py: import convlab.device
problems/problem.py: import convlab
ladder/main/m01_direct.py: from convlab import plan
ladder/main/m01_direct.py: from convlab.running import engines
ladder/main/m11_warp_tiling.py: from convlab.ladder.tensor_cores import t01_mma
ladder/im2col/i01_im2col.py: from convlab.ladder.channels import c01_input_channels
ladder/__init__.py: from convlab.running.engines.gpu import run
running/engines/gpu.py: if run(): from convlab.tracing import trace
simulation/launch.py: from convlab.ladder import stage
simulation/rules/races.py: from convlab.simulation.threads import scheduler
tracing/views.py: from convlab.checking import check
measuring/cases.py: from convlab.commands import tables
__init__.py: from convlab.commands import cli
helpers.py: pass
"""


@pytest.mark.parametrize("line", FORBIDDEN.strip().split("\n"))
def test_a_planted_violation_is_found(line):
    file, source = line.split(": ", 1)
    assert len(violations(source, f"convlab/{file}")) == 1
