"""pyproject.toml and environment.yml say the same, and name all that the code imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import convlab

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, TOOLS = PYPROJECT["project"], PYPROJECT["tool"]
CORE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {
    name: [Requirement(line) for line in lines]
    for name, lines in PROJECT["optional-dependencies"].items()
}

# Where conda-forge has another name for a package, and what its list needs beyond convlab's.
CONDA_NAME = {"nvidia-cuda-nvdisasm": "cuda-nvdisasm", "playwright": "playwright-python"}
CONDA_ONLY = {"jupyter", "pip", "python"}
# Import names that come with a dependency of another name.
COMES_WITH = {"cuda": "numba-cuda", "llvmlite": "numba"}


def resolved(extra: str) -> Iterator[Requirement]:
    """The requirements of an extra, those of the extras it names included."""
    for requirement in EXTRAS[extra]:
        if requirement.name == PROJECT["name"]:
            for other in sorted(requirement.extras):
                yield from resolved(other)
        else:
            yield requirement


def conda_environment() -> tuple[dict[str, SpecifierSet], list[str]]:
    """Return the packages of environment.yml: versions by name for conda, and pip's lines."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    conda = [Requirement(entry) for entry in listed if isinstance(entry, str)]
    pip = [line for entry in listed if isinstance(entry, dict) for line in entry["pip"]]
    assert len({requirement.name for requirement in conda}) == len(conda), "a package listed twice"
    return {canonicalize_name(entry.name): entry.specifier for entry in conda}, pip


def test_environment_yml_lists_what_pyproject_does():
    conda, pip = conda_environment()
    wanted = {
        canonicalize_name(CONDA_NAME.get(entry.name, entry.name)): entry.specifier
        for entry in [*CORE, *resolved("test")]
    }
    assert {name: conda[name] for name in conda.keys() - CONDA_ONLY} == wanted
    assert conda.keys() >= CONDA_ONLY
    assert conda["python"] == SpecifierSet(PROJECT["requires-python"])
    assert pip == ["-e ."]


@pytest.mark.parametrize("extra", sorted(EXTRAS))
def test_an_extra_has_one_cuda_and_the_version_ranges_of_the_core(extra):
    """CUDA 12 where the extra's name says so, 13 wherever else it needs one."""
    core = {entry.name: entry.specifier for entry in CORE}
    entries = [*resolved(extra)]
    assert not [one for one in entries if one.specifier != core.get(one.name, one.specifier)]
    words = [word for entry in entries for word in (entry.name, *entry.extras)]
    found = {major for word in words for major in re.findall(r"(?:-cuda|^cu)(\d+)x?$", word)}
    wanted = {"12"} if extra.endswith("-cu12") else {"13"}
    assert found == wanted if extra.endswith(("-cu12", "-cu13")) else found <= wanted


def test_both_cudas_have_the_same_baselines():
    """Those of `baselines`, which the table of 002 calls, and CuPy."""
    of_12, of_13, baselines = (
        {re.sub("cuda1[23]x", "cuda", entry.name) for entry in resolved(f"baselines{end}")}
        for end in ("-cu12", "-cu13", "")
    )
    assert of_12 == of_13
    assert of_12 - baselines == {"cupy-cuda", "numba-cuda"}
    assert baselines >= {"torch", "unfoldNd", "array-api-compat"}


