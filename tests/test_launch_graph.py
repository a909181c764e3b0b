"""A plan's launches as one graph, without a GPU: which arrays each call is of, whatever happens."""

from __future__ import annotations

import threading
import time

import pytest
from cuda.bindings import driver
from numba.cuda.core import config

from convlab.engines import address_of

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it has no launch", allow_module_level=True)

from pretended_driver import (
    CAPTURED,
    INVALIDATED,
    OUT_OF_RESOURCES,
    SHAPES,
    STRICT,
    arrays_at,
    device_array,
    s01,
    stage_packed,
)


def test_only_what_takes_another_array_is_updated(fake):
    """s09 packs the weight and then takes all but that."""
    call, _ = stage_packed(fake, "s09")
    updated, plain = [], fake.cuGraphExecKernelNodeSetParams

    def noted(made, node, kernel):
        updated.append(node)
        return plain(made, node, kernel)

    fake.cuGraphExecKernelNodeSetParams = noted
    arrays = arrays_at(0x1000)
    for name, nodes in (("input", [0, 1]), ("output", [1]), ("weight", [0]), ("bias", [1])):
        updated.clear()
        arrays[name] = device_array(SHAPES[name], address_of(arrays[name]) + 0x4000_0000)
        call(*arrays.values())
        assert updated == nodes
        handed = [value for launch in fake.launches[-2:] for value in launch["values"]]
        assert all(address_of(array) in handed for array in arrays.values())
    updated.clear()
    call(*arrays.values())
    assert updated == []


