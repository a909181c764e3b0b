"""The facts from the text about an atomic while it runs, in the kernel or in what it calls."""

from __future__ import annotations

from types import FrameType

from convlab.simulation.recording.instructions import instruction
from convlab.simulation.recording.sites import Sites
from convlab.simulation.rules.retries import Retry, Update, update_of


class RunningUpdates:
    """The updates of a launch, each of which is looked up in the text once.

    ``update_of`` has a cache too, but that hashes the code at each call, which takes long, and this
    is asked at nearly every atomic. Here the key is the code's id. It stays that code's, because
    ``sites`` keeps the code alive.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._updates: dict[tuple[int, int], Update] = {}  # by id of the code, offset

    def at(self, frame: FrameType | None) -> Update:
        """Return the facts that the text of this frame and of its callers tells of its atomic."""
        found = Update()
        while frame is not None:
            code, offset = frame.f_code, frame.f_lasti
            if self._sites.knows(code):
                where = id(code), offset
                if (update := self._updates.get(where)) is None:
                    one = instruction(code, offset)
                    update = self._updates[where] = update_of(code, one, code.co_filename)
                found = Update(
                    retry=update.retry,
                    computed=found.computed or update.computed,
                    follows=found.follows or update.follows,
                    walks=found.walks or update.walks,
                    name=found.name or update.name,
                )
                if update.retry != Retry.RETURNED:
                    return found
            frame = frame.f_back
        return found._replace(retry=Retry.NEVER)
