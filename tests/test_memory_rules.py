"""Sectors and wavefronts: against the hardware's counts, and against counting by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlab.simulation import memory_rules

pytestmark = pytest.mark.same_in_cudasim

MEASURED = json.loads((Path(__file__).parent / "data/shared_wavefronts_h200.json").read_text())
PATTERNS = MEASURED["patterns"]


def one(values: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The columns of a single request."""
    return np.zeros(len(values), np.int64), np.array(values, np.int64)


def wavefronts(pattern: dict) -> int:
    request, places = one(pattern["places"])
    width = np.full(len(places), pattern["width"])
    lanes = np.array(pattern["lanes"])
    loads = np.array([pattern["operation"] == "load"])
    return int(memory_rules.wavefronts(request, places * width, width, lanes, loads, 1)[0])


@pytest.mark.parametrize("kind", [("load", 4), ("load", 8), ("load", 16), ("store", 8),
                                  ("store", 16)], ids="{0[0]} {0[1]}".format)  # fmt: skip
def test_wavefronts_are_what_an_h200_counted(kind):
    chosen = [p for p in PATTERNS if (p["operation"], p["width"]) == kind]
    assert len(chosen) == 83
    assert any(len(p["lanes"]) < 32 for p in chosen)
    assert len({p["wavefronts"] for p in chosen}) > 3
    assert [wavefronts(p) for p in chosen] == [p["wavefronts"] for p in chosen]


def test_many_requests_at_once_are_counted_one_by_one():
    chosen = [p for p in PATTERNS if p["operation"] == "load"]
    lengths = [len(p["lanes"]) for p in chosen]
    request = np.repeat(np.arange(len(chosen)), lengths)
    width = np.repeat([p["width"] for p in chosen], lengths)
    places = np.concatenate([p["places"] for p in chosen])
    lanes = np.concatenate([p["lanes"] for p in chosen])
    loads = np.ones(len(chosen), bool)
    found = memory_rules.wavefronts(request, places * width, width, lanes, loads, len(chosen))
    assert found.tolist() == [p["wavefronts"] for p in chosen]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 200), st.sampled_from([1, 2, 4, 8, 16])),
        min_size=1,
        max_size=60,
    )
)
def test_sectors_are_those_that_any_byte_lies_in(lanes):
    touched: dict[int, set[int]] = defaultdict(set)
    for request, address, width in lanes:
        touched[request] |= {byte // 32 for byte in range(address, address + width)}
    request, address, width = map(np.array, zip(*lanes, strict=True))
    found = memory_rules.sectors(request, address, width, 5)
    assert found.tolist() == [len(touched[which]) for which in range(5)]


def test_bytes_that_several_lanes_want_count_once():
    request, address = one([0, 0, 4, 8, 8, 100])
    wanted = memory_rules.bytes_wanted(request, address, np.full(6, 4), 1)
    assert wanted.tolist() == [16]
    assert memory_rules.fewest_sectors(wanted).tolist() == [1]
    assert memory_rules.fewest_sectors(np.array([0, 32, 33])).tolist() == [0, 1, 2]
    assert memory_rules.fewest_wavefronts(np.array([4, 128, 129])).tolist() == [1, 1, 2]


def test_contention_is_the_most_lanes_at_one_address():
    request = np.array([0, 0, 0, 1, 2, 2])
    address = np.array([4, 8, 4, 4, 12, 16])
    assert memory_rules.contention(request, address, 4).tolist() == [2, 1, 1, 0]
