"""The command: what it prints, writes and exits with."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import typer
from kernels.wrong import WRONG
from numba.cuda.core import config
from rich.console import Console
from typer.testing import CliRunner

import convlab
import convlab.ladder
from convlab.commands import cli
from convlab.commands.ladder_table import ladder_table
from convlab.commands.lint_tables import lint_table
from convlab.ladder import BACKWARD, LADDER, Program, Stage, stage_named
from convlab.measuring import ladder_run as ladder
from convlab.measuring import machine as doctor
from convlab.measuring import machine_code as gate
from convlab.measuring.machine_code import PROBLEMS, KernelRow
from convlab.problems import workloads
from convlab.problems.oracle import CheckResult
from convlab.running.engines import ENGINE_NAMES, choose
from convlab.running.engines.kernels import CompilerMissing
from convlab.support import installing
from convlab.support.progress import duration

NAMES = [stage.name for stage in LADDER]
# The stages of the default problem, in float32.
OF_FLOATS = [stage for stage in LADDER if stage.why_not(workloads.TEACHING) is None]
SIMULATED = ("ladder", "--engine", "cudasim")
SAME = pytest.mark.same_in_cudasim
MAIN = "from convlab.commands.cli import main; main()"


def convlab_(*arguments: str | Path, **environment: str) -> Any:
    runner = CliRunner(env=environment)
    return runner.invoke(cli.app, list(map(str, arguments)), prog_name="convlab")


@contextmanager
def numba_left_alone() -> Iterator[None]:
    """Undo in the end what ``convlab run`` tells Numba, whose process is then the program's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_ENABLE_CUDASIM", os.environ.get("NUMBA_ENABLE_CUDASIM", "0"))
        patch.setattr(config, "ENABLE_CUDASIM", config.ENABLE_CUDASIM)
        yield


