"""Traces: the memory traffic of a launch, per source line and per request of a warp.

Records (:mod:`.recorded`) are plain data. :mod:`.tracer` starts a simulated launch and
:mod:`.traffic_recorder` makes its records, which :mod:`.views` shows as tables and as a page.
"""

from convlab.tracing.recorded import LaunchTrace, Trace, open_trace
from convlab.tracing.tracer import trace, trace_launch, trace_stage, trace_steps
from convlab.tracing.views import as_text, card, page, write_page

# Records know no views; here the two come together: `print(trace)` and a notebook show the tables.
Trace.__str__ = as_text  # type: ignore[assignment]
Trace._repr_html_ = card  # type: ignore[attr-defined]

__all__ = [
    "LaunchTrace", "Trace", "card", "open_trace", "page", "trace", "trace_launch", "trace_stage",
    "trace_steps", "write_page",
]  # fmt: skip
