"""Programs as they are: what the strict simulator does with a program that nobody wrote for it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import convlab
from convlab import SimulationError, simulate
from convlab.simulation.host.run_report import Report
from convlab.simulation.rules.findings import Finding

SOURCE = Path(convlab.__file__).parents[1]
pytestmark = pytest.mark.same_in_cudasim

# In a process of their own, because Numba decides at its first import whether it simulates CUDA.
WITHIN = """
import json, sys, traceback
import numba
import numpy as np
from numba import cuda, float32
from convlab import SimulationError, simulator

def findings(launch, *arguments):
    try:
        launch(*arguments)
    except SimulationError as error:
        return {(finding.kind, finding.array) for finding in error.findings}

@cuda.jit
def double(a, b):
    i = cuda.grid(1)
    if i < a.size:
        b[i] = 2 * a[i]

@cuda.jit
def unguarded(a):
    a[cuda.grid(1)] += 1

@cuda.jit
def reverse(a, b):
    staged, i = cuda.shared.array(0, float32), cuda.threadIdx.x
    staged[i] = a[i]
    cuda.syncthreads()
    b[i] = staged[cuda.blockDim.x - 1 - i]

@cuda.jit
def shift(a, b):
    i = cuda.grid(1)
    b[i] = a[i + 1]

def times(x, y):
    return x * y

def runs(a, out):
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i]
        out[i] = total

failed = {}
for name, lines in json.loads(sys.argv[1]).items():
    try:
        exec("with simulator() as found:" + lines, dict(globals()))
    except Exception:
        failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""
