"""Measuring: systems on layers, each output checked, then timed; results, reports and pages."""
