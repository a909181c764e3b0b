"""The check of a measurement on the pretended GPU, and of functions of numbers."""

from __future__ import annotations

import linecache
from itertools import count

import pytest

from convlab import lessons
from convlab.lessons import pretended_gpu
from convlab.lessons.feedback import NOT_CALLED

_numbers = count()

MEASURE = """import statistics
def measure(gpu, repeats):
    gpu.launch()
    times = []
    for _ in range(repeats):
        gpu.flush_cache()
        gpu.wait()
        start = gpu.clock()
        gpu.launch()
        gpu.wait()
        times.append(gpu.clock() - start)
    return statistics.median(times)
"""


def function_of(text, name="measure"):
    file, there = f"<measuring {next(_numbers)}>", {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), there)
    return there[name]


def checked(*changes):
    text = MEASURE
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    gpus = lessons.gpus((1.0, 0.7), (5.0, 4.0))
    return lessons.check_function(function_of(text), lessons.pretended, gpus, within=0.03)


def test_a_right_measurement_passes_on_every_pretended_gpu():
    assert checked().passed


FLUSH = "        gpu.flush_cache()\n"
START = "        start = gpu.clock()\n"
APPEND = "        times.append(gpu.clock() - start)\n"
RETURN = "return statistics.median(times)"
NO_FLUSH = (FLUSH, "")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("        gpu.wait()\n" + APPEND, APPEND)], "after a launch, the GPU is still at work"),
        ([(FLUSH + "        gpu.wait()\n", FLUSH)], "before a launch, the GPU is still at work"),
        ([NO_FLUSH], "in the cache"),
        ([NO_FLUSH, (START, START + FLUSH)], "measures the flush as well"),
        (
            [NO_FLUSH, (APPEND, FLUSH + "        gpu.wait()\n" + APPEND)],
            "measures the flush as well",
        ),
        ([(RETURN, "return statistics.mean(times)")], "or which average"),
        ([(APPEND, APPEND[4:])], "Which of these times"),
        ([(RETURN, "return times[0]")], "Which of these times"),
        (
            [(START, ""), (APPEND, "        times.append(0.5)\n")],
            "does not read gpu.clock()",
        ),
    ],
)
def test_what_is_wrong_with_a_measurement_is_told(changes, said):
    (mistake,) = checked(*changes).mistakes
    assert said in mistake.advice


def test_several_launches_between_two_readings_are_told():
    text = "def measure(gpu, repeats):\n    gpu.launch()\n    gpu.wait()\n    start = gpu.clock()\n"
    text += "    for _ in range(repeats):\n        gpu.launch()\n    gpu.wait()\n"
    text += "    return (gpu.clock() - start) / repeats\n"
    gpus = [(lessons.PretendGPU(1.0, 1.0), 21)]
    found = lessons.check_function(function_of(text), lessons.pretended, gpus, within=0.03)
    assert "in the cache" in found.mistakes[0].advice
    gpu = gpus[0][0]
    gpu._spans = [pretended_gpu.Span(busy_before=False, launches=2), pretended_gpu.Span(False)]
    assert "measure each launch by itself" in gpu.remark


def test_a_method_that_is_named_and_not_called_is_told():
    found = checked(("gpu.flush_cache()", "gpu.flush_cache"))
    assert found.reasons[0] == NOT_CALLED
    assert found.mistakes[0].lines[0].code == "gpu.flush_cache"


def test_every_launch_is_slow_on_one_of_the_pretended_gpus():
    made = lessons.gpus((1.0, 0.7))()
    for number in range(1, pretended_gpu.REPEATS + 2):
        assert any((number - gpu.slow) % gpu.hiccup == 0 for gpu, _ in made)


def of(value, **more):
    return lessons.check_function(value, lambda times: (2.0, 3.0, 4.0), [([1.0, 3.0],)], **more)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return '2.0', '3.0', '4.0'", "return the numbers themselves"),
        ("return 2.0, 3.0, 5.0", "Number 3 of the result is wrong, and the others are right."),
        ("return 2.0, 3.5, 5.0", "Numbers 2 and 3 of the result are wrong, and the other one is"),
        ("return 2.0, 3.0, 10 ^ 2", "In Python 10 ^ 2 is not a power: write 10**2."),
        ("return 2.0, 3.0, 0.4", "Number 3 of the result is 10 times too small"),
        ("return 2.5, 3.5, 4.5", ""),
    ],
)
def test_wrong_results_of_a_function_are_told_apart(line, said):
    found = of(function_of(f"def figures(times):\n    {line}\n", "figures"))
    assert said in found.mistakes[0].advice
    assert bool(said) == bool(found.mistakes[0].advice)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("return np.median(times)", "import numpy as np is missing"),
        ("return times.Count(1)", "Is count meant?"),
        ("median = median(times)", "such as that of a module"),
    ],
)
def test_an_error_in_a_function_names_its_line_and_what_is_meant(line, said):
    found = of(function_of(f"def figures(times):\n    {line}\n", "figures"))
    (mistake,) = found.mistakes
    assert mistake.lines[0].code == line
    assert said in mistake.advice
