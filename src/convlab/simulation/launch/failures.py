"""The exceptions of a kernel: which are findings, and what is said of the others."""

from __future__ import annotations

import errno
import linecache
import re
from dataclasses import dataclass

from convlab.simulation.launch.translation import Translation
from convlab.simulation.numbers.scalars import WrapsAround
from convlab.simulation.recording.access_log import LaunchClock
from convlab.simulation.recording.instructions import lines_setting
from convlab.simulation.recording.loops import EndlessLoop, Loops
from convlab.simulation.recording.tracebacks import innermost, is_raised, traces
from convlab.simulation.rules.finding_words import ALL_LOOPS, IMPOSSIBLE, NO_VALUE, UNREPORTED
from convlab.simulation.rules.findings import NotSimulated
from convlab.simulation.rules.reports import Reports
from convlab.simulation.threads.block_memory import NoRoom


class DivisionByZero(ZeroDivisionError, FloatingPointError):
    """A division by zero in a kernel with ``debug=True``. A GPU raises ``ZeroDivisionError``, and
    Numba's simulator ``FloatingPointError``: programs that expect either run unchanged."""


@dataclass(frozen=True)
class Failure:
    """An exception that ends a launch, and the line of the kernel that it came through."""

    error: Exception
    where: str


class Failures:
    """Judges what a kernel raises: adds findings to ``reports``. ``debug`` is the kernel's option,
    with which Numba raises exceptions too."""

    def __init__(
        self,
        translation: Translation,
        reports: Reports,
        clock: LaunchClock,
        loops: Loops | None,
        debug: bool,
    ) -> None:
        self._translation, self._sites = translation, translation.sites
        self._reports, self._clock = reports, clock
        self._loops, self._debug = loops, debug

    def note(self, raised: Exception) -> Failure | None:
        """Add the finding that an exception is. Returns the failure if the launch raises it, or
        raises it unless there are findings."""
        where = self.where(raised)
        if isinstance(raised, WrapsAround):
            self._add("wraps around", str(raised), raised)
            return None
        if isinstance(raised, ZeroDivisionError) and not self._debug:
            self._add("division by zero", str(raised), raised)
            return None
        if type(raised) is ZeroDivisionError:
            divided = DivisionByZero(*raised.args).with_traceback(raised.__traceback__)
            return Failure(divided, where)
        if isinstance(raised, EndlessLoop):
            return self._endless(raised)
        if isinstance(raised, NoRoom):
            self._reports.add(IMPOSSIBLE, str(raised), self._site(raised), None)
            return Failure(raised, where)  # its notes say which thread asked for the memory
        if (unset := self._unset(raised)) is not None:
            self._reports.add(
                "uninitialised", unset, self._site(raised), self._clock.thread, ends=True
            )
            return None
        # Python's power of two floats has this number; other calls that overflow have none.
        if isinstance(raised, OverflowError) and raised.args[:1] == (errno.ERANGE,):
            what = "a power beyond the largest float is not simulated: write math.pow"
            return Failure(NotSimulated(f"{what}, {where}"), where)
        return Failure(raised, where)

    def describe(self, failure: Failure) -> None:
        """Say in the exception which thread raised it and where. An exception of the kernel's own
        is a finding if a GPU would not report it."""
        error = failure.error
        block = self._reports.block(self._clock.block_number)
        thread = self._reports.thread(self._clock.thread)
        if self._is_own(error):  # in the words of Numba
            which = f"tid={[*thread]} ctaid={[*block]}"
            error.args = (f"{which}: {error}" if str(error) else which,)
            if not self._debug and is_raised(error):
                what = f"{type(error).__name__} is raised, and without debug=True"
                what += " a GPU ends the thread and says nothing"
                self._add(UNREPORTED, what, error)
        kernel = self._translation.name
        error.add_note(f"in {kernel}, block {block}, thread {thread}, {failure.where}")

    def where(self, error: BaseException) -> str:
        """Return the innermost line of the kernel that an exception came through."""
        file, line = self._sites.line(self._site(error))
        return f"{file}:{line}"

    def _add(self, kind: str, what: str, error: Exception) -> None:
        self._reports.add(kind, what, self._site(error), self._clock.thread)

    def _endless(self, raised: EndlessLoop) -> Failure | None:
        file, line = self._sites.line(raised.site)
        raised.code = linecache.getline(file, line).strip()
        if self._loops is None or not self._loops.finds:
            return Failure(raised, f"{file}:{line}")
        what = f"{ALL_LOOPS} {self._loops.limit:,} times"
        what += f", this one {raised.iterations:,} times in one thread"
        self._reports.add("endless loop", what, raised.site, self._clock.thread)
        return None

    def _unset(self, error: Exception) -> str | None:
        """Return what a finding says of a kernel that reads a local variable which no line has set;
        None for any other error."""
        if not isinstance(error, NameError) or not self._is_own(error):
            return None
        if (said := re.search(r"(?:local|free) variable '(\w+)'", str(error))) is None:
            return None
        trace = innermost(error)
        assert trace is not None
        codes = {trace.tb_frame.f_code}
        if "free" in said[0]:
            codes.update(self._translation.codes)
        lines = sorted({line for code in codes for line in lines_setting(code, said[1])})
        which = f" ({', '.join(f'line {line}' for line in lines)})" if lines else ""
        return (
            f"{said[1]} {NO_VALUE}: this thread has passed no line that sets it{which}, and a GPU "
            "goes on with whatever its register holds"
        )

    def _is_own(self, error: BaseException) -> bool:
        """Return whether the kernel itself raised it."""
        trace = innermost(error)
        return trace is not None and self._sites.knows(trace.tb_frame.f_code)

    def _site(self, error: BaseException) -> int:
        """Return the innermost instruction of the kernel that an exception came through."""
        for trace in reversed(traces(error)):
            if self._sites.knows(code := trace.tb_frame.f_code):
                return id(code) + trace.tb_lasti
        return 0
