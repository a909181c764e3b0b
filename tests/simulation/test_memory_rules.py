"""Sectors and wavefronts: against the hardware's counts, and against counting by hand."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convlab.simulation.recording.access_log import ATOMIC, GLOBAL, READ, WRITE
from convlab.simulation.rules.memory_traffic import Requests

pytestmark = pytest.mark.same_in_cudasim

MEASURED = json.loads((Path(__file__).parents[1] / "data/shared_wavefronts_h200.json").read_text())
PATTERNS = MEASURED["patterns"]


def requests(
    request: Any, address: Any, width: Any, lane: Any = None, kind: int = READ
) -> Requests:
    """Requests of that kind, from columns with an entry a lane; lanes count up."""
    request = np.array(request)
    lane = np.arange(len(request)) if lane is None else np.array(lane)
    each = np.zeros(request.max() + 1, np.int64)
    width = np.broadcast_to(width, request.shape)
    return Requests(each, each + kind, each, each, request, lane, np.array(address), width)


@pytest.mark.parametrize("kind", [("load", 4), ("load", 8), ("load", 16), ("store", 8),
                                  ("store", 16)], ids="{0[0]} {0[1]}".format)  # fmt: skip
def test_wavefronts_are_what_an_h200_counted(kind):
    chosen = [p for p in PATTERNS if (p["operation"], p["width"]) == kind]
    assert len(chosen) == 83
    assert any(len(p["lanes"]) < 32 for p in chosen)
    assert len({p["wavefronts"] for p in chosen}) > 3
    number = np.repeat(np.arange(83), [len(p["lanes"]) for p in chosen])
    address = np.concatenate([p["places"] for p in chosen]) * kind[1]
    lanes = np.concatenate([p["lanes"] for p in chosen])
    operation = READ if kind[0] == "load" else WRITE
    found = requests(number, address, kind[1], lanes, operation).wavefronts
    assert found.tolist() == [p["wavefronts"] for p in chosen]


LANES = st.tuples(st.integers(0, 4), st.integers(0, 200), st.sampled_from([1, 2, 4, 8, 16]))


@given(st.lists(LANES, min_size=1, max_size=60))
def test_sectors_are_those_that_any_byte_lies_in(lanes):
    touched: dict[int, set[int]] = defaultdict(set)
    for request, address, width in lanes:
        touched[request] |= {byte // 32 for byte in range(address, address + width)}
    numbers = {request: number for number, request in enumerate(sorted(touched))}
    lanes = sorted((numbers[request], GLOBAL + address, width) for request, address, width in lanes)
    found = requests(*zip(*lanes, strict=True)).sectors
    assert found.tolist() == [len(touched[request]) for request in numbers]


def test_bytes_that_several_lanes_want_count_once():
    one = requests([0] * 6, [0, 0, 4, 8, 8, 100], 4)
    assert one.bytes_wanted.tolist() == [16]


@pytest.mark.parametrize(
    ("lanes", "width", "sectors", "wavefronts"),
    [(1, 4, 1, 1), (8, 4, 1, 1), (9, 4, 2, 1), (32, 4, 4, 1), (17, 8, 5, 2)],
)
def test_fewest_are_those_of_neighbours(lanes, width, sectors, wavefronts):
    far, near = (
        requests([0] * lanes, start + 512 * np.arange(lanes), width) for start in (GLOBAL, 0)
    )
    assert [far.fewest_sectors.tolist(), far.fewest_wavefronts.tolist()] == [[sectors], [0]]
    assert [near.fewest_sectors.tolist(), near.fewest_wavefronts.tolist()] == [[0], [wavefronts]]


def test_contention_is_the_most_lanes_at_one_address():
    columns = [0, 0, 0, 1, 2, 2], [4, 8, 4, 4, 12, 16], 4
    assert requests(*columns, kind=ATOMIC).contention.tolist() == [2, 1, 1]
    assert requests(*columns).contention.tolist() == [0, 0, 0]
