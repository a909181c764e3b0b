"""Build the site: ``python docs/site/build_site.py``, or ``make site``.

The build writes to ``build/`` only. It keeps pages that have not changed, so a second build is
quick. Sphinx reads the pages of docs/ and lessons/ as they are. The templates beside this file make
the other pages from the ladder, its traces and its results.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import finding_examples
from finding_examples import EXAMPLES
from ladder_results import by_name, gain, source_of
from papers import read_json
from site_pictures import ROOT, drawn

from convlab.ladder import LADDER, Stage, family, route_of, short_name, stage_named
from convlab.running.compilers import MLIR, VARIABLE
from convlab.running.engines.simulator import Simulator
from convlab.simulation.rules.findings import SimulationError
from convlab.simulation.rules.remedies import usual_remedy

HERE, BUILD = Path(__file__).parent, ROOT / "build"
SITE = BUILD / "site"
# The order of the pages. Pages that are in no list come under "More".
CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("getting-started", "glossary"),
    "Learn": ("lessons",),
    "The ladder": ("ladder", "stages/index", "training"),
    "The simulator": (
        "ci", "simulator", "engines", "findings", "findings-shown", "mutants", "trace", "check",
        "counters",
    ),
    "Measured": (
        "measuring", "checking", "results", "baselines", "papers", "measurements", "tiles",
        "compile-gate",
    ),
    "Reference": ("api", "json", "design", "contributing"),
    "Solve and teach": (
        "lessons/solutions/index", "lessons/answers/README", "class", "lesson-authoring",
    ),
    "Notes": ("notes/fast", "notes/measurements", "notes/machine-code", "notes/routes"),
}  # fmt: skip
COPIED = (".md", ".svg", ".png", ".ipynb", ".json", ".jsonl")
LINT, LINT_MLIR = (f"docs/results/lint_conv9_sm90{end}.json" for end in ("", "_mlir"))
LINT_COMMAND = f"convlab lint --layer conv9 --arch sm_90 --json {LINT}"
LINT_COMMANDS = {
    LINT: LINT_COMMAND,
    LINT_MLIR: f"{VARIABLE}={MLIR} convlab lint --layer conv9 --arch sm_90 --json {LINT_MLIR}",
}
# The modules of the API reference, with the names that their own ``__all__`` lacks.
MODULES: dict[str, tuple[str, ...]] = {
    "convlab": (),
    "convlab.ladder": (),
    "convlab.device": (),
    "convlab.tracing": (),
    "convlab.checking": (),
    "convlab.running.engines": (),
    "convlab.running.plans": ("PlanForWeight",),
    "convlab.ladder.stage": ("Flat", "Images"),
    "convlab.tracing.recorded": (
        "Cost", "Footprint", "Instruction", "LineAccess", "TracedArray", "WarpRequest", "Work",
    ),
    "convlab.checking.outcome": ("CompiledKernel",),
    "convlab.simulation.host.run_report": ("Report",),
    "convlab.simulation.host.programs": ("DependsOnOrder", "OwnNumbers", "UntypedRegisters"),
    "convlab.simulation.host.baseline": ("AcceptedFinding", "Baseline"),
    "convlab.simulation.recording.loops": ("Loop", "Loops"),
    "convlab.simulation.rules.findings": ("Finding", "SimulationError", "NotSimulated"),
    "convlab.problems.oracle": ("Oracle", "CheckResult"),
}  # fmt: skip
# Descriptions of constants, which have no docstrings.
DATA = {
    "ABLATION": "The stage m11 with some of its techniques left out, for ``convlab bench --cases "
    "ablation``; it is not on the ladder.",
    "BACKWARD": "The three stages of a convolution's gradients; they are not on the ladder.",
    "GROUPED": "A direct convolution in groups, one launch for all of them; it is not on the "
    "ladder.",
    "LADDER": "All stages, in order: a tuple of :class:`Stage`.",
    "RENAMED": "Today's names of stages by their earlier names.",
    "ROUTES": "The routes of the convolution, in the order of :data:`LADDER`.",
    "Start": "The type of a built step: a function of its arrays that starts its work.",
    "Stream": "A stream as plans take it: its handle, an object with ``__cuda_stream__``, or None.",
    "Step": "One step of a program: a :class:`Launch` or a :class:`LibraryCall`.",
    "BYTES_1024": "The ``alignment=`` of a shared array that holds panels: 1,024 on a GPU, None in "
    "Numba's simulator, which has no such argument.",
    "BYTES_16": "The ``alignment=`` of a shared array that float4 loads and stores access: 16 on a "
    "GPU, None in Numba's simulator, which has no such argument.",
    "FLOAT4": "The elements of a float4: 4.",
    "ENGINE_CONSTANTS": "The constants of kernels that differ from engine to engine.",
    "ENGINE_NAMES": "The engines' names: ``gpu``, ``simulator`` and ``cudasim``.",
}


def build() -> int:
    """Collect the pages and run Sphinx on them.

    Returns 0, or 1 if Sphinx warns of anything, such as a link that leads nowhere.
    """
    from sphinx.cmd.build import main as sphinx

    source, doctrees = BUILD / "site-source", BUILD / "site-doctrees"
    if collect(source):
        shutil.rmtree(SITE, ignore_errors=True)
        shutil.rmtree(doctrees, ignore_errors=True)
    failed = sphinx([
        "-b", "html", "-c", str(HERE), "-d", str(doctrees),
        "-W", "--keep-going", "-n", "-q", str(source), str(SITE),
    ])  # fmt: skip
    if not failed:
        print(f"open {SITE / 'index.html'} with a browser")
    return int(bool(failed))


def collect(folder: Path) -> bool:
    """Collect in ``folder`` all files that Sphinx reads, and delete all others there.

    Returns True if pages that have not changed may link to a place that has moved or is gone.
    """
    traces = drawn()
    files = {name: path.read_bytes() for name, path in _copied()}
    files |= {name: text.encode() for name, text in _made(files, traces)}
    files |= {f"stages/{path.name}": path.read_bytes() for path in traces.glob("*.svg")}
    links = (
        rb"\]\((?:\.\./)+((?:src|tests)/(?!convlab/ladder/(?!gradients)\w+/[a-z]\d\d_)[^)#]+\.py)"
    )
    for text in [*files.values()]:
        linked = {match.decode() for match in re.findall(links, text)}
        files |= {name: (ROOT / name).read_bytes() for name in linked if (ROOT / name).is_file()}
    moved = False
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
            moved = True
    for name, content in files.items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            moved |= path.suffix == ".py"  # links lead to its lines
    return moved


def _copied() -> Iterator[tuple[str, Path]]:
    """Yield each file that is copied unchanged, with its path on the site. docs/ is its root."""
    yield "site/finding_examples.py", Path(finding_examples.__file__)
    for start, base in (("docs", ROOT / "docs"), ("lessons", ROOT)):
        for path in sorted((ROOT / start).rglob("*")):
            name = path.relative_to(base).as_posix()
            if path.suffix in COPIED and "checkpoints" not in name:
                yield ("index.md" if name == "README.md" else name), path


def _made(files: dict[str, bytes], traces: Path) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each generated page."""
    render = renderer(ladder_results())
    names = {name[:-3] for name in files if name.endswith(".md")} - {"index"}
    names |= {"stages/index", "findings-shown", "measurements", "api", "lessons/solutions/index"}
    more = tuple(sorted(names - {name for listed in CONTENTS.values() for name in listed}))
    contents = render("contents", contents=CONTENTS | {"More": more})
    index = files["index.md"].decode().replace("<!-- site:ladder -->", render("picture"))
    yield "index.md", f"{index}\n{contents}"
    yield "stages/index.md", render("stages", ladder=render("ladder"))
    lessons = {
        name[8:-6]: _title(content)
        for name, content in files.items()
        if re.fullmatch(r"lessons/[^/]+\.ipynb", name)
    }
    page, linked = files["lessons.md"].decode(), [f"lessons/{name}" for name in lessons]
    yield "lessons.md", render("lessons", page=page, lessons=linked)
    yield "lessons/solutions/index.md", render("solutions", lessons=[*lessons])
    files_there = [about(name) for name in files if name.startswith("results/")]
    yield "measurements.md", render("measurements", files=files_there)
    yield "api.md", render("api", modules=MODULES, names=public_names, data=DATA)
    shown = [(example, *shown_example(example)) for example in EXAMPLES]
    yield "findings-shown.md", render("findings", shown=shown, usual_remedy=usual_remedy)
    for stage in LADDER:
        yield f"stages/{stage.name}.md", render("stage", **facts(stage, lessons, traces))


