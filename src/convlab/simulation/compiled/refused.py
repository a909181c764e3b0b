"""The exception for what the compiled engine does not know."""

from __future__ import annotations


class NotCompiled(Exception):
    """The kernel or launch needs the other engine. The message says why, by the kind of feature."""