LINES = {
    "arrays, streams and events": """
    stream, event = cuda.stream(), cuda.event()
    double = cuda.jit("void(float32[:], float32[:])")(globals()["double"].py_func)
    a = cuda.to_device(np.arange(70, dtype=np.float32), stream)
    b = cuda.device_array_like(a)
    with stream.auto_synchronize():
        double[3, 32, stream](a, b)
        event.record(stream)
    assert (b.copy_to_host() == 2 * np.arange(70)).all()
    """,
    "host arrays are copied, each to an array of its own": """
    a = np.arange(40, dtype=np.float32)
    double[1, 64](a, a)
    assert (a == 2 * np.arange(40)).all()
    out = np.zeros(40, np.float32)
    double[1, 64](cuda.In(a), cuda.Out(out))
    assert (out == 2 * a).all() and not found.findings
    """,
    "two configurations of one kernel, and dynamic shared memory": """
    first, second = reverse[1, 8, 0, 32], reverse[1, 16, 0, 64]
    a, b, c = np.arange(16, dtype=np.float32), np.zeros(16, np.float32), np.zeros(16, np.float32)
    first(a[:8], b[:8])
    second(a, c)
    assert (b[:8] == a[7::-1]).all() and (c == a[::-1]).all()
    assert findings(reverse[1, 16], a, b) == {("out of bounds", "staged")}
    """,
    "forall starts whole blocks": """
    a = np.zeros(200, np.float32)
    double.forall(200)(a, a)
    assert findings(unguarded.forall(200), a) == {("out of bounds", "a")}
    assert [finding.kind for finding in found.findings] == ["out of bounds"]
    double.forall(0)(a, a)
    """,
    "what host and kernel share is not copied; what nobody wrote is NaN": """
    for make in cuda.managed_array, cuda.mapped_array:
        a, b = make(40, np.float32), make(40, dtype=np.float32)
        a[:] = 1
        double[2, 32](a, b)
        double[2, 32](b[:20], b[20:])
        cuda.synchronize()
        assert b.sum() == 20 * 2 + 20 * 4, b
        assert {kind for kind, _ in findings(shift[1, 32], a, a)} == {"global race"}
    assert findings(shift[1, 32], np.ones(40, np.float32), np.ones(40, np.float32)) is None
    assert np.isnan(cuda.device_array(3).copy_to_host()).all()
    """,
    "reductions and generalised ufuncs are kernels": """
    a = np.arange(300.0)
    assert cuda.reduce(lambda x, y: x + y)(a) == a.sum()
    product = cuda.vectorize(["float64(float64, float64)", "(float32, float32)"])(times)
    expected = a.reshape(3, 100) * a[:100]
    assert (product(a.reshape(3, 100), cuda.to_device(a[:100])).copy_to_host() == expected).all()
    assert product(np.float32([2]), np.float32([3])).dtype == np.float32
    sums = numba.guvectorize(["void(float64[:], float64[:])"], "(n)->(n)", target="cuda")(runs)
    assert (sums(a.reshape(3, 100)) == a.reshape(3, 100).cumsum(1)).all()
    assert found.launches > 5 and not found.findings
    """,
    "names, options and facts": """
    from importlib.util import find_spec
    from numba.cuda import grid, shfl_down_sync
    assert find_spec("numba_cuda_mlir") and not find_spec("numba_cuda_mlir.nothing")
    from numba_cuda_mlir import cuda as successor, types
    from numba_cuda_mlir.cuda import to_device
    assert successor is cuda and types.float32 is float32 or types.float32.name == "float32"

    @successor.jit(max_registers=32, lineinfo=True, launch_bounds=64, cache=True)
    def named(a):
        a[grid(1)] = shfl_down_sync(0xFFFFFFFF, cuda.threadIdx.x, 1)
    a = to_device(np.zeros(32, np.int64))
    named[1, 32](a)
    assert (a.copy_to_host() == [*range(1, 32), 31]).all()
    assert cuda.get_current_device().MULTIPROCESSOR_COUNT and cuda.is_available()
    assert cuda.current_context().get_memory_info().free > 1 << 30
    """,
    "arguments become what a signature declares": """
    square = cuda.jit("float32(float32)", device=True)(lambda x: x * x)
    below = cuda.jit("uint32(uint32)", device=True)(lambda x: x - 10)
    wrapped = np.zeros(1)
    @cuda.jit
    def wraps(a):
        a[0] = below(3)
    wraps[1, 1](wrapped)
    assert wrapped[0] == 2**32 - 7
    @cuda.jit(["void(float32[:], int32)", "void(float64[:], int32)"])
    def declared(a, n):
        a[0], a[1] = n, square(0.1)
    for kind in np.float32, np.float64:
        a = np.zeros(2, kind)
        declared[1, 1](a, np.int16(5))
        assert a[0] == 5 and a[1] == np.float32(np.float32(0.1) ** 2), a
    for given in [(np.zeros(2, np.int32), 5), (a, 1.5)]:
        try:
            declared[1, 1](*given)
        except TypeError as error:
            assert "No matching definition for argument type(s) array(" in str(error)
        else:
            assert False
    """,
    "device arrays have names in kernels and an interface": """
    class Foreign:
        def __init__(self, array):
            self.__cuda_array_interface__ = array.__cuda_array_interface__
    weights = cuda.to_device(np.arange(32.0))
    @cuda.jit
    def captured(a):
        i = cuda.grid(1)
        a[i] = weights[31 - i]
    a = cuda.to_device(np.zeros(32))
    captured[1, 32](Foreign(a))
    assert (a.copy_to_host() == np.arange(31, -1, -1)).all()
    @cuda.jit
    def captured_race():
        weights[0] = weights[cuda.grid(1)]
    assert findings(captured_race[1, 32]) == {("global race", "a global array")}
    low, high = weights[:31], weights[1:]
    @cuda.jit
    def race_of_two_views():
        i = cuda.grid(1)
        low[i] = high[i]
    assert findings(race_of_two_views[1, 31]) == {("global race", "a global array")}
    """,
    "bfloat16 is there": """
    from numba.cuda.bf16 import bfloat16, hadd
    @cuda.jit
    def halves(a):
        a[0] = hadd(bfloat16(1.7), bfloat16(2))
    a = np.zeros(1)
    halves[1, 1](a)
    assert a[0] == 3.703125 and cuda.is_bfloat16_supported()
    """,
    "launches of two threads of the program do not mix": """
    from concurrent.futures import ThreadPoolExecutor
    outs = [np.zeros(500, np.float32) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda out: double[16, 32](np.full(500, 0.1, np.float32), out), outs))
    assert all((out == np.float32(0.2)).all() for out in outs)
    """,
}


PROGRAM = """
import sys
import numpy as np
from numba import cuda
from helper import double

@cuda.jit
def shared_element(a):
    a[0] = cuda.grid(1)

a = np.ones(40, np.float32)
if "right" in sys.argv:
    double[2, 32](a, a)
for _ in range(2 * sys.argv.count("race")):
    shared_element[1, 32](a)
if "outside" in sys.argv:
    double[1, 64](a[:20], a)
if "nested" in sys.argv:
    import convlab
    with convlab.simulator():
        double[1, 64](a[:20], a)
if "unknown" in sys.argv:
    cuda.jit(lambda: cuda.unheard_of())[1, 1]()
sys.exit(sys.argv.count("exit") * 3)
"""
HELPER = """
from numba import cuda

@cuda.jit
def double(a, b):
    i = cuda.grid(1)
    if i < b.size:
        b[i] = 2 * a[i]
"""
RUNS = [  # arguments, exit status, findings' lines, refused launches
    ("right exit", 3, [], 0),
    ("race outside exit", 1, ["program.py:9: global race", "helper.py:8: out of bounds"], 0),
    ("nested", 1, ["helper.py:8: out of bounds"], 0),
    ("unknown", 2, [], 1),
]


