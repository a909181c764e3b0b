"""Traces: what a launch does to memory, per source line and per request of a warp.

Records (:mod:`.records`) are plain data; a recorder makes them from a simulated launch; views read
them: tables (:mod:`.table`) and the page (:mod:`.page`).
"""

from convlab.tracing.page import page, write_page
from convlab.tracing.records import LaunchTrace, Trace, open_trace
from convlab.tracing.table import as_text, card
from convlab.tracing.tracer import trace, trace_stage

# Records know no views; here the two come together: `print(trace)` and a notebook show the tables.
Trace.__str__ = as_text  # type: ignore[assignment]
Trace._repr_html_ = card  # type: ignore[attr-defined]

__all__ = [
    "LaunchTrace", "Trace", "card", "open_trace", "page", "trace", "trace_stage", "write_page",
]  # fmt: skip
