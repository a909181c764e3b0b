"""docs/seeds.md says where the sources' parts went: they are there, and all parts are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convlab.problem import ConvProblem
from convlab.site.links import LINK
from convlab.site.listings import names
from convlab.stages import stage_named

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/seeds.md"
TEXT = PAGE.read_text(encoding="utf-8")

# Every numbered part of the four documents; one that a page of ours does not name is missing.
PARTS = {
    "000": [
        "Equation 1", "Equation 2", "Algorithm 1", "Algorithm 2", "Algorithm 3", "Table 1",
        "Table 2", "Table 3", "Figure 1", "Figure 2", "Figure 3", "Figure 4",
    ],
    "001": ["1.2", "Algorithm 1", "Algorithm 2", "Figures 1 to 4"],
    "002": ["Equation 1", "Algorithm 1", "Table 1"],
    "003": [
        "Equation 1.1", "Equations 1.2.1 and 1.2.2", "Equations 1.3 and 1.4", "Figure 1",
        "dpitch 4", "dpitch 8, 12 and 16",
    ],
}  # fmt: skip
NOT_HERE = {"Table 3: what cuDNN chose on the authors' GPU",
            "3.1 the C++, CUTLASS and `torch.compile` baselines"}  # fmt: skip


def rows(document: str) -> list[list[str]]:
    """The table of one document, cell by cell."""
    section = re.search(rf"^## {document}:.*?(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert section is not None
    lines = [line for line in section[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]


@pytest.mark.parametrize("document", PARTS)
def test_every_part_is_told(document):
    told = [row[0] for row in rows(document)]
    missing = [part for part in PARTS[document] if not any(part in one for one in told)]
    assert not missing


@pytest.mark.parametrize("document", PARTS)
def test_every_part_has_a_place_in_the_code(document):
    without = {row[0] for row in rows(document) if not LINK.search(row[1])}
    assert without <= NOT_HERE


def test_every_name_is_in_its_file():
    links = [link for _, link in LINK.findall(TEXT) if ".py" in link]
    assert len(links) > 40
    for link in links:
        path, _, name = link.partition("#")
        file = PAGE.parent / path
        assert file.is_file(), link
        assert not name or name in names(file.read_text(encoding="utf-8")), link


def test_figure_1_counts():
    """The paper's Figure 1: 3 x 3 x 3 elements become 4 x 12 as im2col, 3 x 2 x 6 as im2win."""
    problem = ConvProblem(1, 3, 3, 3, out_channels=1, kernel_size=2)
    assert (problem.N, problem.K) == (4, 12)
    s10 = stage_named("s10").prepare(problem, None)
    (windows,) = s10.buffers
    assert windows.shape == (1, 3, 2, 6)
    assert windows.nbytes / 4 == 36
