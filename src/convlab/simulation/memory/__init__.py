"""Simulated memory: arrays whose accesses are checked, and the spaces that they stand in."""
