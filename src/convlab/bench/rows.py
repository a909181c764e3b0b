"""One row of a benchmark: how one system did on one layer. A number, or the reason why there is
none, never both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

State = Literal[
    "measured", "wrong", "refused", "unsteady", "busy", "out of memory", "unsupported", "absent",
    "failed",
]  # fmt: skip
STATES: tuple[State, ...] = get_args(State)
JUDGED_WRONG = frozenset({"wrong", "refused", "failed"})  # what the command exits 1 for
# What measuring again on the same machine with the same code would not change.
LASTING = frozenset({"measured", "wrong", "refused", "unsupported", "out of memory"})
Key = tuple[str, int, str]
"""What a row is of: layer, batch and system."""
NUMBERS = ("time_ms", "time_spread", "repeats", "tflops")


@dataclass(frozen=True)
class Row:
    """One system on one layer.

    ``state`` says how it went and ``reason`` why there is no number, in a sentence. ``time_ms`` is
    the median of ``repeats`` runs, ``time_spread`` the width of their middle half in percent of it,
    ``settled`` whether that is small. ``bound`` is the rule that the output was judged by,
    ``error_over_bound`` its largest error as a part of that. ``workspace_bytes`` is computed,
    ``peak_bytes`` the device memory that was seen to be taken, tensors included. ``clocks_mhz``
    are the multiprocessors' as timing began and as it ended. ``identity`` stands for machine,
    versions and code. ``called_ms`` is the median of ordinary calls, launches included; None on the
    host and in older results.

    Raises ``ValueError`` for a number without the state ``measured``, or that state without one.
    """

    layer: str
    batch: int
    system: str
    state: State
    reason: str | None = None
    time_ms: float | None = None
    time_spread: float | None = None
    repeats: int | None = None
    settled: bool | None = None
    tflops: float | None = None
    bound: str | None = None
    error_over_bound: float | None = None
    workspace_bytes: int | None = None
    peak_bytes: int | None = None
    algorithm: str | None = None
    clocks_mhz: dict[str, int | None] | None = None
    seconds: float | None = None
    date: str | None = None
    identity: str | None = None
    called_ms: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state is {self.state!r}: it must be one of {', '.join(STATES)}")
        numbers = [name for name in NUMBERS if getattr(self, name) is not None]
        if self.state == "measured" and (len(numbers) < len(NUMBERS) or self.reason is not None):
            raise ValueError(f"{self.key} is measured: it must have every number and no reason")
        if self.state != "measured" and (numbers or not self.reason):
            raise ValueError(f"{self.key} is {self.state}: it must have a reason and no number")

    @property
    def key(self) -> Key:
        """What the row is of: layer, batch and system."""
        return self.layer, self.batch, self.system

    @property
    def ok(self) -> bool:
        """Whether there is a number."""
        return self.state == "measured"

    def as_json(self) -> dict[str, Any]:
        """The row as a document of :mod:`json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Row:
        """The row that :meth:`as_json` wrote; ``ValueError`` or ``TypeError`` for anything else."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in names})
