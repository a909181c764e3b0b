"""Traces: what a launch does to memory, per source line and per request of a warp.

Records (:mod:`.records`) are plain data; a recorder makes them from a simulated launch; views read
them: tables (:mod:`.table`) and the page (:mod:`.page`).
"""

from convlab.tracing.records import LaunchTrace, Trace, open_trace
from convlab.tracing.table import as_text
from convlab.tracing.tracer import trace, trace_stage

# Records know no views; here the two come together: `print(trace)` shows the tables.
Trace.__str__ = as_text  # type: ignore[assignment]

__all__ = ["LaunchTrace", "Trace", "open_trace", "trace", "trace_stage"]