COMPILED = """
import sys, types
import numpy as np
from numba import cuda

config, inner = types.ModuleType("config"), types.ModuleType("inner")
config.N = inner.N = N = 4
config.inner, table, pair = inner, np.array([4]), (0, 4)
sys.modules["config"] = config

@cuda.jit(device=True)
def lazy(x):
    return x + N

@cuda.jit("int64(int64)", device=True)
def eager(x):
    return x + N

@cuda.jit(device=True)
def rebound(x):
    return x + 4

def make(F):
    @cuda.jit(SIGNATURES)
    def kernel(out):
        out[0] = N
        out[1] = F
        out[2] = config.N
        out[3] = config.inner.N
        out[4] = lazy(0)
        out[5] = eager(0)
        out[6] = rebound(0)
        out[7] = table[0]
        out[8] = pair[1]

    def change(value):
        nonlocal F
        F = value
    return kernel, change

kernel, change = make(4)

@cuda.vectorize(["int64(int64)"])
def vectorised(x):
    return x + N

def changed(value):
    global N, pair, rebound
    change(value)
    N = config.N = inner.N = table[0] = value
    pair = 0, value
    @cuda.jit(device=True)
    def rebound(x):
        return x + value

def numbers(kernel):
    out = np.zeros(9, np.int64)
    kernel[1, 1](out)
    return out.tolist()

DECLARED = SIGNATURES
if not DECLARED:
    assert numbers(kernel) == [4] * 9
changed(9)
assert numbers(kernel) == [4] * 9, numbers(kernel)
other, _ = make(9)  # the device functions are compiled for these types: two of them keep theirs
expected = [9, 9, 9, 9, 4, 4, 9, 9, 9]
late = cuda.jit(other.py_func)
assert numbers(late) == expected, numbers(late)
assert vectorised(np.array([0]))[0] == 4
changed(5)
assert numbers(late) == expected, numbers(late)
assert numbers(kernel) == [4] * 9, numbers(kernel)
"""


@pytest.mark.parametrize("typed", ["--typed", "--no-typed"])
@pytest.mark.parametrize(
    "signatures", ["None", "'void(int64[:])'", "['void(int64[:])', 'void(float32[:])']"]
)
def test_what_is_compiled_into_a_kernel_stays(folder, command, signatures: str, typed: str) -> None:
    """Values are taken at a kernel's declaration, else at its first launch; the same of device
    functions."""
    text = COMPILED.replace("SIGNATURES", signatures)
    (folder / "program.py").write_text(text)
    done = command("run", typed, "program.py")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("arguments", "status", "lines", "refused"), RUNS)
def test_a_program_runs_as_it_is(folder, command, arguments, status, lines, refused) -> None:
    (folder / "program.py").write_text(PROGRAM)
    (folder / "helper.py").write_text(HELPER)
    outputs = "--json", "found.json", "--sarif", "found.sarif"
    done = command("run", *outputs, "program.py", *arguments.split())
    assert done.returncode == status, done.stderr
    found = json.loads((folder / "found.json").read_text())
    assert (found["status"], len(found["refused"])) == (status, refused)
    assert found["ok"] == (not lines and not refused)
    sarif = json.loads((folder / "found.sarif").read_text())["runs"][0]
    places = [one["locations"][0]["physicalLocation"] for one in sarif["results"]]
    shown = [f"{p['artifactLocation']['uri']}:{p['region']['startLine']}" for p in places]
    assert shown == [":".join(line.split(":")[:2]) for line in lines]
    assert all(f"\n{line}" in f"\n{done.stderr}" for line in lines)
    assert all(one["count"] > 1 for one in found["findings"] if one["kind"] == "global race")
    assert done.stdout == ""


