"""The tensor cores' route, from mma to warpgroups; it begins at m05_microkernel."""
