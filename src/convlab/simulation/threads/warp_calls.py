"""The calls of a warp's lanes, or of a warpgroup's threads: the result of each lane."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import cast

from convlab.device.panel_products import BroughtToAll, from_all
from convlab.device.products import (
    WARP,
    WARPGROUP,
    Brought,
    BroughtToSum,
    Fragments,
    warp_mma,
    warp_product,
    warp_sum,
)
from convlab.simulation.threads.waiting import (
    GIVE_REGISTERS,
    MMA,
    ONE_PRODUCT,
    PRODUCT,
    PRODUCT_DONE,
    PRODUCTS_DONE,
    STARTS,
    TAKE_REGISTERS,
)

Lanes = dict[int, object]  # what each lane brings to a call, or its result


def bits(lanes: Iterable[int]) -> int:
    """Return the mask of some lanes."""
    return sum(1 << lane for lane in lanes)


def lane_names(mask: int) -> str:
    """Return the lanes of a mask in words: ``lanes 16-31``, ``lane 3``."""
    lanes = [lane for lane in range(mask.bit_length()) if mask >> lane & 1]
    if len(lanes) == 1:
        return f"lane {lanes[0]}"
    if len(lanes) == lanes[-1] + 1 - lanes[0]:
        return f"lanes {lanes[0]}-{lanes[-1]}"
    return f"lanes {', '.join(map(str, lanes))}"


def _none(brought: Lanes) -> Lanes:
    return dict.fromkeys(brought)


def _same_for_all(compute: Callable[[Lanes], object]) -> Callable[[Lanes], Lanes]:
    return lambda brought: dict.fromkeys(brought, compute(brought))


def _equal(brought: Lanes) -> bool:
    return len(set(brought.values())) == 1


def _match_any(brought: Lanes) -> Lanes:
    """Return for each lane the mask of those that bring the same value."""
    return {
        lane: bits(other for other in brought if brought[other] == value)
        for lane, value in brought.items()
    }


def _mma(brought: Lanes) -> Lanes:
    return {**warp_mma(cast("Mapping[int, Fragments]", brought))}


def _of_each_warp(compute: Callable[[Lanes], Mapping[int, object]], brought: Lanes) -> Lanes:
    """Return the results of tensor cores for the threads of a warpgroup, each warp by itself."""
    results: Lanes = {}
    for first in range(0, WARPGROUP, WARP):
        lanes = {lane: brought[first + lane] for lane in range(WARP) if first + lane in brought}
        if lanes:
            results |= {first + lane: numbers for lane, numbers in compute(lanes).items()}
    return results


def _from_all(brought: Lanes) -> Lanes:
    return {**from_all(cast("Mapping[int, BroughtToAll]", brought))}


def _product(brought: Lanes) -> Lanes:
    return _of_each_warp(lambda lanes: warp_product(cast("Mapping[int, Brought]", lanes)), brought)


def _one_product(brought: Lanes) -> Lanes:
    return _of_each_warp(lambda lanes: warp_sum(cast("Mapping[int, BroughtToSum]", lanes)), brought)


# The results of all lanes, from what all of them bring, by the name of the call.
CALLS: dict[str, Callable[[Lanes], Lanes]] = {
    "syncwarp": _none,
    "activemask": _same_for_all(bits),
    "ballot_sync": _same_for_all(lambda b: bits(lane for lane in b if b[lane])),
    "all_sync": _same_for_all(lambda b: all(b.values())),
    "any_sync": _same_for_all(lambda b: any(b.values())),
    "eq_sync": _same_for_all(_equal),
    "match_all_sync": _same_for_all(lambda b: (bits(b), True) if _equal(b) else (0, False)),
    "match_any_sync": _match_any,
    MMA: _mma,
    PRODUCT: _product,
    ONE_PRODUCT: _one_product,
    PRODUCT_DONE: _none,
    **dict.fromkeys((*STARTS, GIVE_REGISTERS, TAKE_REGISTERS), _from_all),
    PRODUCTS_DONE: _none,
}
