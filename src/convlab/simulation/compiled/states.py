"""The states of a thread in a compiled launch."""

READY, DONE = 0, 1
# Calls in which threads wait for each other: barriers of the block, then calls of a warp.
BARRIER, COUNT, AND, OR = 2, 3, 4, 5
SYNCWARP, ACTIVEMASK, BALLOT, ALL, ANY, EQ, MATCH_ANY, MATCH_ALL, SHUFFLE = range(8, 17)