def refused(*arguments: str | Path) -> str:
    """Return the command's refusal: one line on standard error, nothing on standard output,
    exit status 2."""
    result = convlab_(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("convlab: ")
    return line


def strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


def printed(table: Any) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.fixture
def few(monkeypatch):
    """A function that leaves these stages in the ladder; ``prepare`` is what m02 then computes."""

    def put(*names, prepare=None):
        stages = map(stage_named, names)
        changed = {"prepare": prepare} if prepare else {}
        stages = [replace(s, **changed) if s.name.startswith("m02") else s for s in stages]
        monkeypatch.setattr(convlab.ladder, "LADDER", tuple(stages))
        small = dict.fromkeys(ENGINE_NAMES, workloads.TEACHING)  # seconds
        monkeypatch.setattr(workloads, "DEFAULTS", small)

    return put


def writes_nothing(problem, tile=None):
    return Program(buffers=(), launches=())


def raises(problem, tile=None):
    raise RuntimeError("no such luck")


@SAME
def test_help_does_not_wait_for_numba():
    code = "import sys, convlab.commands.cli; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("ladder", "--help"), ()])
def test_help(arguments):
    result = convlab_(*arguments)
    assert result.exit_code == (0 if arguments else 2)
    for word in ("Usage: ", "convlab", "ladder", *(() if arguments[1:] else ("doctor", "lint"))):
        assert word in result.output


@pytest.mark.parametrize("verb", ["", *typer.main.get_command(cli.app).commands])
def test_the_verb_help_says_what_the_option_says(verb):
    asked = convlab_("help", *verb.split())
    assert asked.exit_code == 0
    assert asked.stdout == convlab_(*verb.split(), "--help").stdout


def test_version():
    result = convlab_("--version")
    assert (result.exit_code, result.stdout) == (0, f"convlab {convlab.__version__}\n")


@SAME
@pytest.mark.parametrize(
    ("words", "position", "completed"),
    [
        ("convlab ", 1, {"doctor", "help", "ladder", "run"}),
        ("convlab la", 1, {"ladder"}),
        ("convlab ladder --ba", 2, {"--batch"}),
        ("convlab tune --", 2, {"--layer", "--forget", "--all"}),
    ],
)
def test_shells_complete_verbs_and_options(words, position, completed):
    asked = {"_CONVLAB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    told = subprocess.run(
        [sys.executable, "-c", MAIN], env=os.environ | asked, capture_output=True, text=True
    )
    assert completed <= {*told.stdout.split()}, told.stderr
    for word in ("--install-completion", "--show-completion"):
        assert word in convlab_("--help").stdout


def test_stages():
    result = convlab_("stages", "--json", "-")
    assert result.exit_code == 0
    listed = strict_json(result.stdout)
    names = [*NAMES, *(stage.name for stage in BACKWARD)]
    assert [stage["name"] for stage in listed] == names
    assert all(name in result.stderr for name in names)
    assert listed[0]["builds_on"] == []
    assert listed[0]["module"] == "convlab.ladder.main.m01_direct"


def test_stages_run_in_the_ladder_s_order_and_once_and_the_json_is_told_what_was_typed(monkeypatch):
    def as_json(problem: Any, engine: Any, results: Any, arguments: Any) -> Any:
        return [result.stage.name for result in results], arguments

    monkeypatch.setattr(ladder, "as_json", as_json)
    stages = [word for name in ("grouped", "m02", "m01", "m02") for word in ("--stage", name)]
    names, typed = strict_json(convlab_(*SIMULATED, "--json", "-", *stages).stdout)
    assert names == ["m01_direct", "m02_implicit_gemm", "grouped"]
    assert typed == [*SIMULATED, "--json", "-", *stages]


def test_what_people_see_fits_80_columns_and_is_plain_when_piped():
    result = convlab_(*SIMULATED, "--stage", "m01", "--stage", "m03_shared_memory")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert "\x1b" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    shapes = str(workloads.TEACHING)
    for words in (shapes, "global", "barriers", "A simulator's time says nothing"):
        assert words in result.stdout
    last = "All 2 stages are right on this problem; `make test` tries many others."
    assert result.stdout.splitlines()[-1] == last
    assert "m02" not in result.stdout


@SAME
def test_tables_fit_80_columns():
    longest = replace(LADDER[0], module="convlab.ladder.im2col.i02_im2col_per_image")
    timing = SimpleNamespace(median_ms=123.456, spread_percent=12.3)
    right = CheckResult(True, 0.0123, wrong=0, total=1)
    results = [ladder.StageResult(longest, 10**10, 2**30, check=right, timing=timing)]
    table = printed(ladder_table(results, SimpleNamespace(is_gpu=True)))
    linted = printed(lint_table([built(longest, "im2col_by_runs", "awkward", "sm_120")]))
    for words in ("i02_im2col_per_image", "0.0123", "123.456 ±12.3%", "0.08", "1,024.0"):
        assert words in table
    for words in ("i02 ", "im2col_by_runs", "awkward", "sm_120", "126/128", "OK"):
        assert words in linted
    assert "\u2026" not in table + linted
    assert len(linted.splitlines()) == 3  # nothing is folded


def test_batch_and_seed():
    def run(*arguments: str) -> Any:
        return strict_json(convlab_(*SIMULATED, "--stage", "m01", "--json", "-", *arguments).stdout)

    once = run("--batch", "3")
    assert once == run("--batch", "3")
    assert once["problem"]["input_shape"] == [3, *workloads.TEACHING.input_shape[1:]]
    other = run("--batch", "3", "--seed", "1")
    assert once["stages"][0]["error_over_bound"] != other["stages"][0]["error_over_bound"]


@pytest.mark.parametrize(
    ("prepare", "status", "said", "wrong"),
    [
        (writes_nothing, "WRONG", "first at [0, 0, 0, 0]: got nan", {"got": "nan"}),
        (raises, "FAILED", "raised RuntimeError: no such luck", None),
    ],
)
def test_a_broken_stage_is_named(few, prepare, status, said, wrong):
    few("m01", "m02", "m03", prepare=prepare)
    result = convlab_(*SIMULATED, "--json", "-")
    assert result.exit_code == 1
    (line,) = (line for line in result.stderr.splitlines() if said in line)
    assert line.startswith(f"m02_implicit_gemm: {status}: ")
    before, bad, after = strict_json(result.stdout)["stages"]
    assert (before["ok"], bad["ok"], after["ok"]) == (True, False, True)
    assert bad["error"] in line
    assert bad["first_wrong"] is wrong or bad["first_wrong"].items() >= wrong.items()
    assert "right on" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said", "unsaid"),
    [
        (("--layer", "conv9"), ("days", "--yes", "GPU"), "--batch 1"),  # one image takes hours
        (("--batch", "500"), ("minutes: use --batch 1 (about ", " seconds), the default"), "days"),
    ],
)
def test_too_much_for_a_simulator_is_refused_with_what_to_do(arguments, said, unsaid):
    line = refused(*SIMULATED, *arguments)
    assert all(words in line for words in said)
    assert unsaid not in line
    engine = choose("cudasim")
    seconds = ladder.estimated_seconds(workloads.TEACHING, OF_FLOATS, engine)
    seconds /= ladder.processes_for(engine)
    assert f"the default problem (about {duration(seconds)})" in line