@pytest.mark.parametrize("name", ["s01", "s09", "s11"])
@pytest.mark.parametrize("how", ["Ctrl-C before", "Ctrl-C after", "refused"])
@pytest.mark.parametrize("captured", [False, True])
def test_a_call_that_ends_half_way_harms_no_later_one(name, how, captured, fake):
    """While some kernels take the new arrays and some still the old ones."""
    call, program = stage_packed(fake, name)
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    update = call._graph.update
    for last in range(len(program.launches)):
        fake.capturing = {}
        call(*first.values(), stream=7)
        right = list(fake.launches)
        left = [last]

        def half(place, left=left):
            left[0] -= 1
            if left[0] < 0 and how == "Ctrl-C before":
                raise KeyboardInterrupt
            if left[0] < 0 and how == "refused":
                fake.answers = {"cuGraphExecKernelNodeSetParams": [OUT_OF_RESOURCES]}
            update(place)
            if left[0] < 0:
                raise KeyboardInterrupt

        call._graph.update = half
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            call(*second.values(), stream=7)
        call._graph.update = update
        fake.launches.clear()
        fake.capturing = {7: CAPTURED} if captured else {}
        call(*first.values(), stream=7)
        assert fake.launches == right
        fake.launches.clear()


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphExecKernelNodeSetParams"])
def test_a_launch_that_the_driver_refuses_raises(call, fake):
    fake.answers = {call: [OUT_OF_RESOURCES]}
    refused = "^CUDA could not launch direct: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES$"
    launch, arrays = s01(fake), arrays_at(0x1000)
    with pytest.raises(RuntimeError, match=refused):
        launch(*arrays.values())
    assert len(fake.launches) == (call == "cuGraphLaunch")
    launch(*arrays.values())  # with the arrays' addresses, whether or not they were copied before
    assert address_of(arrays["input"]) in fake.launches[-1]["values"]
    several, _ = stage_packed(fake, "s09")
    fake.answers = {"cuGraphLaunch": [OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch pack_filter, double_buffer: "):
        several(*arrays.values())


def test_a_thread_without_a_context_gets_the_plan_s_and_another_gpu_s_is_refused(fake):
    call, arrays = s01(fake), arrays_at(0x1000)
    for launches in (1, 2):  # in the second call there is nothing to write
        fake.context = 0
        call(*arrays.values())
        assert fake.context == 1
        assert len(fake.launches) == launches
    fake.context = 0
    fake.answers = {"cuCtxSetCurrent": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    with pytest.raises(RuntimeError, match=r"^CUDA could not launch direct: .*DESTROYED$"):
        call(*arrays.values())
    fake.context = 2
    with pytest.raises(RuntimeError, match=r"^the current GPU is another than this plan's: "):
        call(*arrays.values())
    assert len(fake.launches) == 2
    fake.context = 1
    call(*arrays.values())
    assert len(fake.launches) == 3


@pytest.mark.parametrize("stream", [0, 2, 7])
@pytest.mark.parametrize("status", [CAPTURED, INVALIDATED])
def test_a_captured_stream_gets_launches_of_their_own(stream, status, fake):
    """A graph cannot be launched while another is captured, nor may it be updated. What the
    capture's arrays were is none of a later call's, and the other way round."""
    call, program = stage_packed(fake, "s11")
    first, second = arrays_at(0x1000_0000), arrays_at(0x2000_0000)
    expected = {}
    for name, arrays in (("first", first), ("second", second)):
        call(*arrays.values(), stream=stream)
        expected[name] = list(fake.launches)
        fake.launches.clear()
    assert fake.alone == 0
    assert expected["first"] != expected["second"]
    for captured, name in ((True, "first"), (False, "first"), (True, "second"), (False, "first")):
        fake.capturing = {stream: status} if captured else {}
        call(*(first if name == "first" else second).values(), stream=stream)
        assert fake.launches == expected[name]
        fake.launches.clear()
    assert fake.alone == 2 * len(program.launches)
    fake.capturing = {stream: status}
    fake.answers = {"cuLaunchKernel": [fake.done, OUT_OF_RESOURCES]}
    with pytest.raises(RuntimeError, match=f"^CUDA could not launch {program.launches[1].name}: "):
        call(*first.values(), stream=stream)


def test_where_a_stream_cannot_be_asked_the_graph_is_tried(fake):
    """The default one, while another that blocks it is captured."""
    fake.answers = {"cuStreamIsCapturing": [driver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT]}
    s01(fake)(*arrays_at(0x1000).values())
    assert (len(fake.launches), fake.alone) == (1, 0)


@pytest.mark.parametrize("call", ["cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiate"])
def test_where_the_driver_makes_no_graph_launches_go_singly(call, fake):
    fake.answers = {call: [OUT_OF_RESOURCES]}
    launch, arrays = s01(fake), arrays_at(0x1000)
    assert fake.gone == ([] if call == "cuGraphCreate" else ["graph"])
    launch(*arrays.values())
    assert fake.alone == 1
    assert address_of(arrays["input"]) in fake.launches[0]["values"]


@pytest.mark.parametrize("context", [0, 1, 2])
@pytest.mark.parametrize("capturing", [{}, {7: CAPTURED}])
def test_a_graph_goes_with_what_launches_it(context, capturing, fake):
    """In whichever thread: without a context, in another's, while a graph is captured."""
    call = s01(fake)
    call(*arrays_at(0x1000).values())
    assert fake.gone == []
    fake.context, fake.capturing = context, capturing
    del call
    assert sorted(fake.gone) == ["executable", "graph"]
    assert (fake.context, fake.mode) == (context, STRICT)


@pytest.mark.parametrize("another", [False, True])
def test_a_graph_has_gone_with_its_context_and_is_left_where_python_ends(another, fake):
    """Even where another context has taken its place; at Python's end there may be no driver."""
    call = s01(fake)
    assert [finalizer.atexit for finalizer in fake.finalizers] == [False]
    assert fake.finalizers[0].alive
    if another:
        fake.name += 1
    else:
        fake.answers = {"cuCtxGetId": [driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED]}
    del call
    assert fake.gone == []
    assert (fake.context, fake.mode) == (1, STRICT)


def test_threads_do_not_mix_their_arrays(fake):
    """One thread is inside a launch, its addresses written, while another calls."""
    plain, inside = fake.cuGraphLaunch, threading.Event()

    def slow(*arguments):
        inside.set()
        time.sleep(0.1)  # the driver lets other threads run, too
        return plain(*arguments)

    fake.cuGraphLaunch = slow
    call = s01(fake)
    first = threading.Thread(target=call, args=tuple(arrays_at(0x1000_0000).values()))
    first.start()
    assert inside.wait(5)
    call(*arrays_at(0x2000_0000).values())
    first.join()
    highest = [max(launch["values"]) >> 28 for launch in fake.launches]
    assert highest == [1, 2]