def test_findings_with_other_files_stay_apart_and_name_them() -> None:
    others = {"other_line": 3, "other_file": "b.py"}, {"other_line": 3}, {"other_line": 4}
    report = Report()
    for other in others:
        finding = Finding("global race", "kernel", "a.py", 3, "two threads write", **other)
        report.add(SimulationError("", (finding,)))
    results = report.as_sarif("1")["runs"][0]["results"]
    related = [one["physicalLocation"] for result in results for one in result["relatedLocations"]]
    places = [(one["artifactLocation"]["uri"], one["region"]["startLine"]) for one in related]
    assert (len(results), places) == (3, [("b.py", 3), ("a.py", 4)])
    found = report.as_json()["findings"]
    assert [one["other_file"] for one in found] == ["b.py", None, None]


LONG = """
import numpy as np
from numba import cuda

@cuda.jit
def sums(a):
    for k in range(1 << 40):
        a[0] = k % 3

def test_long(): sums[1, 1](np.zeros(1))
if __name__ == "__main__": test_long()
"""


def test_a_launch_has_so_many_steps(folder, command, suite, monkeypatch) -> None:
    (folder / "test_long.py").write_text(LONG)
    told = "test_long.py:7: endless loop, sums, line 7 of test_long.py: all loops together have"
    assert told in command("run", "--steps", "500", "test_long.py").stderr
    assert told in suite("--cuda=strict", "--cuda-steps=500").stdout
    monkeypatch.syspath_prepend(folder)
    sums = importlib.import_module("test_long").sums
    for more, options, error in (
        ((), {"steps": 5}, "all loops together have run 5 times"),
        ((), {"steps": 0}, "steps is 0: it must be"),
        ((2**64,), {}, "argument 1 is 18446744073709551616: an integer has at most 64 bits"),
    ):
        with pytest.raises((ValueError, SimulationError), match=error):
            simulate(sums, 1, 1, np.ones(1), *more, **options)


@pytest.mark.slow
def test_an_interrupted_launch_says_where_its_threads_are(folder, command) -> None:
    """Ctrl-C in the middle of a kernel."""
    alarm = "import signal, os; signal.signal(signal.SIGVTALRM, signal.default_int_handler)"
    alarm += "; signal.setitimer(signal.ITIMER_VIRTUAL, 1)\n"
    (folder / "long.py").write_text(alarm + LONG)
    done = command("run", "long.py")
    assert done.returncode == 130
    assert "sums was interrupted in" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("nothing.py", "SCRIPT.py is 'nothing.py', which cannot be read"),
        ("broken.py", "broken.py:2: SyntaxError"),
        ("-m nothing", "-m is 'nothing': there is no such module"),
        ("-m unittest.nothing", "-m is 'unittest.nothing': No module named unittest.nothing"),
        ("--sarif none/x broken.py", "--sarif is 'none/x', but there is no folder"),
    ],
)
def test_a_program_that_cannot_begin_is_refused(folder, command, arguments, told) -> None:
    (folder / "broken.py").write_text("\nx = = 1\n")
    done = command("run", *arguments.split())
    assert done.returncode == 2
    assert told in done.stderr
    refused = done.stderr.removesuffix("convlab: no kernel was launched, so nothing was checked\n")
    assert len(refused.splitlines()) == 1


SUITE = """
import numpy as np
import pytest
from numba import cuda
from numba.cuda import grid
from helper import double

@cuda.jit
def shared_element(a):
    a[0] = grid(1)

@pytest.fixture
def prepared():
    shared_element[1, 2](np.zeros(1))

def test_right(): double[1, 32](np.zeros(40), np.zeros(40))
def test_race(): shared_element[1, 32](np.zeros(1))
def test_outside(): double[1, 32](np.zeros(1), np.zeros(9))
def test_caught():
    with pytest.raises(Exception):
        double[1, 32](np.zeros(1), np.zeros(9))
def test_skipped():
    shared_element[1, 32](np.zeros(1))
    pytest.skip("too late")
def test_unknown(): cuda.jit(lambda a: cuda.unheard_of(a))[1, 1](np.zeros(1))
def test_untyped():
    exec("@cuda.jit\\ndef sourceless(a): a[0] = 1", globals())
    sourceless[1, 1](np.zeros(1))
def test_prepared(prepared): pass
@pytest.mark.cuda_allow("global race")
class TestKnown:
    def test_known(self): shared_element[1, 32](np.zeros(1))
    def test_other(self): double[1, 32](np.zeros(1), np.zeros(9))
@pytest.mark.cuda_allow("races")
def test_no_kind(): shared_element[1, 32](np.zeros(1))
"""


