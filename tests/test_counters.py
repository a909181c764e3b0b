"""The comparison with ncu: what it reads, when it says that counts differ, what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from subprocess import CalledProcessError
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from convlab.bench import counters, textbook, tools
from convlab.bench.counters import METRICS, Row

pytestmark = pytest.mark.same_in_cudasim

NONE = dict.fromkeys(METRICS, 0)


def row(counted: dict[str, int], traced: dict[str, int]) -> Row:
    return Row("s01", "direct", None, None, NONE | counted, NONE | traced)


def test_global_counts_must_be_equal_and_wavefronts_nearly():
    assert row({}, {}).off() == []
    assert row({"load_sectors": 1000}, {"load_sectors": 999}).off() == ["load_sectors"]
    assert row({"shared_load_wavefronts": 106}, {"shared_load_wavefronts": 100}).off() == []
    assert row({"shared_load_wavefronts": 107}, {"shared_load_wavefronts": 100}).off()
    assert row({"shared_load_wavefronts": 100}, {"shared_load_wavefronts": 107}).off()
    assert row({}, {"store_requests": 1}).off() == ["store_requests"]


PAGE_METRICS = [metric for group, _ in METRICS.values() for metric in group]
PAGE = "\n".join(
    [
        "==PROF== Connected",
        ",".join(f'"{name}"' for name in ["ID", "Kernel Name", *PAGE_METRICS]),
        ",".join('""' for _ in range(len(PAGE_METRICS) + 2)),
        '"0","direct_v1",' + ",".join(f'"{1000 * n:,}"' for n in range(len(PAGE_METRICS))),
    ]
)


def test_ncu_watches_the_launches_that_are_traced_and_its_page_is_read(monkeypatch):
    """A stand-in for the program: it is given the module and its options, and writes the page."""

    def run(command, check):
        assert command[-4:] == ["-m", counters.MODULE, "run", "s02"]
        Path(command[command.index("--log-file") + 1]).write_text(PAGE)

    monkeypatch.setattr("subprocess.run", run)
    ((kernel, counts),) = counters.counted_by_ncu(["s02"])
    assert kernel == "direct_v1"
    assert counts == {
        "load_requests": 0, "load_sectors": 1000, "store_requests": 2000, "store_sectors": 3000,
        "atomic_requests": 4000 + 5000, "shared_load_wavefronts": 6000,
        "shared_store_wavefronts": 7000,
    }  # fmt: skip


def test_a_part_can_be_chosen_by_name():
    everything = counters.cases()
    assert {*textbook.CASES} <= {case.kernel for case in everything}
    chosen = [case.kernel.name for case in counters.cases(["s02_c", "transpose"])]
    stages = [name for name in chosen if not name.startswith("transpose")]
    assert sorted(stages) == sorted(3 * ["s02_cin_naive", "s02_cin", "s02_cout"])
    assert len(chosen) == 3 * 3 + 3
    with pytest.raises(ValueError, match="only is 's99': it must begin one of copy, "):
        counters.cases(["s99"])


ONE = SimpleNamespace(name="one", capability=lambda: (7, 5), device="Some GPU")
DIRECT = ("direct_v1", NONE | {"load_requests": 3})


def traces(*kernels: str):
    """In place of what the simulator says, of launches that ask for nothing."""
    nothing = {"of": lambda **_: [], "total": lambda *_: 0}
    return lambda *_: (
        (name, None, None, SimpleNamespace(kernel=name, **nothing)) for name in kernels
    )


@pytest.mark.parametrize(
    ("traced", "says"),
    [
        ((), "ncu saw 1 launches, the simulator 0"),
        (("direct", "clear"), "ncu saw nothing more where the simulator ran clear"),
        (("clear",), "ncu saw direct_v1 where the simulator ran clear"),
    ],
)
def test_launches_that_do_not_match_are_refused(traced, says, monkeypatch):
    monkeypatch.setattr(counters, "trace_all", traces(*traced))
    with pytest.raises(RuntimeError, match=says):
        list(counters.compared([DIRECT], [], (9, 0)))


def test_stages_that_the_gpu_is_too_old_for_are_left_out():
    wanted = counters.cases(["s11_", "s12_", "s13_", "s14", "copy"])
    chosen, reason = counters.runnable(wanted, ONE)
    names = [case.kernel.name for case in chosen]
    assert names == [case.kernel.name for case in wanted if case.problem is None] + 3 * [
        "s11_im2win_full"
    ]
    assert all(name in reason for name in ("s12_fused_im2win", "s13_tensor_cores", "s14_warp"))
    assert counters.runnable(counters.cases(["s01"]), ONE)[1] is None


@pytest.fixture
def on_a_gpu(monkeypatch):
    monkeypatch.setattr(tools, "choose", lambda name: ONE)
    monkeypatch.setattr(tools, "environment", lambda packages: {"gpu": ONE.device})
    monkeypatch.setattr(tools.shutil, "which", lambda name: name)
    monkeypatch.setattr(counters, "counted_by_ncu", lambda only: [DIRECT])
    monkeypatch.setattr(counters, "trace_all", traces("direct"))


def test_the_command_tells_of_each_launch_and_writes_all(on_a_gpu, tmp_path, capsys):
    file = tmp_path / "counters.json"
    assert counters.main(["--only", "s01", "--only", "s12_", "--json", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == "direct: direct: {'load_requests': (3, 0)}\n0 of 1 launches agree\n"
    assert "left out: stage s12_fused_im2win needs" in said.err
    written = json.loads(file.read_text())
    assert f"counters --only s01 --only s12_ --json {file}" in written["environment"]["command"]
    assert [Row(**entry).counted for entry in written["rows"]] == [DIRECT[1]]


@pytest.mark.parametrize(
    ("only", "error", "says"),
    [
        ("s01", RuntimeError("ncu counted nothing"), "convlab: ncu counted nothing"),
        ("s01", CalledProcessError(3, ["ncu"]), "convlab: Command .* exit status 3"),
        ("s13_", AssertionError("nothing is to count"), "convlab: stage s13_tensor_cores needs"),
        ("s99", AssertionError("nothing is to count"), "convlab: only is 's99'"),
    ],
)
def test_what_cannot_be_counted_writes_nothing(
    only, error, says, on_a_gpu, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(counters, "counted_by_ncu", Mock(side_effect=error))
    file = tmp_path / "counters.json"
    assert counters.main(["--only", only, "--json", str(file)]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert not file.exists()


def test_ncu_that_may_not_count_is_no_count_of_nothing():
    with pytest.raises(RuntimeError, match="ncu counted nothing: ==ERROR== ERR_NVGPUCTRPERM"):
        counters.parsed("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission\n")
