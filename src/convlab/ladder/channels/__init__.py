"""The channel-parallel route: several threads for one output."""
