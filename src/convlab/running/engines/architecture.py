"""The names of GPU architectures, as NVIDIA's compilers and linkers take them."""

from __future__ import annotations

from convlab.ladder.stage import Capability


def arch_of(capability: Capability) -> str:
    """Return the architecture of a compute capability: ``sm_90`` for (9, 0)."""
    return f"sm_{capability[0]}{capability[1]}"


def own_instructions(capability: Capability) -> str:
    """Return the architecture with the instructions that only this kind of GPU has: ``sm_90a``.
    There are such instructions from 9.0 on, for example wgmma."""
    return f"{arch_of(capability)}a" if capability >= (9, 0) else arch_of(capability)
