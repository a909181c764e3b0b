"""The log of a launch: code sites and accesses in execution order."""