def test_yes_waits(monkeypatch):
    monkeypatch.setattr(ladder, "MOST_SECONDS_UNASKED", 0)
    assert convlab_(*SIMULATED, "--stage", "m01").exit_code == 2
    assert convlab_(*SIMULATED, "--stage", "m01", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("ladder --layer conv13", "layer is 'conv13': it must be one of conv1, "),
        ("ladder --batch 0", "batch is 0: it must be at least 1"),
        (
            "ladder --engine cuda",
            "engine is 'cuda': it must be 'auto', 'gpu', 'simulator' or 'cudasim'",
        ),
        ("ladder --stage s99", "stage is 's99': it must be one of m01_direct, "),
        ("ladder --stage s11c", "stage is 's11c': s11c is m12_async_copies now"),
        (
            "lint g01",
            "stage is 'g01': it must compute a convolution, but g01_direct_gradients computes "
            "gradients",
        ),
        ("ladder --json absent/ladder.json", "there is no folder 'absent'"),
        ("ladder --json .", "'.', which is a folder"),
        ("stages --json absent/stages.json", "there is no folder 'absent'"),
        ("doctor --json absent/doctor.json", "there is no folder 'absent'"),
        ("ladder --image notes.txt", "image 'notes.txt' cannot be read: "),
        ("ladder --image --output absent/l.png", "there is no folder 'absent'"),
        ("ladder --image --layer conv1", "leave out --layer and --batch"),
        ("ladder --image --batch 2", "leave out --layer and --batch"),
        ("ladder --output l.png", "give --image too"),
        ("ladder --image notes.txt --output notes.txt", "--output is 'notes.txt', the picture"),
        ("ladder --image --output l --json l", "--json is 'l', the file of --output"),
        ("trace s99", "stage is 's99': it must be one of m01_direct, "),
        ("trace m03 --layer conv13", "layer is 'conv13'"),
        ("trace m03 --layer conv9", "hours: use the default problem (about 1 second), or add"),
        ("trace m03 --batch 500", "minutes: use --batch 1 (about 1 second), the"),
        ("trace m03 --tile 8x8", "tile is '8x8': it must be M_BxN_BxK_B or"),
        ("trace m03 --tile 7x32x8/2x1", "M_B must be a multiple of M_T"),
        ("trace m03 --tile 64x64x999", "a block has at most 1024"),
        ("trace m01 --tile 8x32x8", "stage m01_direct has no tiles: leave out --tile"),
        ("trace m03 --block 32", "--block is 32: m03_shared_memory has blocks 0 to 31"),
        ("trace m03 --html absent/p.html", "there is no folder 'absent'"),
        ("trace m03 --html p --json p", "--json is 'p', the file of --html"),
        ("trace absent.json", "trace 'absent.json' cannot be read: No such file"),
        ("trace notes.txt", "'notes.txt' holds no trace"),
        ("trace notes.txt --block 1", "leave out --layer, --batch, --dtype, --tile"),
        ("trace notes.txt --compiled sm_90", "--block and --compiled"),
        ("trace m03 --compiled 90", "compiled is '90': it must be sm_ and digits"),
        ("trace notes.txt --html notes.txt", "the trace itself: give another file"),
        (f"ladder --json {'x' * 300}", "which cannot be written (File name too long)"),
        ("stages --json loop", "which cannot be written ("),
        ("stages --json dangling", "there is no folder"),
        (f"stages --json {'x' * 256}", "which cannot be written (File name too long)"),
        # What Typer refuses.
        ("ladder --batch two", "'--batch': it is 'two' and must be an integer ("),
        ("ladder --batch=many", "'--batch': it is 'many' and must be an integer ("),
        ("ladder --batch=", "'--batch': it is '' and must be an integer ("),
        ("bench --seconds soon", "'--seconds': it is 'soon' and must be a number of at least 1 ("),
        ("bench --seconds 0.5", "'--seconds': it is '0.5' and must be a number of at least 1 ("),
        ("trace m03 --block 1.5", "'--block': it is '1.5' and must be an integer of at least 0 ("),
        ("check nosuch.py --as m03", "there is no file 'nosuch.py': name one"),
        ("check notes.txt::f --as m03", "'notes.txt' is not a Python file: name one"),
        ("report", "'bench.json' cannot be read: No such file or directory; convlab bench, on a"),
        ("report a.json", "convlab bench --json a.json, on a GPU, makes it"),
        ("trace a.json", "; convlab trace STAGE --json a.json makes it"),
        ("lint --against a.json", "; convlab lint --json a.json makes it"),
        ("help waltz", "No such command 'waltz'"),
        ("help ladder bench", "unexpected extra argument"),
        ("ladder --layer", "'--layer' requires an argument"),
        ("ladder --seed -1", "'--seed'"),
        ("ladder --no-such", "--no-such (convlab ladder --help says more)"),
        ("lint m01 m02", "m02"),
        ("lint s99", "stage is 's99': it must be one of m01_direct, "),
        ("lint --layer conv13", "layer is 'conv13': it must be one of conv1, "),
        ("lint --arch sm90", "arch is 'sm90': it must be sm_ and digits, such as sm_90"),
        ("lint --json absent/lint.json", "there is no folder 'absent'"),
        ("waltz", "No such command 'waltz' (convlab --help says more)"),
        ("--dance", "--dance"),
    ],
)
def test_bad_arguments_get_one_line_and_exit_2(arguments, said, tmp_path, monkeypatch, compiler):
    asked = compiler() if arguments.startswith("lint") else []
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("no picture")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("absent/file")
    assert said in refused(*arguments.split())
    assert asked == []
    assert sorted(os.listdir()) == ["dangling", "loop", "notes.txt"]


