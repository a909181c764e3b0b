"""The public names of ``numba.cuda`` outside kernels, those of kernels, streams, arrays and so on:
the strict simulator has each, or refuses it by its name.

What the installed numba-cuda has is listed by a process of its own, in which Numba does not
simulate. A name of a new version is missing here until somebody decides about it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from warmed import Warmed

pytestmark = pytest.mark.same_in_cudasim

SOURCE = Path(__file__).parents[2] / "src"
# Prints the public names of each thing; modules are how numba-cuda is built, not what it offers.
OF_NUMBA = """
import json
from types import ModuleType
import numpy as np
from numba import cuda
from numba.cuda import dispatcher, stubs
from numba.cuda.cudadrv import devicearray, devices, driver, error

def public(thing, but=()):
    return sorted(
        name for name in dir(thing)
        if not name.startswith("_") and name not in but
        and not isinstance(getattr(thing, name, None), ModuleType)
    )

array = dir(np.ndarray)
print(json.dumps({
    "cuda": public(cuda),
    "kernel": public(dispatcher.CUDADispatcher),
    "overload": public(dispatcher._Kernel),
    "stream": public(driver.Stream),
    "event": public(driver.Event),
    "context": public(driver.Context),
    "device": public(driver.Device),
    "devices": public(devices._DeviceList),
    "array": public(devicearray.DeviceNDArray),
    "record": public(devicearray.DeviceRecord),
    "mapped": public(devicearray.MappedNDArray, array),
    "managed": public(devicearray.ManagedNDArray, array),
    "errors": public(error),
    "atomic": public(cuda.atomic),
    "libdevice": public(cuda.libdevice),
}))
"""
# Prints, of the names given, those that something lacks. Values that are refused count as there.
HERE = """
import json, sys
import numpy as np
from convlab import simulator
from convlab.simulation.host.not_simulated import RefusedValue
from numba import cuda
from numba.cuda.cudadrv import error

def lacks(thing, name):
    try:
        return getattr(thing, name) is None
    except RefusedValue as refused:
        return not str(refused).startswith("convlab does not simulate ")
    except AttributeError:
        return True

with simulator():
    @cuda.jit
    def kernel(a):
        a[0] = 1
    record = np.zeros(1, [("x", "f4")])[0]
    things = {
        "cuda": cuda, "kernel": kernel, "overload": kernel.overloads[None],
        "stream": cuda.stream(), "event": cuda.event(), "context": cuda.current_context(),
        "device": cuda.get_current_device(), "devices": cuda.gpus,
        "array": cuda.device_array(2), "record": cuda.to_device(record),
        "mapped": cuda.mapped_array(2), "managed": cuda.managed_array(2), "errors": error,
        "atomic": cuda.atomic, "libdevice": cuda.libdevice,
    }
    print(json.dumps({
        thing: [name for name in names if lacks(things[thing], name)]
        for thing, names in json.loads(sys.argv[1]).items()
    }))
"""
# Left over from loops and imports of numba.cuda's own.
NOT_MEANT = {"cuda": {"alias"}}


def python(text: str, *words: str, simulated_by: Warmed | None = None) -> str:
    """Return what a program prints: where Numba compiles, or in a copy of a process whose Numba is
    its simulator."""
    if simulated_by is not None:
        done = simulated_by.run("-c", text, *words)
    else:
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "NUMBA_ENABLE_CUDASIM": "0"}
        done = subprocess.run(
            [sys.executable, "-c", text, *words], env=environment, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[False, True], ids=["Numba", "Numba's simulator"])
def simulated_by(request: pytest.FixtureRequest, warmed: Warmed) -> Warmed | None:
    """Programs run with each of the two: the process whose Numba is its simulator, or None."""
    return warmed if request.param else None


@cache
def surface() -> dict[str, list[str]]:
    names = json.loads(python("import convlab\n" + OF_NUMBA))
    return {
        thing: [name for name in found if name not in NOT_MEANT.get(thing, ())]
        for thing, found in names.items()
    }


def test_each_name_is_there_or_refused(simulated_by) -> None:
    """If Numba compiles in this process, compiled kernels are Numba's."""
    missing = json.loads(python(HERE, json.dumps(surface()), simulated_by=simulated_by))
    assert not {thing: names for thing, names in missing.items() if names}


