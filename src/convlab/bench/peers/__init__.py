"""Peers: other convolutions that convlab is measured against, each optional, found at run time.

Importing this imports none of their libraries. docs/peers.md says what each computes, what is timed
and how it is installed.
"""

from __future__ import annotations

from convlab.bench.peers import cpp, cudnn, cupy_gemm, cutlass, pytorch, pytorch_gemm
from convlab.bench.peers.base import Peer, Prepared, Unsupported

__all__ = ["PEERS", "Peer", "Prepared", "Unsupported", "peer_named"]

PEERS: tuple[Peer, ...] = (
    *pytorch.PEERS,
    *cudnn.PEERS,
    *pytorch_gemm.PEERS,
    *cutlass.PEERS,
    cupy_gemm.PEER,
    cpp.PEER,
)


def peer_named(name: str) -> Peer:
    """The peer of that name. Raises ``ValueError``, listing the names, for any other."""
    for peer in PEERS:
        if peer.name == name:
            return peer
    raise ValueError(f"peer is {name!r}: it must be one of {', '.join(p.name for p in PEERS)}")