@SAME
def test_trace_prints_saves_and_opens_again(few, tmp_path):
    few("m03")
    saved, html, again = (tmp_path / name for name in ("m03.json", "m03.html", "again.html"))
    options = ("--tile", "4x16x4", "--block", "3")
    result = convlab_("trace", "m03", *options, "--json", saved, "--html", html)
    assert result.exit_code == 0, result.output
    assert "shared_memory: 2 x 2 blocks of 64 threads" in result.stdout
    assert f"The page is in {html}" in result.stdout.replace("\n", "")
    document = strict_json(saved.read_text())
    assert document["about"]["tile"] == "4x16x4/1x1"
    assert document["launches"][0]["block_shown"] == [1, 1, 0]
    opened = convlab_("trace", saved, "--html", again)
    assert opened.exit_code == 0, opened.output
    assert again.read_text() == html.read_text()
    tables_only = result.stdout.split("The page is in")[0]
    assert opened.stdout.split("The page is in")[0] == tables_only


@pytest.mark.gate
def test_trace_counts_loads_as_compiled(tmp_path):
    saved = tmp_path / "m03.json"
    result = convlab_("trace", "m03", "--compiled", "sm_90", "--json", saved)
    assert result.exit_code == 0, result.output
    said = "Loads from shared memory are counted as merged for sm_90."
    assert said in result.stdout
    assert said in convlab_("trace", saved).stdout

    def wavefronts(document):
        (launch,) = document["launches"]
        return sum(access["wavefronts"] for access in launch["accesses"])

    as_written = strict_json(convlab_("trace", "m03", "--json", "-").stdout)
    assert "compiled" not in as_written["about"]
    assert 0 < wavefronts(strict_json(saved.read_text())) < wavefronts(as_written)


@pytest.mark.gate
@pytest.mark.parametrize("arch", ["sm_10", "sm_999"])
def test_trace_knows_no_such_gpu(arch):
    line = refused("trace", "m03", "--compiled", arch)
    assert line.startswith(f"convlab: no compiler here knows {arch}: ")


@SAME
def test_trace_of_a_wrong_kernel_exits_1(tmp_path):
    case = next(case for case in WRONG if case.kind == "out of bounds")
    saved = tmp_path / "wrong.json"
    convlab.trace(case.kernel, case.grid, case.block, *case.arguments()).save(saved)
    result = convlab_("trace", saved)
    assert result.exit_code == 1
    assert "out of bounds" in result.stdout


NVDISASM = {"name": "nvdisasm", "found": None, "install": "make gate", "needed_by": []}


COMPILERS = "convlab.measuring.machine.compilers", lambda: [NVDISASM]
NO_MEMORY = Mock(side_effect=MemoryError("Unable to allocate 3.00 TiB"))


