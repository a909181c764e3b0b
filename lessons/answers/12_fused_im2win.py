"""Answers to the exercises of lesson 12."""

from check_answers import given, right, wrong

FILTER = "        fetch_filter(packed, slice_, pipe, t, S_F)\n"
WINDOWS = "        fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)\n"
IF = "            if slice_ + IN_FLIGHT < SLICES:\n"
LOOP = "            steps(S_F, S_I, at_F"
COMMITTED = (
    "            commit_copies()  # a commit group per slice, at last empty ones: IN_FLIGHT counts slices\n"
)
COMMIT = COMMITTED + LOOP
WAIT = "                wait_copies(IN_FLIGHT)  # lines 14-15\n"
BARRIER = "                cuda.syncthreads()  # line 16: all have filled the next slice and have read this one\n"
ONE = "wait_copies(IN_FLIGHT)  # lines 14-15"
CASES = """                if {}:
                    wait_copies(1)
                else:
                    wait_copies(0)
"""

NEXT = "            start_next(input, packed, first, i_h, i_w, t, slice_, free, S_F, S_I)\n"

ANSWERS = {
    "pipeline": [
        wrong("no wait for copies", "copy in flight", (WAIT, "")),
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("a warp's barrier, not the block's", "shared race", (BARRIER, BARRIER.replace("threads()", "warp()"))),
        wrong("the barrier first", "shared race", (WAIT + BARRIER, BARRIER + WAIT)),
        wrong("a group only where there is a slice", "copy in flight", (COMMIT, "    " + COMMIT)),
        wrong("no group at all", "copy in flight", (COMMIT, LOOP)),
        wrong("waits for one too few", "copy in flight", (ONE, "wait_copies(IN_FLIGHT + 1)")),
        wrong("the windows forgotten", "answer", (WINDOWS, "")),
        wrong("the filter forgotten", "answer", (FILTER, "")),
        wrong("always into stage 0", "answer", (WINDOWS, WINDOWS.replace("pipe, t", "0, t"))),
        wrong("the last slice forgotten", "answer", (IF, IF.replace("SLICES", "SLICES - 1"))),
        wrong("waits for all, always", "counts", (ONE, "wait_copies(0)")),
        right("the later slice named", (IF, "            later = slice_ + IN_FLIGHT\n            if later < SLICES:\n")),
        right("the windows first", (FILTER + WINDOWS, WINDOWS + FILTER)),
        right("a group in both cases", (COMMIT, "                commit_copies()\n            else:\n    " + COMMIT)),
    ],
    "impatient": [
        given("counts"),
        wrong("all but two, always", "copy in flight", (ONE, "wait_copies(2)")),
        wrong("as many as there are pipeline stages", "copy in flight", (ONE, "wait_copies(DEPTH)")),
        wrong("not waited for", "copy in flight", (WAIT, "")),
        wrong("waits after the barrier", "shared race", (WAIT + BARRIER, BARRIER + WAIT)),
        wrong("waits for all a second time", "counts", (WAIT, WAIT + "                wait_copies(0)\n")),
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("a warp\'s barrier, not the block\'s", "shared race", (BARRIER, BARRIER.replace("threads()", "warp()"))),
        wrong("a slice too far", "answer", (NEXT, NEXT.replace("slice_,", "slice_ + 1,"))),
        wrong("the slice before", "answer", (NEXT, NEXT.replace("slice_,", "slice_ - 1,"))),
        wrong("no group after the next slice", "copy in flight", (NEXT, "            if slice_ + IN_FLIGHT < SLICES:\n    " + NEXT)),
        wrong("started after the wait", "copy in flight", (NEXT, ""), (BARRIER, BARRIER.replace("                cuda", "                cuda") + "    " + NEXT)),
        wrong("started into the stage in use", "shared race", (NEXT, NEXT.replace("free", "pipe"))),
        right("by the number in flight", (WAIT, CASES.format("IN_FLIGHT == 1"))),
        right("by the number of pipeline stages", (WAIT, CASES.format("DEPTH == 3"))),
        right("all of them before the last slice", (WAIT, CASES.format("IN_FLIGHT == 1 and slice_ + 1 < SLICES"))),
    ],
}
