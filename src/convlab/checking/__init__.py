"""A user's kernel checked against the contract of a stage: ``convlab.check``."""

from convlab.checking.checker import check
from convlab.checking.records import Answer, Check, Count

__all__ = ["Answer", "Check", "Count", "check"]
