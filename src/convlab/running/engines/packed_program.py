"""A program's launches as CUDA graphs: a plan's call on a GPU.

Layers of equal shapes share a plan, and each of them has arrays of its own, in every step of a
training the same ones. With one graph, each layer's call would update the graph, and would wait if
the GPU had not yet run its last launch. So a plan keeps a graph for each of the last sets of arrays
that it was called with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock

from convlab.ladder.stage import Launch
from convlab.problems.arrays import Array
from convlab.running.engines import Stream, address_of, check_aligned, stream_handle
from convlab.running.engines.driver import LaunchRefused
from convlab.running.engines.launching import (
    LaunchGraph,
    LoadedKernel,
    PackedLaunch,
    Shape,
    current_context,
    have_context,
    is_capturing,
    relaxed_capture,
)

MOST_GRAPHS = 8  # of a program; six layers of ResNet-50 have equal shapes
_UNKNOWN: tuple[int, ...] = ()  # the addresses of a graph that was handed none, or not all


class GraphsByArrays:
    """Graphs of the same launches, each for arrays at other addresses. Its methods need the context
    in which it was made, and one thread at a time."""

    def __init__(self, launches: Sequence[PackedLaunch]) -> None:
        self._launches = launches
        # By the addresses; the graph that was asked for last is the last.
        self._graphs = OrderedDict({_UNKNOWN: LaunchGraph(launches)})

    def known(self, addresses: tuple[int, ...]) -> LaunchGraph | None:
        """Return the graph for arrays at these addresses; None where there is none."""
        if (graph := self._graphs.get(addresses)) is not None:
            self._graphs.move_to_end(addresses)
        return graph

    def made(self, addresses: tuple[int, ...]) -> LaunchGraph:
        """Return a graph for arrays at these addresses: a new one, or the one that nobody has asked
        for the longest, updated."""
        if _UNKNOWN not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            try:
                return self._new(addresses)
            except LaunchRefused:
                if not self._graphs:
                    raise
        return self._updated(addresses)

    def _new(self, addresses: tuple[int, ...]) -> LaunchGraph:
        for packed in self._launches:
            packed.write(addresses)
        with relaxed_capture():  # another thread may be capturing a graph of its own
            self._graphs[addresses] = graph = LaunchGraph(self._launches)
        return graph

    def _updated(self, addresses: tuple[int, ...]) -> LaunchGraph:
        old = _UNKNOWN if _UNKNOWN in self._graphs else next(iter(self._graphs))
        # Ctrl-C may come while some kernels take the new arrays and some do not: until the end, it
        # is unknown which addresses the graph is handed.
        self._graphs[_UNKNOWN] = graph = self._graphs.pop(old)
        before = old or (None,) * len(addresses)
        moved = {array for array, now in enumerate(addresses) if before[array] != now}
        for number, packed in enumerate(self._launches):
            if moved & packed.arrays:
                packed.write(addresses)
                graph.update(number)
        self._graphs[addresses] = self._graphs.pop(_UNKNOWN)
        return graph


class PackedProgram:
    """A program's launches in order, their parameters packed for arrays of certain shapes.

    ``shapes`` are all arrays' by name, ``held`` the arrays that stay the same from call to call. A
    call takes the others, in the order of ``shapes``. ``item_bytes`` are the bytes of an element of
    the arrays for which they are not 4.
    """

    def __init__(
        self,
        launches: Sequence[tuple[Launch, LoadedKernel]],
        shapes: Mapping[str, Shape],
        held: Mapping[str, Array],
        item_bytes: Mapping[str, int] | None = None,
    ) -> None:
        assert launches, "a program has at least one launch"
        self._names = tuple(name for name in shapes if name not in held)
        self._launches = [
            PackedLaunch(step, kernel, shapes, held, self._names, item_bytes or {})
            for step, kernel in launches
        ]
        self._context = current_context()
        self.why_no_graph: str | None = None
        try:
            self._graphs: GraphsByArrays | None = GraphsByArrays(self._launches)
        except LaunchRefused as error:  # as of a block that is too large
            self._graphs, self.why_no_graph = None, str(error)
        # A call is one launch of a graph, unless its stream is captured.
        self.one_graph = self._graphs is not None
        # A thread owns the parameters and the graphs until the driver has copied its launches.
        self._lock = Lock()

    def __call__(self, *arrays: Array, stream: Stream = None) -> None:
        """Start them on a stream. Raises as :meth:`convlab.running.plans.Plan.__call__` does."""
        self.at(tuple(map(address_of, arrays)), stream_handle(stream))

    def at(self, addresses: tuple[int, ...], handle: int) -> None:
        """Start them with arrays at these addresses on the stream of that handle."""
        with self._lock:
            graph = None if self._graphs is None else self._graphs.known(addresses)
            if graph is None:
                for name, address in zip(self._names, addresses, strict=True):
                    check_aligned(name, address)
            have_context(self._context, self._launches[0].step.name)
            if self._graphs is None or is_capturing(handle):
                for packed in self._launches:
                    packed.write(addresses)
                    packed.launch(handle)
                return
            (graph or self._graphs.made(addresses)).launch(handle)
