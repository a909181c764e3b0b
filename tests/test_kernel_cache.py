"""Compiled kernels on disk: found again by who may use them, and no harm done by a folder or a file
that is no good. Nothing here needs a GPU."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32
from numba.cuda.core import config
from typer.testing import CliRunner

if config.ENABLE_CUDASIM:
    pytest.skip("Numba runs as its CUDA simulator: it compiles nothing", allow_module_level=True)

from pretended_driver import cubin_of

from convlab.commands.cli import app
from convlab.ladder import BACKWARD, GROUPED, LADDER, production_program, stage_named
from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.running.engines import cubin, kernel_identity, kernels
from convlab.running.engines.cubin import Cubin
from convlab.running.engines.kernel_identity import function_key, kernel_key
from convlab.running.engines.kernels import argument_types, compile_kernel, compile_launch
from convlab.support import cache_folder as folders
from convlab.support import kernel_files

PROBLEM = ConvProblem(3, 8, 9, 7, 16, (3, 2), stride=(2, 1), padding=1)
GPU = (9, 0)
F1 = cuda.types.Array(cuda.types.float32, 1, "C")
F2 = cuda.types.Array(cuda.types.float32, 2, "C")
KEY, OTHER_KEY = "0" * 64, "1" * 64


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, and a process that has compiled nothing yet."""
    monkeypatch.setenv("CONVLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CONVLAB_CACHE_LIMIT")  # which is 0 in other tests
    kernels._compiled.cache_clear()
    return tmp_path / "cache" / "kernels"


def some_cubin(code: bytes = b"machine code") -> Cubin:
    program = stage_named("m01").prepare(PROBLEM, None)
    return cubin_of(program.launches[0], program, code=code)


