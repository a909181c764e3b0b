"""The documentation as a site: docs/, the lessons, and pages made from the ladder, by Sphinx."""
