"""Measuring: every stage on one problem, judged and then timed or counted."""
