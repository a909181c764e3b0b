"""The site: docs/, and pages made from the ladder, its traces and its results, for Sphinx.

``python -m convlab.site`` (:mod:`.build`) makes it; nothing that it generates is committed.
"""