@pytest.mark.parametrize(
    ("name", "value", "arguments", "said"),
    [
        ("convlab.running.engines.unavailable", lambda name: "it went fishing",
         "ladder --engine gpu",
         "engine is 'gpu', which cannot run here: it went fishing"),
        ("convlab.problems.oracle.random_tensors", NO_MEMORY, "ladder --engine cudasim",
         "Unable to allocate 3.00 TiB; a smaller --batch takes less"),
        ("numba.cuda.core.config.ENABLE_CUDASIM", 1, "lint", "Numba runs as its CUDA simulator"),
        (*COMPILERS, "lint", "nvdisasm is missing, and lint needs it: run make gate"),
        (*COMPILERS, "trace m03 --compiled sm_90",
         "nvdisasm is missing, and --compiled needs it: run make gate"),
        ("matplotlib", None, "ladder --engine cudasim --image",
         f"{installing.how_to_install('plots', 'make ladder')}"),
        ("numba.cuda.core", None, "lint", "): convlab doctor says what is here"),
    ],
)  # fmt: skip
def test_what_is_not_here_is_named(compiler, monkeypatch, name, value, arguments, said):
    compiler()
    if value is None:
        monkeypatch.setitem(sys.modules, name, None)
    else:
        monkeypatch.setattr(name, value)
    assert said in refused(*arguments.split())


