"""A user's kernel checked against the contract of a stage: ``convlab.check``."""

from convlab.checking.checker import check
from convlab.checking.outcome import Answer, Check, Count

__all__ = ["Answer", "Check", "Count", "check"]