REFUSALS = """
import json
import numpy as np
from convlab import SimulationError, simulator
from convlab.simulation.host import not_simulated as known
from numba import cuda

told = {}
def call(name, function):
    try:
        function()
        told[name] = "nothing"
    except SimulationError as error:
        told[name] = str(error)

with simulator():
    @cuda.jit
    def kernel(a):
        a[0] = 1
    a, m = cuda.device_array(2), cuda.mapped_array(2)
    for prefix, thing, names in (
        ("cuda", cuda, known.FUNCTIONS | known.CLASSES),
        ("kernel", kernel, known.OF_A_KERNEL),
        ("kernel.overloads[...]", kernel.overloads[None], known.OF_AN_OVERLOAD),
        ("context", cuda.current_context(), known.OF_A_CONTEXT),
        ("array", a, known.OF_AN_ARRAY),
        ("array", m, known.OF_AN_ARRAY),
    ):
        for name in names:
            assert hasattr(thing, name), name
            call(f"{prefix}.{name}", getattr(thing, name))
    for prefix, thing, names in (
        ("kernel", kernel, known.VALUES_OF_A_KERNEL),
        ("kernel.overloads[...]", kernel.overloads[None], known.VALUES_OF_AN_OVERLOAD),
        ("the device's L2_CACHE_SIZE", cuda.get_current_device(), ["L2_CACHE_SIZE"]),
    ):
        for name in names:
            assert not hasattr(thing, name) and getattr(thing, name, 3) == 3, name
            whole = prefix if prefix.endswith(name) else f"{prefix}.{name}"
            call(whole, lambda: getattr(thing, name))
    for name in known.CLASSES:
        assert not isinstance(a, getattr(cuda, name))
print(json.dumps(told))
"""


def test_each_refusal_names_what_it_refuses(warmed) -> None:
    told = json.loads(python(REFUSALS, simulated_by=warmed))
    assert len(told) > 60
    for name, sentence in told.items():
        assert sentence.startswith(f"convlab does not simulate {name}: "), (name, sentence)


