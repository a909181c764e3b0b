"""The exception for what the compiled engine does not know."""

from __future__ import annotations


class NeedsGreenlets(Exception):
    """The kernel or launch must run on greenlets, not as machine code. The message says why, by the
    kind of feature."""