def as_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process compiled, and refuse to compile anew."""
    kernels._compiled.cache_clear()
    monkeypatch.setattr(kernels, "numba_lto_ir", lambda *_: pytest.fail("it was compiled"))
    monkeypatch.setattr(kernels, "linked", lambda *_, **__: pytest.fail("it was linked"))


# Kernels are found again.


@pytest.mark.gate
@pytest.mark.parametrize("name", ["m01", "m08", "t05"])
def test_the_next_process_runs_neither_numba_s_typing_nor_a_compiler(name, folder, monkeypatch):
    stage = stage_named(name)
    program = production_program(stage, PROBLEM)
    made = [compile_launch(launch, program, GPU) for launch in program.kernels]
    assert len([*folder.iterdir()]) == len({cubin.code for cubin in made})
    as_next_process(monkeypatch)
    again = stage.prepare(PROBLEM, program.tile)
    assert [one.kernel for one in again.kernels] != [one.kernel for one in program.kernels]
    assert [compile_launch(launch, again, GPU) for launch in again.kernels] == made


@pytest.mark.gate
def test_a_plan_for_a_known_problem_compiles_nothing(folder, fake, monkeypatch):
    from test_launching import Recording

    from convlab.running.plans import Plan

    stage = stage_named("m08")
    load = fake.cuLibraryLoadData
    monkeypatch.setattr(  # real machine code, which the pretended driver does not know
        fake, "cuLibraryLoadData", lambda code, *more: load(b"machine code of " + code, *more)
    )
    Plan(PROBLEM, stage, None, Recording())
    loaded = list(fake.loaded)
    as_next_process(monkeypatch)
    fake.loaded.clear()
    monkeypatch.setattr("convlab.running.engines.launching._loaded", {})
    plan = Plan(PROBLEM, stage, None, Recording())
    assert plan.one_graph
    assert fake.loaded == loaded


STARTED = """
import sys
from convlab.problems.problem import ConvProblem
from convlab.ladder import production_program, stage_named
from convlab.running.engines import kernels
problem = ConvProblem(3, 8, 9, 7, 16, (3, 2), stride=(2, 1), padding=1)
program = production_program(stage_named("m11"), problem)
keys = [
    kernels.kernel_key(step.kernel, kernels.argument_types(step, program), (9, 0), "numba-cuda")
    for step in program.kernels
]
print(*keys)
"""


@pytest.mark.slow
def test_a_key_is_the_same_in_every_process():
    """Whatever the order of sets and the addresses of objects are there."""
    program = production_program(stage_named("m11"), PROBLEM)
    here = [
        kernel_key(step.kernel, argument_types(step, program), GPU, "numba-cuda")
        for step in program.kernels
    ]
    for seed in ("1", "2"):
        there = subprocess.run(
            [sys.executable, "-c", STARTED],
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert there.stdout.split() == here


STAGES = [*LADDER, GROUPED, *BACKWARD]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_every_kernel_of_the_ladder_has_a_key_of_its_own(stage):
    problem: Any = stage.adapted(PROBLEM)
    if stage is GROUPED:
        problem = replace(PROBLEM, groups=4)
    if stage in BACKWARD:
        problem = Gradient(PROBLEM, "weight")
    options = dict.fromkeys(stage.options, True)
    keys = {}
    for program in (production_program(stage, problem, **given) for given in ({}, options)):
        for step in program.kernels:
            keys[step.kernel] = kernel_key(
                step.kernel, argument_types(step, program), GPU, "numba-cuda"
            )
        assert None not in keys.values()
        assert len({keys[step.kernel] for step in program.kernels}) == len(program.kernels)


def test_no_two_kernels_have_one_key():
    """A layout transform that stages share has one key everywhere."""
    names: dict[str | None, str] = {}
    for stage in LADDER:
        program = production_program(stage, stage.adapted(PROBLEM))
        for step in program.kernels:
            key = kernel_key(step.kernel, argument_types(step, program), GPU, "numba-cuda")
            assert names.setdefault(key, step.name) == step.name
    assert [*names.values()].count("im2win_transform") == 1
    assert len(names) > 25


# What a key depends on.

LIMIT = 3.0
TABLE = np.arange(4, dtype=np.float32)


class Colour(Enum):
    RED = 1
    BLUE = 2


def kernel_with(
    factor: Any = 2.0,
    helper: Any = None,
    options: dict[str, Any] | None = None,
    helper_options: dict[str, Any] | None = None,
    default: Any = 1.0,
) -> Any:
    """A kernel that closes over a constant and over a device function, which calls another."""

    @cuda.jit(device=True, **helper_options or {})
    def inner(value):
        return value + LIMIT

    @cuda.jit(device=True)
    def outer(value, more=default):
        return inner(value) * factor + TABLE[1] + more

    called = outer if helper is None else helper

    @cuda.jit(**options or {})
    def kernel(output):
        output[0] = called(output[1])

    return kernel


def key_of(kernel: Any, kinds: Any = (F1,), capability: Any = GPU, by: str = "numba-cuda") -> Any:
    return kernel_key(kernel, kinds, capability, by)


def test_the_same_kernel_made_twice_has_the_same_key():
    assert key_of(kernel_with()) == key_of(kernel_with())
    assert key_of(kernel_with()) is not None


@cuda.jit(device=True)
def doubled(value):
    return value + value


@cuda.jit(device=True)
def tripled(value):
    return value + value + value


CHANGES = {
    "a constant": lambda: kernel_with(factor=3.0),
    "the type of a constant": lambda: kernel_with(factor=2),
    "the sign of zero": lambda: kernel_with(factor=-0.0),
    "zero": lambda: kernel_with(factor=0.0),
    "NumPy's number": lambda: kernel_with(factor=np.float32(2.0)),
    "a tuple": lambda: kernel_with(factor=(2.0,)),
    "an array": lambda: kernel_with(factor=np.ones(1)),
    "an enum": lambda: kernel_with(factor=Colour.RED),
    "another of the enum": lambda: kernel_with(factor=Colour.BLUE),
    "a device function": lambda: kernel_with(helper=doubled),
    "another device function": lambda: kernel_with(helper=tripled),
    "options": lambda: kernel_with(options={"launch_bounds": 128}),
    "other options": lambda: kernel_with(options={"launch_bounds": 256}),
    "fastmath": lambda: kernel_with(options={"fastmath": True}),
    "registers": lambda: kernel_with(options={"max_registers": 64}),
    "a device function's options": lambda: kernel_with(helper_options={"forceinline": True}),
    "a default": lambda: kernel_with(default=4.0),
}


def test_every_change_of_what_a_kernel_closes_over_changes_its_key():
    keys = {"nothing": key_of(kernel_with())}
    keys |= {name: key_of(change()) for name, change in CHANGES.items()}
    assert None not in keys.values()
    assert len({*keys.values()}) == len(keys), keys


@pytest.mark.parametrize(("name", "value"), [("LIMIT", 4.0), ("TABLE", np.zeros(4, np.float32))])
def test_a_global_of_a_device_function_changes_the_key(name, value, monkeypatch):
    before = key_of(kernel_with())
    monkeypatch.setitem(globals(), name, value)
    assert key_of(kernel_with()) not in (before, None)


def test_an_attribute_of_a_module_changes_the_key(monkeypatch):
    module = ModuleType("settings")
    module.SIZE, module.unused = 4, object()  # type: ignore[attr-defined]
    monkeypatch.setitem(globals(), "settings", module)

    @cuda.jit
    def kernel(output):
        output[0] = settings.SIZE  # noqa: F821

    before = key_of(kernel)
    monkeypatch.setattr(module, "SIZE", 5)
    assert key_of(kernel) not in (before, None)


def test_functions_that_call_each_other_have_a_key():
    @cuda.jit(device=True)
    def even(n):
        return n == 0 or odd(n - 1)

    @cuda.jit(device=True)
    def odd(n):
        return n != 0 and even(n - 1)

    @cuda.jit
    def kernel(output):
        output[0] = float32(even(3))

    assert key_of(kernel) is not None


def test_a_device_function_has_the_key_of_those_that_compute_the_same():
    def scaling(factor: object, **options: Any) -> Any:
        @cuda.jit(device=True, **options)
        def scaled(value):
            return doubled(value) * factor

        return scaled

    keys = [function_key(scaling(factor)) for factor in (2.0, 2.0, 3.0, 2)]
    assert keys[0] == keys[1] is not None
    assert len({*keys}) == 3
    # An equal function of other lines: debuggers and profilers are told the lines.
    assert function_key(scaling(2.0, lineinfo=True)) is None
    assert function_key(scaling(object())) is None


def test_types_gpu_and_compiler_change_the_key(monkeypatch):
    kernel = kernel_with()
    keys = [key_of(kernel), key_of(kernel, (F2,)), key_of(kernel, (F1, F1))]
    keys += [key_of(kernel, capability=gpu) for gpu in ((8, 0), (8, 9), (10, 0))]
    monkeypatch.setattr(kernel_identity, "toolchain", lambda compiler: ((compiler, "1"),))
    keys += [key_of(kernel, by=name) for name in ("numba-cuda", "mlir")]
    monkeypatch.setattr(kernel_identity, "toolchain", lambda compiler: ((compiler, "2"),))
    keys.append(key_of(kernel))
    monkeypatch.setattr(config, "OPT", 0)
    keys.append(key_of(kernel))
    assert None not in keys
    assert len({*keys}) == len(keys)


PACKAGES = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-bindings")


@pytest.mark.parametrize("changed", [*PACKAGES, "python", "convlab", "library", "environment"])
def test_the_toolchain_names_every_version(changed, monkeypatch):
    before = kernel_identity.toolchain.__wrapped__("numba-cuda")
    if changed in PACKAGES:
        usual = kernel_identity.version
        monkeypatch.setattr(
            kernel_identity, "version", lambda name: "0" if name == changed else usual(name)
        )
    elif changed == "python":
        monkeypatch.setattr(kernel_identity.platform, "python_version", lambda: "3.0.0")
    elif changed == "convlab":
        monkeypatch.setattr(kernel_identity, "fingerprint", lambda *_, **__: "changed")
    elif changed == "library":
        monkeypatch.setattr(kernel_identity, "_size_of", lambda file: "1 byte")
    else:
        monkeypatch.setenv("NUMBA_OPT", "1")
    after = kernel_identity.toolchain.__wrapped__("numba-cuda")
    assert after != before
    names = [*PACKAGES, "python", "convlab", "library", "compiler"]
    assert {name for name, _ in before} >= {*names}


def test_convlab_s_part_of_the_toolchain_is_its_device_code():
    files = {
        file.relative_to(kernel_identity.SOURCE).as_posix()
        for pattern in kernel_identity.OWN_CODE
        for file in kernel_identity.SOURCE.glob(pattern)
    }
    assert files >= {"device/intrinsics.py", "device/ptx.py"}
    assert {file for file in files if not file.startswith("device/")} == {
        "running/engines/compilation.py",
        "running/engines/cubin.py",
        "running/engines/device_functions.py",
        "running/engines/kernels.py",
        "support/numba_shortcuts.py",
    }


def unknown_values() -> dict[str, Any]:
    def plain(value):
        return value

    @cuda.jit(device=True, link=["somewhere.o"])
    def linked(value):
        return value

    return {
        "an object": object(),
        "a function that Numba does not compile": plain,
        "a function with a linked file": linked,
        "an array of objects": np.array([object()]),
    }


@pytest.mark.parametrize("name", unknown_values())
def test_a_kernel_with_a_value_of_an_unknown_kind_is_not_kept(name):
    assert key_of(kernel_with(factor=unknown_values()[name])) is None


def test_a_kernel_with_an_unset_variable_has_no_key():
    def kernel(output):
        output[0] = later

    made = cuda.jit(kernel)
    assert key_of(made) is None
    later = 1.0
    assert key_of(made) is not None


@pytest.mark.gate
def test_a_kernel_without_a_key_is_compiled_each_time(folder, monkeypatch):
    monkeypatch.setattr(kernels, "kernel_key", lambda *_: None)
    made = compile_kernel(doubles, (F1,), GPU)
    kernels._compiled.cache_clear()
    assert compile_kernel(doubles, (F1,), GPU).registers == made.registers
    assert not folder.exists()


@pytest.mark.gate
def test_code_with_line_numbers_is_not_kept(folder):
    compile_kernel(doubles, (F1,), GPU, lineinfo=True)
    assert not folder.exists()
    compile_kernel(doubles, (F1,), GPU)
    assert len([*folder.iterdir()]) == 1


@cuda.jit
def doubles(output):
    output[0] = doubled(output[1])


# Files.


def test_what_is_stored_is_found(folder):
    assert cubin.stored(KEY) is None
    cubin.store(KEY, some_cubin())
    assert cubin.stored(KEY) == some_cubin()
    assert cubin.stored(OTHER_KEY) is None
    assert [path.name for path in folder.iterdir()] == [f"{KEY}.kernel"]


def changed_at(place: int) -> Any:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[place] ^= 1
        return bytes(changed)

    return change


def with_header(content: bytes, **facts: Any) -> bytes:
    """A whole file of another header, with the right hash."""
    import msgspec

    _, header, code = content.split(b"\n", 2)
    changed = msgspec.json.encode(msgspec.json.decode(header) | facts)
    rest = changed + b"\n" + code
    digest = kernel_files.sha256(rest).hexdigest().encode()
    return kernel_files.FORMAT + b" " + digest + b"\n" + rest


NO_GOOD: dict[str, tuple[Any, str]] = {
    "empty": (lambda content: b"", "this version of convlab did not write it"),
    "another version": (
        lambda content: content.replace(b"kernel 1", b"kernel 2", 1),
        "this version of convlab did not write it",
    ),
    "somebody's": (lambda content: b"\x80\x04\x95", "this version of convlab did not write it"),
    "half": (lambda content: content[: len(content) // 2], "it is damaged"),
    "longer": (lambda content: content + b"0", "it is damaged"),
    "a bit of the code": (changed_at(-1), "it is damaged"),
    "a bit of the header": (changed_at(120), "it is damaged"),
    "another kernel": (lambda content: with_header(content, key=OTHER_KEY), "holds another kernel"),
    "a wrong fact": (lambda content: with_header(content, registers="many"), "its header is not"),
    "a wrong layout": (lambda content: with_header(content, layout="C"), "its header is not"),
    "one fact more": (lambda content: with_header(content, more=1), "its header is not"),
}


@pytest.mark.parametrize("name", NO_GOOD)
def test_a_file_that_is_no_good_is_passed_over_with_a_line(name, folder, capsys):
    change, said = NO_GOOD[name]
    cubin.store(KEY, some_cubin())
    file = folder / f"{KEY}.kernel"
    file.write_bytes(change(file.read_bytes()))
    assert cubin.stored(KEY) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"convlab: {file} is passed over, and the kernel compiled: ")
    assert said in line
    cubin.store(KEY, some_cubin())  # written anew
    assert cubin.stored(KEY) == some_cubin()
    assert capsys.readouterr().err == ""


@pytest.mark.gate
def test_a_damaged_file_is_compiled_anew(folder, capsys, monkeypatch):
    made = compile_kernel(doubles, (F1,), GPU)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    kernels._compiled.cache_clear()
    assert compile_kernel(doubles, (F1,), GPU).registers == made.registers
    assert "it is damaged" in capsys.readouterr().err
    as_next_process(monkeypatch)
    assert compile_kernel(doubles, (F1,), GPU).registers == made.registers
    assert capsys.readouterr().err == ""


def test_a_folder_in_a_file_s_place_is_passed_over(folder, capsys):
    (folder / f"{KEY}.kernel").mkdir(parents=True)
    assert cubin.stored(KEY) is None
    assert "it is a folder" in capsys.readouterr().err
    cubin.store(KEY, some_cubin())
    assert kernel_files.clear().kernels == 0


# Folders that take nothing.


def test_a_full_disk_means_no_cache_and_no_failure(folder, monkeypatch, capsys):
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kernel_files, "write_whole", full)
    cubin.store(KEY, some_cubin())
    assert cubin.stored(KEY) is None
    assert capsys.readouterr().err == ""


def test_a_disk_that_fills_up_leaves_nothing_half_written(folder, monkeypatch):
    """The device /dev/full takes no byte; here the flush to the disk finds no room."""

    def no_room(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("convlab.support.whole_files.os.fsync", no_room)
    cubin.store(KEY, some_cubin())
    assert [*folder.iterdir()] == []


def test_a_read_only_home_means_no_cache_and_no_failure(folder, tmp_path, monkeypatch, capsys):
    if os.geteuid() == 0:  # root writes anywhere: a file stands in the folder's place
        (tmp_path / "cache").write_text("")
    else:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    cubin.store(KEY, some_cubin())
    assert cubin.stored(KEY) is None
    used = kernel_files.usage()
    assert used.why_not is not None
    assert used.why_not.endswith("cannot be written to")
    assert capsys.readouterr().err == ""
    tmp_path.chmod(stat.S_IRWXU)


def test_a_cache_that_may_only_be_read_is_read(folder, monkeypatch):
    cubin.store(KEY, some_cubin())

    def read_only(*_: Any) -> None:
        raise PermissionError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(kernel_files.os, "utime", read_only)
    assert cubin.stored(KEY) == some_cubin()


@pytest.fixture
def homeless(monkeypatch):
    """A user without a home folder, as in some containers."""
    for name in ("CONVLAB_CACHE", "XDG_CACHE_HOME", "HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)


def test_no_home_folder_means_no_cache_and_no_failure(homeless, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cubin.store(KEY, some_cubin())
    assert cubin.stored(KEY) is None
    used = kernel_files.usage()
    assert used.folder is None
    assert used.why_not is not None
    assert used.why_not.startswith("no home folder was found: set CONVLAB_CACHE to a folder")
    assert kernel_files.clear() == used
    assert [*tmp_path.iterdir()] == []
    assert capsys.readouterr().err == ""
    with pytest.raises(RuntimeError, match=r"^no home folder was found: set CONVLAB_CACHE"):
        folders.cache_folder()


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_folder_is_the_system_s_or_the_one_that_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert folders.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("CONVLAB_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folders.cache_folder() == tmp_path / "home/.cache/convlab"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert folders.cache_folder() == tmp_path / "xdg/convlab"


# The limit.


def keys() -> Any:
    return (f"{number:064x}" for number in count())


def test_the_kernels_that_were_used_longest_ago_are_removed_first(folder, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "1")
    large = some_cubin(bytes(200_000))  # five of them fit
    names = [name for name, _ in zip(keys(), range(6), strict=False)]
    for age, name in enumerate(names[:5]):
        cubin.store(name, large)
        os.utime(folder / f"{name}.kernel", (1e9 + age, 1e9 + age))
    (folder / "somebody's.txt").write_text("stays")
    assert cubin.stored(names[0]) == large  # which is a use
    cubin.store(names[5], large)
    left = {name for name in names if (folder / f"{name}.kernel").exists()}
    assert left == {names[0], names[3], names[4], names[5]}
    assert kernel_files.usage().bytes <= 2**20
    assert (folder / "somebody's.txt").exists()


@pytest.mark.parametrize("kernels_stored", [1, 6], ids=["below the limit", "above the limit"])
def test_what_a_killed_process_left_is_removed_once_it_is_old(kernels_stored, folder, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "1")
    folder.mkdir(parents=True)
    old, new = folder / ".convlab-old", folder / ".convlab-new"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    for name, _ in zip(keys(), range(kernels_stored), strict=False):
        cubin.store(name, some_cubin(bytes(200_000)))
    assert not old.exists()
    assert new.exists()


def test_a_limit_of_zero_keeps_nothing_and_a_kernel_above_the_limit_is_not_kept(
    folder, monkeypatch
):
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "1")
    cubin.store(KEY, some_cubin(bytes(2**20)))
    assert not folder.exists()
    cubin.store(KEY, some_cubin())
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "0")
    assert cubin.stored(KEY) is None
    cubin.store(OTHER_KEY, some_cubin())
    assert len([*folder.iterdir()]) == 1
    assert kernel_files.usage().why_not == "CONVLAB_CACHE_LIMIT is 0"


@pytest.mark.parametrize("given", ["-1", "1.5", "many", "1e3", "\N{SUPERSCRIPT TWO}", "9" * 40])
def test_a_limit_that_is_no_number_is_refused_in_a_sentence(given, monkeypatch):
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", given)
    with pytest.raises(ValueError, match=r"^CONVLAB_CACHE_LIMIT is .*: it must be a number of MiB"):
        cubin.stored(KEY)
    used = kernel_files.usage()  # which convlab doctor shows
    assert used.why_not is not None
    assert used.why_not.startswith("CONVLAB_CACHE_LIMIT is ")


@pytest.mark.parametrize("has_key", [True, False])
def test_a_limit_that_is_no_number_is_refused_before_anything_is_compiled(has_key, monkeypatch):
    as_next_process(monkeypatch)
    monkeypatch.setattr(kernels, "kernel_key", lambda *_: KEY if has_key else None)
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "many")
    with pytest.raises(ValueError, match=r"^CONVLAB_CACHE_LIMIT is 'many': it must be a number of"):
        compile_kernel(doubles, (F1,), GPU)


# Many at once.


WRITER = """
import sys
from convlab.running.engines.cubin import Cubin, store, stored
number = int(sys.argv[1])
cubin = Cubin((9, 0), "k", "numba", 8, 1, 0, 0, 0, bytes([number]) * 100_000)
for again in range(40):
    for name in range(12):
        key = f"{name:064x}"
        store(key, cubin)
        found = stored(key)
        assert found is None or len(set(found.code)) == 1, "a mixture of two files"
