"""Stages that are wrong on purpose, and how they are made and checked.

A mutant is a stage with one place of its code changed, or of a module that the stage imports. The
change is found by the code: comments may be reworded and code may move.

- ``by_hand.py``: mistakes that people make, each with a name. The oracle must reject each one on
  small problems (``test_mutants.py``).
- ``generated.py``: all changes of some kinds, in every kernel. ``results.py`` holds each to
  ``convlab check``, those that it does not take to the problems of ``own_problems.py``, and
  ``python -m stage_mutants`` runs them and stores the results.
- ``mutant.py``, ``sources.py``: what both kinds share.
"""