@pytest.mark.parametrize("json_to", ["-", "interrupted.json"])
def test_an_interrupt_keeps_what_was_checked(monkeypatch, tmp_path, json_to):
    monkeypatch.chdir(tmp_path)
    whole = ladder.run

    def interrupted(*arguments: Any, **options: Any) -> Any:
        yield next(whole(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(ladder, "run", interrupted)
    result = convlab_(*SIMULATED, "--json", json_to)
    assert result.exit_code == 130
    people = result.stderr if json_to == "-" else result.stdout
    assert "m01_direct" in people
    assert "m02_implicit_gemm" not in people
    assert json_to != "-" or result.stdout == ""
    said = f"convlab: interrupted after 1 of {len(OF_FLOATS)} stages; no file was written"
    assert result.stderr.splitlines()[-1] == said
    assert os.listdir() == []


def test_an_interrupt_anywhere_else_says_so_too(monkeypatch):
    monkeypatch.setattr(doctor, "facts", Mock(side_effect=KeyboardInterrupt))
    result = convlab_("doctor")
    assert result.exit_code == 130
    assert result.stderr == "convlab: interrupted\n"


def test_json_is_written_whole_or_not_at_all(monkeypatch, tmp_path):
    file = tmp_path / "stages.json"
    file.write_text("what was there")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(os, "replace", Mock(side_effect=full))
    result = convlab_("stages", "--json", file)
    assert result.exit_code == 2
    assert "No space left on device" in result.stderr
    assert file.read_text() == "what was there"
    assert list(tmp_path.iterdir()) == [file]


@SAME
def test_json_through_a_link_and_to_a_device(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert convlab_("stages", "--json", link).exit_code == 0
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert len(strict_json(target.read_text())) == len(LADDER + BACKWARD)
    assert convlab_("stages", "--json", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()


@pytest.fixture
def small_pictures(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("convlab.measuring.photograph.pixels_for", lambda engine: 30)


def test_the_photograph_through_two_stages(small_pictures, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = convlab_(*SIMULATED, "--image", "--stage", "m01", "--stage", "m02", "--json", "-")
    assert result.exit_code == 0, result.output
    problem = strict_json(result.stdout)["problem"]
    assert (problem["in_channels"], problem["out_channels"]) == (3, 6)
    assert problem["input_shape"][2:] == problem["output_shape"][2:]
    assert Path("ladder.png").read_bytes().startswith(b"\x89PNG")
    assert "ladder.png" in result.stderr
    assert "pixels" in result.stderr


@pytest.mark.parametrize("last", [True, False], ids=["at the end", "before an option"])
@pytest.mark.parametrize("image", [["--image", "red.png"], ["--image=red.png"], ["--image"]])
def test_image_with_and_without_a_path(small_pictures, tmp_path, monkeypatch, last, image):
    from PIL import Image

    monkeypatch.setattr(
        "convlab.measuring.photograph.draw", lambda *arguments: b"a picture"
    )  # takes a second
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (5, 4), "red").save("red.png")
    options = [*SIMULATED, "--stage", "m01", "--output", "drawn.png", "--json", "out.json"]
    result = convlab_(*([*options, *image] if last else ["ladder", *image, *options[1:]]))
    assert result.exit_code == 0, result.output
    assert "1x3x4x5" in result.stdout or image == ["--image"]
    assert Path("drawn.png").read_bytes() == b"a picture"


@pytest.mark.parametrize(
    ("prepare", "owner"),
    [(writes_nothing, "m02_implicit_gemm"), (raises, "m09_im2win")],
    ids=["a wrong stage's", "the last one's where the other gave none"],
)
def test_a_wrong_picture_is_drawn_and_exits_1(
    small_pictures, few, monkeypatch, tmp_path, prepare, owner
):
    drawn = {}

    def draw(picture: Any, maps: Any, owner: Any, results: Any, device: str) -> bytes:
        drawn[owner.stage.name] = np.isnan(maps).any()
        return b"a picture"

    few("m01", "m02", "m09", prepare=prepare)
    monkeypatch.setattr("convlab.measuring.photograph.draw", draw)
    file = tmp_path / "wrong.png"
    result = convlab_(*SIMULATED, "--image", "--output", file)
    assert result.exit_code == 1
    assert file.read_bytes() == b"a picture"
    assert drawn == {owner: prepare is writes_nothing}


def test_doctor():
    result = convlab_("doctor", "--json", "-")
    assert result.exit_code == 0
    facts = strict_json(result.stdout)
    assert facts["packages"]["numpy"] == np.__version__
    engines = {engine["name"]: engine for engine in facts["engines"]}
    assert engines["simulator"]["available"]
    assert engines["cudasim"]["available"]
    assert engines["gpu"]["available"] != bool(engines["gpu"]["why_not"])
    assert facts["would_use"]["engine"] == ("gpu" if engines["gpu"]["available"] else "simulator")
    assert all(bool(tool["found"]) != bool(tool["install"]) for tool in facts["compilers"])
    for words in ("numba-cuda", "engine cudasim", "would use"):
        assert words in result.stderr


def test_doctor_survives_engines_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "convlab.running.engines", None)
    result = convlab_("doctor")
    assert result.exit_code == 2
    assert "ModuleNotFoundError" in result.stdout
    assert result.stderr == "convlab: no engine works here: the lines above say why\n"
    assert "ModuleNotFoundError: import of convlab.running.engines halted" in refused("ladder")


MISTAKES = [
    ("stages", "def (", 1, "SyntaxError: invalid syntax"),
    ("ladder", "\n\nTHREADS = 2 * n0_such", 3, "NameError: name 'n0_such' is not defined"),
    ("lint", "from convlab.device import lod4", 1, "ImportError: cannot import name 'lod4' from "),
    ("stages", "from numba import cuda\ncuda.sharde", 2, "AttributeError: module 'numba.cuda' has"),
]
EACH_MISTAKE = """
import sys
from pathlib import Path
file, *words = sys.argv[1:]
for verb, text in zip(words[::2], words[1::2]):
    for name in [name for name in sys.modules if name.startswith("convlab")]:
        del sys.modules[name]
    Path(file).write_text(text)
    sys.argv = ["convlab", verb]
    try:
        from convlab.commands.cli import main; main()
    except SystemExit as end:
        print(end.code)
"""


@SAME
def test_a_mistake_in_a_stage_s_file_gets_one_line(tmp_path):
    """One process does it in a copy of convlab: Numba is imported once."""
    package = Path(convlab.__file__).parent
    shutil.copytree(package, tmp_path / "convlab", ignore=lambda *_: ["__pycache__"])
    file = "convlab/ladder/main/m03_shared_memory.py"
    words = [word for verb, text, *_ in MISTAKES for word in (verb, text)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_ENABLE_CUDASIM", None)
    result = subprocess.run(
        [sys.executable, "-c", EACH_MISTAKE, file, *words], env=environment, cwd=tmp_path,
        capture_output=True, text=True,
    )  # fmt: skip
    assert result.stdout.split() == ["2"] * len(MISTAKES), result.stderr
    for said, (_, _, line, wanted) in zip(result.stderr.splitlines(), MISTAKES, strict=True):
        assert said.startswith(f"convlab: {file}:{line}: {wanted}")


def built(stage: Stage, kernel: str, problem: str, arch: str, **found: Any) -> KernelRow:
    values: dict[str, Any] = {
        "tile": "64x128x8/8x8", "registers": 126, "budget": 128, "stack_bytes": 0,
        "spill_bytes": 0, "shared_bytes": 0, "float64": (), "findings": (),
        "wide": {"LDG": 3, "LDS": 16, "STG": 16, "STS": 1},
    }  # fmt: skip
    return KernelRow(stage.name, kernel, problem, arch=arch, **(values | found))


@pytest.fixture
def compiler(monkeypatch):
    """A function that makes lint believe in a compiler which finds this in every kernel; it
    returns the list of what lint asks for."""

    def put(found: Any = None) -> list[tuple[str, str, str]]:
        asked: list[tuple[str, str, str]] = []

        def lint_stage(stage, problems, capabilities):
            for problem in problems:
                for major, minor in capabilities:
                    asked.append((stage.name, problem, f"sm_{major}{minor}"))
                    yield built(stage, "kernel", problem, f"sm_{major}{minor}", **(found or {}))

        monkeypatch.setattr("convlab.measuring.machine_code.lint_stage", lint_stage)
        monkeypatch.setattr(
            "convlab.measuring.machine_code.processes", lambda: 1
        )  # others would compile for real
        monkeypatch.setattr("convlab.measuring.machine.compilers", lambda: [])
        monkeypatch.setattr("numba.cuda.core.config.ENABLE_CUDASIM", 0)
        return asked

    return put


@SAME
def test_lint_asks_for_every_stage_problem_and_gpu(compiler):
    asked = compiler()
    result = convlab_("lint", "--json", "-")
    assert result.exit_code == 0, result.output
    rows = strict_json(result.stdout)
    assert asked == [(row["stage"], row["problem"], row["arch"]) for row in rows]
    gpus = {"sm_80": (8, 0), "sm_90": (9, 0)}
    every = product(LADDER, PROBLEMS, gpus)
    assert asked == [(s.name, problem, gpu) for s, problem, gpu in every if s.runs_on(gpus[gpu])]
    assert {gpu for name, _, gpu in asked if name == "t05_warpgroups"} == {"sm_90"}
    assert result.stderr.startswith("left out: stages t05_warpgroups, t06_split_k, t07_tf32, h01")
    assert all(row["ok"] for row in rows)
    assert f"All {len(rows)} kernels are within budget." in result.stderr


@SAME
def test_lint_asks_for_what_it_is_told(compiler):
    asked = compiler()
    arguments = ("--layer", "CONV1", "--arch", "sm_86", "--arch", "sm_120", "--arch", "sm_86")
    result = convlab_("lint", "m03", *arguments)
    assert result.exit_code == 0, result.output
    assert asked == [("m03_shared_memory", "conv1", arch) for arch in ("sm_86", "sm_120")]
    asked.clear()
    assert convlab_("lint", "m01", "--layer", "all", "--arch", "sm_90").exit_code == 0
    layers = [problem for _, problem, _ in asked]
    assert sorted(layers) == sorted({f"conv{n}" for n in range(1, 13)} | {"awkward"})


@SAME
@pytest.mark.parametrize(
    ("found", "result_word"),
    [
        ({"findings": ("takes 140 registers, its budget is 128",), "registers": 140}, "registers"),
        ({"findings": ("spills 8 bytes",), "spill_bytes": 8}, "spills"),
        ({"findings": ("keeps 8 bytes",), "stack_bytes": 8}, "stack"),
        ({"findings": ("computes in float64 (DADD)",), "float64": ("DADD",)}, "float64"),
        ({"findings": ("has no 128-bit LDS",), "wide": {}}, "128-bit"),
        ({"findings": ("spills 8 bytes", "has no LDS"), "spill_bytes": 8}, "spills, 128-bit"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lint_says_what_is_wrong(compiler, found, result_word, tmp_path):
    compiler(found)
    file = tmp_path / "lint.json"
    result = convlab_("lint", "m01", "--layer", "conv9", "--arch", "sm_90", "--json", file)
    assert result.exit_code == 1
    said = "; ".join(found["findings"])
    assert result.stdout.splitlines()[-1] == f"m01_direct: kernel on conv9, sm_90: {said}"
    assert "within budget" not in result.stdout
    (row,) = strict_json(file.read_text())
    assert row["ok"] is False
    assert row["findings"] == list(found["findings"])
    table = printed(lint_table([built(LADDER[0], "kernel", "conv9", "sm_90", **found)]))
    assert result_word in table


STORED: dict[str, Any] = {
    "registers": 100, "shared_bytes": 4096, "grid": (8, 2), "block": (256,),
    "instructions": 900, "multiply_adds": 512, "loop_instructions": 600, "loop_multiply_adds": 512,
}  # fmt: skip


@SAME
@pytest.mark.parametrize(
    ("change", "worse"),
    [
        ({}, ""),
        ({"registers": 90, "shared_bytes": 0, "spill_bytes": 0}, ""),
        ({"loop_instructions": 500}, ""),
        ({"loop_instructions": 300, "loop_multiply_adds": 256}, ""),
        ({"registers": 101}, "registers"),
        ({"shared_bytes": 8192}, "shared_bytes"),
        ({"spill_bytes": 4}, "spill_bytes"),
        ({"stack_bytes": 8}, "stack_bytes"),
        ({"loop_instructions": 601}, "share of multiply-adds in the loop"),
        ({"loop_multiply_adds": 0}, "share of multiply-adds in the loop"),
        ({"loop_instructions": 607}, "loop instructions per multiply-add"),
    ],
    ids=str,
)
def test_lint_compares_with_stored_rows(compiler, tmp_path, change, worse):
    file, command = tmp_path / "before.json", ("lint", "m01", "--layer", "conv9", "--arch", "sm_90")
    compiler(STORED)
    assert convlab_(*command, "--json", file).exit_code == 0
    compiler(STORED | change)
    (row,) = json.loads(file.read_text())
    lines = tmp_path / "before.jsonl"
    lines.write_text(json.dumps(row) + "\n")
    for stored in (file, lines):
        result = convlab_(*command, "--against", stored)
        assert result.exit_code == (1 if worse else 0), result.output
        assert worse in result.stdout
        words = " ".join(result.stdout.split())
        assert f"{int(bool(change))} differ, {int(bool(worse))} worse" in words


@SAME
def test_lint_against_says_what_was_not_stored_and_refuses_what_holds_no_rows(compiler, tmp_path):
    compiler(STORED)
    file = tmp_path / "before.json"
    assert convlab_("lint", "m02", "--layer", "conv9", "--json", file).exit_code == 0
    result = convlab_("lint", "m01", "--layer", "conv9", "--against", file)
    assert result.exit_code == 0
    assert "not stored" in result.stdout
    unlike = re.sub(r'"registers": \d+', '"registers": "many"', file.read_text())
    for text in ("", "no JSON", "[1]", '[{"stage": "m01"}]', unlike):
        file.write_text(text)
        assert refused("lint", "m01", "--against", file)
    assert convlab_("lint", "m01", "--against", tmp_path / "absent").exit_code == 2


def test_lint_of_a_stage_without_kernels(compiler, monkeypatch):
    compiler()
    monkeypatch.setattr("convlab.measuring.machine_code.lint_stage", lambda *_: iter(()))
    result = convlab_("lint", "i05_unfold_einsum", "--layer", "conv9", "--json", "-")
    assert (result.exit_code, strict_json(result.stdout)) == (0, [])
    assert "There is no kernel to check" in result.stderr


@SAME
@pytest.mark.parametrize(
    ("error", "arch", "code", "said"),
    [
        (CompilerMissing("no nvdisasm: install it"), "sm_90", 2, "no nvdisasm: install it"),
        (TypeError("no\n  type"), "sm_90", 1, "m01_direct on conv9, sm_90 cannot be compiled: "),
        (RuntimeError("unknown"), "sm_99", 2, "cannot be compiled: RuntimeError: unknown"),
    ],
    ids=["no compiler", "a broken kernel", "an unknown GPU"],
)
def test_lint_cannot_compile(compiler, monkeypatch, error, arch, code, said):
    lint_stage = gate.lint_stage
    compiler()
    monkeypatch.setattr(gate, "lint_stage", lint_stage)
    monkeypatch.setattr(gate.kernels, "compile_launch", Mock(side_effect=error))
    result = convlab_("lint", "m01", "--layer", "conv9", "--arch", arch)
    assert result.exit_code == code
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert said in line


@pytest.mark.gate
def test_lint_compiles_for_real_whatever_the_environment_says():
    arguments = ("lint", "m01", "--layer", "conv9", "--arch", "sm_90", "--json", "-")
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    result = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    (row,) = strict_json(result.stdout)
    assert (row["stage"], row["arch"]) == ("m01_direct", "sm_90")
    assert 0 < row["registers"] <= row["budget"]