def _title(notebook: bytes) -> str:
    """Return the first heading of a notebook."""
    cell, *_ = json.loads(notebook)["cells"]
    return str(cell["source"][0]).strip("# \n")


def renderer(results: dict[str, dict[str, Any]]) -> Callable[..., str]:
    """Return a function that fills the template of a name with values and the ladder's results."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters["cell"] = lambda text: str(text).replace("|", r"\|")
    made.globals |= {"LADDER": LADDER, "short": short_name, "results": results, "kind": documenter}
    made.globals |= {"gain": gain, "family": family, "route": route_of}

    def render(template: str, **values: Any) -> str:
        return str(made.get_template(f"{template}.md.jinja").render(values))

    return render


# The ladder, its results and its machine code.


def ladder_results() -> dict[str, dict[str, Any]]:
    """Return the results of ``convlab ladder --json`` on GPUs, by layer, compiler and GPU."""
    return by_name((ROOT / "docs/results").glob("ladder_*.json"))


def about(name: str) -> tuple[str, ...]:
    """Return a result file's name on the site, its GPU, its date and the command that made it."""
    document = read_json(ROOT / "docs" / name) if name.endswith(".json") else None
    environment = (document.get("environment") or {}) if isinstance(document, dict) else {}
    device = str((environment.get("gpu") or {"name": "no GPU needed"})["name"])
    command = str(environment.get("command") or LINT_COMMANDS.get(f"docs/{name}", ""))
    return name, device, str(environment.get("date") or "-")[:10], command


