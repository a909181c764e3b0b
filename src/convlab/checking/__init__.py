"""Somebody's own kernel against the contract of a stage: ``convlab.check``."""

from convlab.checking.checker import check
from convlab.checking.records import Answer, Check, Count
from convlab.checking.views import as_text, card

# Records know no views; here the two come together.
Check.__str__ = as_text  # type: ignore[assignment]
Check._repr_html_ = card  # type: ignore[attr-defined]

__all__ = ["Answer", "Check", "Count", "check"]
