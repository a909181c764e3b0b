"""A user's kernel checked against the contract of a stage: ``convlab.check``."""

from convlab.checking.checker import check
from convlab.checking.outcome import Answer, Check, TrafficCount

__all__ = ["Answer", "Check", "TrafficCount", "check"]