"""


@pytest.mark.slow
def test_many_processes_at_once_neither_mix_files_nor_fail(folder, monkeypatch):
    """While files are removed, too: twelve kernels do not fit."""
    monkeypatch.setenv("CONVLAB_CACHE_LIMIT", "1")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number)], stderr=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    for process in running:
        _, said = process.communicate(timeout=240)
        assert (process.returncode, said) == (0, "")
    assert kernel_files.usage().bytes <= 2**20
    assert not [path for path in folder.iterdir() if not kernel_files.NAME.fullmatch(path.name)]


def test_threads_of_a_process_share_it(folder):
    def store_and_find(name: str) -> bool:
        cubin.store(name, some_cubin())
        return cubin.stored(name) == some_cubin()

    names = [name for name, _ in zip(keys(), range(40), strict=False)]
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(store_and_find, names))


# The command.


def test_the_doctor_says_where_and_how_much_and_one_option_empties_it(folder):
    cubin.store(KEY, some_cubin(bytes(2**20)))
    (folder / "somebody's.txt").write_text("stays")
    found = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "300"})
    assert found.exit_code == 0
    assert f"1 kernel, 1.0 MiB of 512.0 MiB, in {folder}" in found.stdout
    cleared = CliRunner().invoke(app, ["doctor", "--clear-cache"], env={"COLUMNS": "300"})
    assert cleared.exit_code == 0
    assert f"Removed 1 compiled kernel (1.0 MiB) from {folder}." in cleared.stdout
    assert "0 kernels, 0.0 MiB of 512.0 MiB" in cleared.stdout
    assert [path.name for path in folder.iterdir()] == ["somebody's.txt"]
    assert cubin.stored(KEY) is None


def test_clearing_a_cache_that_is_not_there_is_fine(folder):
    cleared = CliRunner().invoke(app, ["doctor", "--clear-cache"], env={"COLUMNS": "300"})
    assert cleared.exit_code == 0
    assert "Removed 0 compiled kernels (0.0 MiB)" in cleared.stdout
    assert not folder.exists()