def test_a_suite_runs_strictly(folder, suite) -> None:
    """Findings fail tests and fixtures, whatever those catch, with the kernel's lines."""
    (folder / "test_suite.py").write_text(SUITE)
    (folder / "helper.py").write_text(HELPER)
    (folder / "test_import.py").write_text("import test_suite; test_suite.test_race()")
    told = suite("-rA", "--cuda=strict", "test_suite.py").stdout
    for test, words in {
        "FAILED test_suite.py::test_race": "test_suite.py:10: global race",
        "FAILED test_suite.py::test_outside": "helper.py:8: out of bounds",
        "FAILED test_suite.py::test_caught": "helper.py:8: out of bounds",
        "FAILED test_suite.py::test_skipped": "test_suite.py:10: global race",
        "FAILED test_suite.py::test_unknown": "Numba refuses <lambda>: ",
        "ERROR test_suite.py::test_prepared": "test_suite.py:10: global race",
        "FAILED test_suite.py::TestKnown::test_other": "helper.py:8: out of bounds",
    }.items():
        assert f"{test} - Failed: {words}"[:60] in told, told
    assert "ValueError: cuda_allow has 'races': a kind is one of out of bounds, " in told
    assert "6 failed, 3 passed, 3 errors" in told
    assert "cuda: sourceless ran without Numba's types" in told
    told = suite("--cuda=strict", "test_import.py").stdout
    assert "ERROR test_import.py - test_suite.py:10: global race" in told


TYPES = """
import numpy as np
from numba import cuda

@cuda.jit
def doubled(a, n):
    x = 2**62
    for _ in range(n):
        x += x
    a[0] = x

def test_types():
    a = np.ones(1)
    doubled[1, 1](a, 2)
    print(a[0])
    exec("def sourceless(a): a[0] = 3", namespace := {})
    cuda.jit(namespace["sourceless"])[1, 1](a)

if __name__ == "__main__":
    test_types()
"""


@pytest.mark.parametrize(
    ("words", "result"),
    [("", "0.0"), ("--no-typed", f"{2.0**64}"), ("--cuda=untyped", f"{2.0**64}")],
)
def test_types_can_be_switched_off(folder, command, suite, words: str, result: str) -> None:
    (folder / "numbers_of_types.py").write_text(TYPES)
    if words.startswith("--cuda"):
        done = suite("-s", words, "numbers_of_types.py")
    else:
        done = command("run", *words.split(), "numbers_of_types.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert result in done.stdout
    told = "sourceless ran without Numba's types: sourceless: could not" in done.stderr
    assert told == (words == "")


def test_the_simulator_imports_nothing_of_the_ladder() -> None:
    source = "import convlab, sys; convlab.simulator, convlab.simulate; print(*sys.modules)"
    loaded = re.findall(r"\bconvlab\.(\w+)", python("-c", source).stdout)
    assert {*loaded} == {"device", "simulation", "support"}


@pytest.mark.slow
def test_the_speed_of_both_simulators_is_measured(warmed) -> None:
    source = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "tools")!r})
import simulator_speed as speed
cases = tuple(case._replace(sizes=(128,) if case.work(4) == 4 else (8,))
              for case in speed.CASES)
results = list(speed.measured(cases, runs=2))  # the first one finds the types
assert len(results) == 5 and all(one.ratio > 1 for one in results), results
"""
    done = warmed.run("-c", source)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("limit", [0.0, float("inf")], ids=["compiled", "never compiled"])
def test_a_run_with_machine_code_in_memory_is_a_compiled_one(warmed, limit) -> None:
    source = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "tools")!r})
import simulator_speed as speed
from convlab.simulation.compiled import engine_choice
engine_choice.limits = engine_choice.Limits.all_at(float("{limit}"))
print([run.engine for run in speed.first_and_in_memory(speed.CASES[0], 128)])
"""
    done = warmed.run("-c", source)
    if limit:
        assert "AssertionError: histogram of size 128 is not compiled in 40 runs" in done.stderr
    else:
        assert done.stdout == "['compiled', 'compiled']\n", done.stderr


def python(*words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"PYTHONPATH": str(SOURCE)} | environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["0", "1"], ids=["Numba", "Numba's simulator"])
def failed(request: pytest.FixtureRequest, warmed) -> dict[str, str]:
    """Return what each of the lines that failed raised."""
    run = warmed.run if request.param == "1" else partial(python, NUMBA_ENABLE_CUDASIM="0")
    done = run("-c", WITHIN, json.dumps(LINES))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", LINES)
def test_a_launch_is_strict(name: str, failed: dict[str, str]) -> None:
    assert name not in failed, failed[name]
