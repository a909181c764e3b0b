"""Answers to the exercises of lesson 14."""

from check_answers import given, right, wrong

MEDIAN = "median = statistics.median(times_ms)"
TFLOPS = "tflops = operations / (median / 1000) / 1e12"
FIRST = "    gpu.launch()\n    times = []\n"
FLUSH = "        gpu.flush_cache()\n        gpu.wait()\n"
TIMED = "        gpu.launch()\n        gpu.wait()\n        times.append("

ANSWERS = {
    "figures": [
        wrong("the mean", "answer", (MEDIAN, "median = statistics.mean(times_ms)")),
        wrong("the best", "answer", (MEDIAN, "median = min(times_ms)")),
        wrong("milliseconds taken for seconds", "answer", ("(median / 1000)", "median")),
        wrong("products without sums", "answer", ("2 * problem.M", "problem.M")),
        wrong("the speedup upside down", "answer", ("other_ms / median", "median / other_ms")),
        wrong("GFLOP/s", "answer", ("/ 1e12", "/ 1e9")),
        wrong("an upper median", "answer", (MEDIAN, "median = sorted(times_ms)[len(times_ms) // 2]")),
        wrong("a name that does not exist", "broken", ("problem.K", "problem.k")),
        wrong("the last time", "answer", (MEDIAN, "median = times_ms[-1]")),
        wrong("one product an output", "answer", (" * problem.K", "")),
        wrong("results in another order", "answer", ("return median, tflops, speedup", "return median, speedup, tflops")),
        wrong("nothing returned", "answer", ("return median, tflops, speedup", "print(median, tflops, speedup)")),
        right("by the problem's own count", ("2 * problem.M * problem.N * problem.K", "problem.flops")),
        right("units put together", (TFLOPS, "tflops = operations / median * 1e-9")),
        right("the median by hand", (MEDIAN, "ordered, half = sorted(times_ms), len(times_ms) // 2\n    median = (ordered[half] + ordered[-half - 1]) / 2")),
    ],
    "stopwatch": [
        given("answer"),
        wrong("no waiting before the clock is stopped", "answer", (TIMED, "        gpu.launch()\n        times.append(")),
        wrong("the cache not flushed", "answer", (FLUSH, "        gpu.wait()\n")),
        wrong("the flush measured as well", "answer", (FLUSH, "        gpu.flush_cache()\n")),
        wrong("the mean", "answer", ("statistics.median", "statistics.mean")),
        wrong("the best of all, from the cache", "answer", (FLUSH, "        gpu.wait()\n"), ("statistics.median", "min")),
        wrong("the longest", "answer", ("statistics.median", "max")),
        wrong("flushed once for all", "answer", (FLUSH, "        gpu.wait()\n"), (FIRST, FIRST + "    gpu.flush_cache()\n")),
        wrong("a button that does not exist", "broken", ("gpu.flush_cache()", "gpu.flush()")),
        wrong("the clock started once", "answer", ("        start = gpu.clock()\n", ""), (FIRST, "    gpu.launch()\n    times, start = [], gpu.clock()\n")),
        wrong("all of them together", "answer", ("statistics.median", "sum")),
        wrong("the time that it pretends", "answer", ("return statistics.median(times)", "return gpu.cold"), ("range(repeats)", "range(1)")),
        wrong("a loop without an end", "broken", ("for _ in range(repeats):", "while True:")),
        right("two launches to warm up", (FIRST, "    gpu.launch()\n    gpu.launch()\n    gpu.wait()\n    times = []\n")),
        right("the median by hand", ("statistics.median(times)", "sorted(times)[len(times) // 2]")),
        right("without a warm-up, which the median leaves aside", (FIRST, "    times = []\n")),
    ],
}
