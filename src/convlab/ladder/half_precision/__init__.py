"""The route of 16 bits and TF32, channels last: from panels in shared memory to roles of warps."""
