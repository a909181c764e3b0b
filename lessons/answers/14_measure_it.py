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
        wrong("the median rounded", "answer", ('median = statistics.median(times_ms)', 'median = round(statistics.median(times_ms), 1)')),
        wrong("texts in the place of numbers", "answer", ('return median, tflops, speedup', "return f'{median}', f'{tflops}', f'{speedup}'"), told='return the numbers themselves'),
        wrong("a power by ^", "answer", ('tflops = operations / (median / 1000) / 1e12', 'tflops = operations / (median / 1000) / (10 ^ 12)'), told='is not a power'),
        wrong("a module that is not imported", "broken", ('median = statistics.median(times_ms)', 'median = np.median(times_ms)'), told='import numpy as np'),
        wrong("the speedup in percent", "answer", ('speedup = other_ms / median', 'speedup = 100 * other_ms / median'), told='100 times too large'),
        right("NumPy's median", (MEDIAN, "import numpy as np\n    median = np.median(times_ms)")),
        right("the median by a function", ('def figures(times_ms', 'def middle_of(times):\n    times = sorted(times)\n    while len(times) > 2:\n        times = times[1:-1]\n    return sum(times) / len(times)\n\n\ndef figures(times_ms'), ('median = statistics.median(times_ms)', 'median = middle_of(times_ms)')),
        right("everything in seconds", ('    median = statistics.median(times_ms)\n    operations = 2 * problem.M * problem.N * problem.K\n    tflops = operations / (median / 1000) / 1e12\n    speedup = other_ms / median\n', '    seconds = statistics.median(times_ms) * 1e-3\n    median = seconds * 1e3\n    tflops = problem.M * problem.N * problem.K * 2 / seconds * 1e-12\n    speedup = other_ms * 1e-3 / seconds\n')),
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
        wrong("waits before the launch, not after it", "answer", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.wait()\n        gpu.launch()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)'), told='after a launch, the GPU is still at work'),
        wrong("the flush between the clock and the launch", "answer", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.wait()\n        start = gpu.clock()\n        gpu.flush_cache()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)'), told='measures the flush as well'),
        wrong("only the last time kept", "answer", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n    times.append(gpu.clock() - start)\n    return statistics.median(times)'), told='Each launch is measured well'),
        wrong("the flush not called", "not called", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)'), line='gpu.flush_cache'),
        wrong("by the machine's own clock", "answer", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    import time\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = time.perf_counter()\n        gpu.launch()\n        gpu.wait()\n        times.append(time.perf_counter() - start)\n    return statistics.median(times)'), told='does not read gpu.clock()'),
        right("one measurement in a function", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    def once():\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        return gpu.clock() - start\n\n    once()\n    return statistics.median([once() for _ in range(repeats)])\n')),
        right("the mean without the extremes", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    times = sorted(times)[5:-5]\n    return statistics.mean(times)')),
        right("by a while loop", ('    gpu.launch()\n    times = []\n    for _ in range(repeats):\n        gpu.flush_cache()\n        gpu.wait()\n        start = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        times.append(gpu.clock() - start)\n    return statistics.median(times)', '    gpu.launch()\n    gpu.wait()\n    times = []\n    while len(times) < repeats:\n        gpu.flush_cache()\n        gpu.wait()\n        before = gpu.clock()\n        gpu.launch()\n        gpu.wait()\n        after = gpu.clock()\n        times += [after - before]\n    times.sort()\n    return times[repeats // 2]\n')),
    ],
}
