"""The route of 16 bits, channels last: from panels in shared memory to roles of warps."""