def test_a_program_ends_at_a_refused_name(warmed, tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""from numba import cuda
kernel = cuda.jit(lambda a: None)
if hasattr(kernel, "inspect_asm"):
    kernel.inspect_asm()
""")
    done = warmed.run("-m", "convlab", "run", str(program), COLUMNS="300")
    assert done.returncode == 2
    told = done.stdout + done.stderr
    assert f"convlab: the program ended in {program}:4\n" in told
    assert "convlab does not simulate kernel.inspect_asm: " in told


SIMULATED = {
    "configure launches": """
    a = np.zeros(64)
    kernel.configure(2, 32)(a)
    kernel.configure((2,), 32, cuda.stream(), 0)(a)
    kernel.call((a,), kernel.configure(2, 32))
    assert (a == 3).all()
    """,
    "a callback comes after the operations of its stream": """
    stream, seen = cuda.stream(), []
    host = cuda.pinned_array(4)
    host[...] = 0
    device = cuda.to_device(np.ones(4), stream)
    device.copy_to_host(host, stream)
    stream.add_callback(lambda *given: seen.append((host.sum(), *given)), "mine")
    assert seen == [(4, stream, 0, "mine")]
    """,
    "a callback that fails warns": """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cuda.stream().add_callback(lambda *given: 1 / 0)
    assert "Exception in stream callback: division by zero" in str(caught[0].message)
    """,
    "a stream can be awaited": """
    async def main():
        stream = cuda.stream()
        assert await stream.async_done() is stream
    asyncio.run(main())
    """,
    "streams by their handles": """
    own = cuda.stream()
    assert cuda.external_stream(own.handle.value).number == own.number
    assert cuda.external_stream(int(own.handle)) is cuda.external_stream(own.handle.value)
    other = cuda.external_stream(0x7F00)
    assert other.number not in (own.number, 0) and other is cuda.external_stream(0x7F00)
    assert cuda.stream().number != other.number
    assert all(cuda.external_stream(handle).number == 0 for handle in (0, 1))
    own_default = cuda.per_thread_default_stream()
    assert own_default.number == 2 and cuda.external_stream(2) is own_default
    for wrong in (-1, "x", None):
        try:
            cuda.external_stream(wrong)
        except (TypeError, ValueError) as error:
            assert str(error).startswith("ptr is ")
        else:
            raise AssertionError(wrong)
    """,
    "a context makes streams and events": """
    context = cuda.current_context()
    stream, event = context.create_stream(), context.create_event()
    event.record(stream)
    event.wait(context.get_default_stream())
    with context.defer_cleanup():
        assert event.query() and not context.can_access_peer(0)
    context.push()
    context.pop()
    """,
    "one device": """
    device = cuda.get_current_device()
    assert cuda.select_device(0).id == device.id == 0 == cuda.gpus[0].id
    assert device.from_identity(device.get_device_identity()).id == 0
    assert cuda.detect() is True and not hasattr(device, "NO_SUCH_FACT")
    try:
        cuda.select_device(1)
    except SimulationError as error:
        assert "convlab simulates one device, number 0: device_id is 1" in str(error)
    else:
        raise AssertionError
    """,
    "elements and axes of device arrays": """
    a = cuda.to_device(np.arange(6.0).reshape(1, 6))
    stream = cuda.stream()
    a.setitem((0, 1), 7, stream)
    assert a.getitem((0, 1), stream) == 7
    flat = a.squeeze()
    assert flat.shape == (6,) and flat.copy_to_host()[1] == 7
    m = cuda.mapped_array(6)
    assert m.bind(cuda.stream()) is m and [len(part) for part in m.split(4)] == [4, 2]
    again = cuda.from_cuda_array_interface(a.__cuda_array_interface__)
    assert again.copy_to_host().tolist() == a.copy_to_host().tolist()
    """,
    "a signature is compiled": """
    kernel.compile("void(float64[:])")
    try:
        wrong.compile("void(float64[:])")
    except Exception as error:
        assert "Numba refuses wrong" in str(error)
    else:
        raise AssertionError
    assert kernel.specialize(np.zeros(1)) is kernel
    """,
}
BEFORE = """
import asyncio, json, sys, traceback, warnings
import numpy as np
from convlab import SimulationError, simulator
from numba import cuda

failed = {}
for name, lines in json.loads(sys.argv[1]).items():
    with simulator():
        @cuda.jit
        def kernel(a):
            a[cuda.grid(1)] = 3
        @cuda.jit
        def wrong(a):
            a[0] = [1]
        try:
            exec(lines, dict(globals()))
        except Exception:
            failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""


@pytest.fixture(scope="module")
def failed(simulated_by: Warmed | None) -> dict[str, str]:
    lines = {name: "if 1:" + text for name, text in SIMULATED.items()}
    out = python(BEFORE, json.dumps(lines), simulated_by=simulated_by)
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("name", SIMULATED)
def test_what_is_simulated(name, failed) -> None:
    assert name not in failed, failed[name]


RECOMPILED = """
import numpy as np
from convlab import simulator
from numba import cuda

N = 4

@cuda.jit
def told(out):
    out[0] = N

with simulator():
    out = np.zeros(1)
    told[1, 1](out)
    N = 9
    told[1, 1](out)
    before = out[0]
    told.recompile()
    told[1, 1](out)
    print(before, out[0])
"""


def test_a_kernel_compiled_anew_sees_its_globals(simulated_by) -> None:
    assert python(RECOMPILED, simulated_by=simulated_by).split() == ["4.0", "9.0"]