# On the package index PyTorch 2.10 is the last for CUDA 12; its requirements do not tell the two
# apart, so the ranges must. numba-cuda is pinned to one minor version.
@pytest.mark.parametrize(
    ("extra", "package", "inside", "outside"),
    [
        ("baselines-cu12", "torch", "2.10.0", "2.11.0"),
        ("baselines-cu13", "torch", "2.11.0", "2.10.0"),
        (None, "numba-cuda", "0.30.4", "0.31.0"),
        (None, "numba-cuda", "0.30.99", "0.31.0"),
        (None, "numpy", "2.5.0", "3.0.0"),
    ],
)
def test_versions_that_fit_each_other(extra, package, inside, outside):
    entries = CORE if extra is None else resolved(extra)
    ranges = [entry.specifier for entry in entries if entry.name == package]
    assert inside is None or all(one.contains(inside) for one in ranges)
    assert not all(one.contains(outside) for one in ranges)


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """Top-level packages that come with a module: not those that a function or a type needs."""
    match node:
        case ast.Import(names):
            yield from (alias.name.split(".")[0] for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module.split(".")[0]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.If(ast.Name("TYPE_CHECKING")):
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from imported_at_once(child)


def test_a_plain_install_has_all_that_modules_import_at_once():
    declared = {entry.name for entry in CORE} | {"convlab"}
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / "src").rglob("*.py")
        for name in imported_at_once(ast.parse(path.read_text(encoding="utf-8")))
        if name not in sys.stdlib_module_names and COMES_WITH.get(name, name) not in declared
    }
    # Layers that no other module imports; what CONVLAB_COMPILER=mlir imports.
    parts = [
        "asked",
        "convolution",
        "derivatives",
        "fuse",
        "fused",
        "layers",
        "operators",
        "prepare",
        "short",
        "tensors",
    ]
    missing -= {f"src/convlab/running/torch_{part}.py: torch" for part in parts}
    by_mlir = "mlir", "mlir_code_generation", "mlir_hopper", "mlir_intrinsics"
    missing -= {f"src/convlab/device/{part}.py: numba_cuda_mlir" for part in by_mlir}
    # pytest itself imports its plugins.
    plugins = PROJECT["entry-points"]["pytest11"].values()
    missing -= {f"src/{plugin.replace('.', '/')}.py: pytest" for plugin in plugins}
    assert not missing, "import it inside the function that needs it, or declare it as a dependency"


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    """Return the files that git knows, as text."""
    told = subprocess.check_output(["git", "-C", ROOT, "ls-files"], text=True)
    kinds = {".cff", ".ipynb", ".jinja", ".json", ".md", ".py", ".toml", ".yml"}
    paths = (ROOT / name for name in told.splitlines() if Path(name).suffix in kinds)
    return {path: path.read_text(encoding="utf-8") for path in paths if path.is_file()}


def test_nobody_is_told_to_install_the_other_convlab(texts):
    """On the package index that name is another project's: pages, messages, notebooks."""
    named = re.compile(r"pip\W+install(?![^\n]*\bgit\+)[^\n]*?(?<![\w-])convlab(?![\w/.-])")
    told = "python -m pip install -q {}{}".format
    assert named.search(told("'", "convlab[lessons]'"))
    assert named.search(told("", "convlab"))
    assert not named.search(told("cuda-", "convlab"))
    assert {path: found[0] for path, text in texts.items() if (found := named.search(text))} == {}


def test_the_repository_has_one_address(texts):
    address = PROJECT["urls"]["Repository"].removeprefix("https://github.com/")
    named = re.compile(r"([\w.-]+/convlab)(?=/blob|/raw|/HEAD|/tree|@|\.git|$)")
    lines = [(path.name, line) for path, text in texts.items() for line in text.splitlines()]
    hosts = [(name, line) for name, line in lines if re.search(r"github|mybinder\.org", line)]
    found = {(one, name) for name, line in hosts for one in named.findall(line)}
    assert {one for one, _ in found} == {address}, found


def test_the_version_stands_in_one_place_and_the_citation_names_it_and_the_address():
    assert "version" in PROJECT["dynamic"]
    file = TOOLS["hatch"]["version"]["path"]
    assert f'__version__ = "{convlab.__version__}"' in (ROOT / file).read_text(encoding="utf-8")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == convlab.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert all({"type", "title", "authors"} <= paper.keys() for paper in citation["references"])
    assert f"## {convlab.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