def lesson_of(stage: Stage, titles: Mapping[str, str]) -> str | None:
    """Return the lesson that teaches a stage, by titles such as ``m12 to m15: im2win ...``; of a
    stage that none names, that of the stage on which it builds."""
    for lesson, title in titles.items():
        names = re.findall(r"\b[a-z]\d\d\b", title.partition(":")[0])
        if names and names[0] <= short_name(stage.name) <= names[-1]:
            return lesson
    return next((lesson_of(stage_named(name), titles) for name in stage.builds_on), None)


def facts(stage: Stage, lessons: Mapping[str, str], traces: Path) -> dict[str, Any]:
    """Return the values that the template of a stage's page needs."""
    code = (ROOT / source_of(stage)).read_text(encoding="utf-8")
    docstring = ast.parse(code).body[0]
    bases = [stage_named(name) for name in stage.builds_on]
    return {
        "stage": stage,
        "place": LADDER.index(stage) + 1,
        "source": source_of(stage),
        "idea": (import_module(stage.module).__doc__ or "").partition("\n\n")[2],
        "first": (docstring.end_lineno or 0) + 1,
        "bases": [(base, difference(base, stage)) for base in bases],
        "follow": [other for other in LADDER if stage.name in other.builds_on],
        "told": f"\n### {stage.name}\n" in (ROOT / "docs/ladder.md").read_text(encoding="utf-8"),
        "lesson": lesson_of(stage, lessons),
        "trace": read_json(traces / f"{stage.name}.json"),
        "lint": [row for row in read_json(ROOT / LINT) if row["stage"] == stage.name],
        "lint_command": LINT_COMMAND,
    }


def difference(base: Stage, stage: Stage) -> list[str]:
    """Return the difference between two stages' files, below their docstrings."""
    before, after = (
        (ROOT / source_of(one)).read_text(encoding="utf-8").partition('"""\n\n')[2].splitlines()
        for one in (base, stage)
    )
    files = f"{base.name}.py", f"{stage.name}.py"
    return list(difflib.unified_diff(before, after, *files, lineterm=""))


# Findings.


def shown_example(example: Any) -> tuple[str | None, str]:
    """Return the simulator's report on an example's kernel, and the corrected kernel's source.

    Raises ``AssertionError`` if the kernel has another finding, or the corrected kernel has one.
    """
    said = run(example, example.kernel)
    corrected = example.corrected()
    assert f"- {example.kind}, " in str(said), (example.kind, said)
    assert run(example, corrected) is None, example.kind
    return said, inspect.getsource(corrected.py_func)


def run(example: Any, kernel: Any) -> str | None:
    """Return the simulator's report on an example with this kernel, or None without a finding."""
    try:
        launch = kernel, example.grid, example.block, *example.arguments()
        Simulator().launch(*launch, shared_bytes=example.shared_bytes)
    except SimulationError as error:
        return str(error)
    return None


# The API reference.


def public_names(module: str) -> list[str]:
    """Return a module's public names that no earlier module of :data:`MODULES` has."""
    earlier = [*MODULES][: [*MODULES].index(module)]
    told = [getattr(import_module(other), name) for other in earlier for name in _all(other)]
    own = import_module(module)
    return [name for name in _all(module) if not any(getattr(own, name) is one for one in told)]


def documenter(module: str, name: str) -> str:
    """Return the name of autodoc's directive for a public name."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "intrinsic" if hasattr(value, "_defn") else "function"


def _all(module: str) -> list[str]:
    return sorted(MODULES[module] or import_module(module).__all__, key=str.lower)


if __name__ == "__main__":
    try:
        sys.exit(build())
    except ImportError as error:
        print(f"convlab: {error.name} is missing, and the site needs it: run make site",
              file=sys.stderr)  # fmt: skip
        sys.exit(2)
