"""The rules of a launch: races, orders, memory traffic, findings and their remedies."""
