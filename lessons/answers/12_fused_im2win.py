"""Answers to the exercises of lesson 12."""

from convlab.lessons.answers import given, right, wrong

FILTER = "            fetch_filter(packed, slice_, pipe, t, S_F)\n"
WINDOWS = "            fetch_windows(input, slice_, pipe, t, first, i_h, i_w, S_I)\n"
COMMIT = "        commit_copies()  # even an empty group: wait_copies counts groups\n"
WAIT = "        wait_copies(IN_FLIGHT)  # for this thread's part of the slice,\n"
BARRIER = "        cuda.syncthreads()  # then for all threads'; its predecessor is free\n"
CASES = "        if {}:\n            wait_copies(1)\n        else:\n            wait_copies(0)\n"

ANSWERS = {
    "pipeline": [
        wrong("no wait for copies", "copy in flight", (WAIT, "")),
        wrong("no barrier", "shared race", (BARRIER, "")),
        wrong("the barrier first", "shared race", (WAIT + BARRIER, BARRIER + WAIT)),
        wrong("a group only where there is a slice", "copy in flight", (COMMIT, "    " + COMMIT)),
        wrong("no group at all", "copy in flight", (COMMIT, "")),
        wrong("waits for one too few", "copy in flight", ("wait_copies(IN_FLIGHT)", "wait_copies(IN_FLIGHT + 1)")),
        wrong("the windows forgotten", "answer", (WINDOWS, "")),
        wrong("the filter forgotten", "answer", (FILTER, "")),
        wrong("always into stage 0", "answer", (WINDOWS, WINDOWS.replace("pipe, t", "0, t"))),
        wrong("waits for all, always", "counts", ("wait_copies(IN_FLIGHT)", "wait_copies(0)")),
        right("two groups a slice: the filter is waited for early", (FILTER, FILTER + "            commit_copies()\n")),
        right("the windows first", (FILTER + WINDOWS, WINDOWS + FILTER)),
        right("a group in both cases", (COMMIT, "            commit_copies()\n        else:\n            commit_copies()\n")),
    ],
    "impatient": [
        given("counts"),
        wrong("all but two, always", "copy in flight", ("wait_copies(IN_FLIGHT)", "wait_copies(2)")),
        wrong("as many as there are slots", "copy in flight", ("wait_copies(IN_FLIGHT)", "wait_copies(DEPTH)")),
        wrong("not waited for", "copy in flight", (WAIT, "")),
        wrong("waits after the barrier", "shared race", (WAIT + BARRIER, BARRIER + WAIT)),
        wrong("waits for all a second time", "counts", (WAIT, WAIT + "        wait_copies(0)\n")),
        right("by the number in flight", (WAIT, CASES.format("IN_FLIGHT == 1"))),
        right("by the number of slots", (WAIT, CASES.format("DEPTH == 3"))),
    ],
}
