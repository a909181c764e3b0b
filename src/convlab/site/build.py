"""``python -m convlab.site``: stages the pages, builds them with Sphinx and checks the result.

What Sphinx reads is put together in ``build/site-source``: the pages of docs/, the notebooks of
lessons/ where there are any, and the pages that are generated. Nothing outside ``build`` is
written. A page that has not changed is left alone, so that a second build is quick.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from convlab.site import checks, measurements, reference
from convlab.site.finding_pages import findings_page
from convlab.site.ladder_graph import graph
from convlab.site.links import INDEX, RESULTS, Links, listing_name
from convlab.site.listings import language_of, listing
from convlab.site.markup import raw
from convlab.site.stage_pages import stage_page
from convlab.stages import LADDER
from convlab.tracing import Trace, open_trace, trace_stage

SOURCE, TRACES, SITE = "build/site-source", "build/traces", "build/site"
# The order of the pages; one that is in no list comes under "More".
CONTENTS: dict[str, tuple[str, ...]] = {
    "Start": ("getting-started", "glossary"),
    "Lessons": ("lessons/index", "lessons"),
    "The ladder": ("ladder", "stages/index"),
    "The simulator": (
        "engines", "findings", "findings-shown", "mutants", "trace", "check", "counters",
    ),
    "Measured": (
        "measuring", "judging", "results", "papers", "measurements", "tiles", "compile-gate",
    ),
    "Reference": ("api", "json", "design", "contributing"),
    "Notes": ("notes/fast-kernels", "notes/measurements"),
}  # fmt: skip
CHECKOUT = ("docs/conf.py", "docs/README.md", "src/convlab/stages")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m convlab.site", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(), help="convlab's source folder")
    chosen = parser.parse_args(arguments)
    root = chosen.root.resolve()
    missing = [name for name in CHECKOUT if not (root / name).exists()]
    if missing:
        print(f"convlab: there is no {missing[0]} in {root}: run this in convlab's source folder",
              file=sys.stderr)  # fmt: skip
        return 2
    try:
        return build(root)
    except ImportError as error:
        print(f"convlab: {error.name} is missing, and the site needs it: run make site",
              file=sys.stderr)  # fmt: skip
        return 2


def build(root: Path) -> int:
    """Stage, build and check; 0 where all is well, 1 where Sphinx or the checks complain."""
    from sphinx.cmd.build import main as sphinx

    stage_site(root)
    site = root / SITE
    code = sphinx([
        "-b", "html", "-c", str(root / "docs"), "-d", str(root / "build/site-doctrees"),
        "-W", "--keep-going", "-n", "-q", "-j", "2", str(root / SOURCE), str(site),
    ])  # fmt: skip
    if code:
        return 1
    complaints = checks.complaints(site)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    if complaints:
        return 1
    print(f"open {site / 'index.html'} with a browser")
    return 0


def stage_site(root: Path) -> None:
    """Put together what Sphinx reads."""
    pages = dict(staged_pages(root))
    folder = root / SOURCE
    wanted: set[Path] = set()
    for name, text in pages.items():
        wanted.add(_put(folder / name, text.encode()))
    for start, target in _files(root):
        wanted.add(_put(folder / target, start.read_bytes()))
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path not in wanted:
            path.unlink()


def _put(path: Path, content: bytes) -> Path:
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def _files(root: Path) -> Iterator[tuple[Path, str]]:
    """What is copied as it is: pictures, results, style sheets."""
    for start, target in {
        "docs/images": "images", "docs/_static": "_static", RESULTS: "extra/results",
    }.items():  # fmt: skip
        for path in sorted((root / start).rglob("*")):
            if path.is_file():
                yield path, f"{target}/{path.relative_to(root / start).as_posix()}"
    for path in sorted((root / "lessons").rglob("*")):
        if path.suffix in (".png", ".svg"):
            yield path, path.relative_to(root).as_posix()


def staged_pages(root: Path) -> Iterator[tuple[str, str]]:
    """Every page with its text: those of docs/ with their links rewritten, and the generated."""
    links = Links(root)
    every = measurements.ladders(root)
    names = []
    for path in sorted((root / "docs").rglob("*.md")):
        name = path.relative_to(root / "docs").as_posix()
        if name != "README.md":
            yield name, links.page(path.read_text(encoding="utf-8"), f"docs/{name}", name)
            names.append(name.removesuffix(".md"))
    traces = stage_traces(root)
    for stage in LADDER:
        text = stage_page(root, stage, traces[stage.name], every, links)
        yield (
            f"stages/{stage.name}.md",
            links.page(text, f"docs/stages/{stage.name}.md", "stages/x"),
        )
    ladder = graph(every[0], folder="") if every else ""
    yield "stages/index.md", _stages_index(ladder)
    generated = {
        "findings-shown": findings_page(),
        "measurements": measurements.measurements_page(root, every),
        "api": reference.reference_page(),
    }
    for name, text in generated.items():
        yield f"{name}.md", links.page(text, f"docs/{name}.md", f"{name}.md")
    names += [*generated, "stages/index"]
    lessons = sorted((root / "lessons").glob("*.ipynb"))
    if lessons:
        yield "lessons/index.md", _lessons_index([path.stem for path in lessons])
        names.append("lessons/index")
    for path in [*lessons, *sorted((root / "lessons/solutions").glob("*.ipynb"))]:
        name = path.relative_to(root).as_posix()
        yield name, notebook(path.read_text(encoding="utf-8"), name, links, path in lessons)
    index = links.page((root / INDEX).read_text(encoding="utf-8"), INDEX, "index.md")
    index = index.replace("<!-- site:ladder -->", graph(every[0]) if every else "")
    yield "index.md", f"{index}\n{_contents(names)}"
    for name in sorted(links.listed):
        text = (root / name).read_text(encoding="utf-8")
        body = listing(text, language_of(Path(name)))
        yield f"{listing_name(name)}.md", f"---\norphan: true\n---\n\n# {name}\n\n{raw(body)}"


def _contents(names: Iterable[str]) -> str:
    """The site's contents, as they stand at its side."""
    there = set(names)
    known = {name for listed in CONTENTS.values() for name in listed}
    parts = {**CONTENTS, "More": tuple(sorted(there - known))}
    return "\n".join(
        f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(found) + "\n```\n"
        for caption, listed in parts.items()
        if (found := [name for name in listed if name in there])
    )


def _stages_index(ladder: str) -> str:
    names = "\n".join(stage.name for stage in LADDER)
    return (
        "# The stages\n\nA page for each: its idea, what changed, what it asks of memory, its "
        "machine code, its results. [ladder.md](../ladder.md) tells the whole story.\n\n"
        f"{ladder}\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def notebook(text: str, name: str, links: Links, listed: bool) -> str:
    """A notebook with its links made to suit the site; one that no contents list is an orphan."""
    document = json.loads(text)
    for cell in document["cells"]:
        if cell["cell_type"] == "markdown":
            cell["source"] = links.page("".join(cell["source"]), name, name)
        told = [
            of_kind["alt"]
            for output in cell.get("outputs", ())
            for of_kind in output.get("metadata", {}).values()
            if isinstance(of_kind, dict) and "alt" in of_kind
        ]
        if told:  # MyST-NB takes the pictures' alternative texts from here only
            cell["metadata"].setdefault("mystnb", {})["image"] = {"alt": "; ".join(told)}
    if not listed:
        document["metadata"]["orphan"] = True
    return json.dumps(document)


def _lessons_index(names: Sequence[str]) -> str:
    listed = "\n".join(names)
    return (
        "# Lessons\n\nNotebooks to work through, one for each stage. Here they are shown; "
        "`make lessons` opens them for you to fill in.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def stage_traces(root: Path) -> dict[str, Trace | None]:
    """The trace of every stage's main kernel, on Conv9 in small; None where a library does the
    work. Kept in ``build/traces`` for as long as no source file changes."""
    folder = root / TRACES / _fingerprint(root)
    if not folder.is_dir():
        shutil.rmtree(root / TRACES, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    files = {stage.name: folder / f"{stage.name}.json" for stage in LADDER}
    missing = [name for name, file in files.items() if not file.is_file()]
    if missing:
        print(f"tracing {len(missing)} stages on the simulator", flush=True)
        with ProcessPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
            for name, document in zip(missing, pool.map(_traced, missing), strict=True):
                partial = files[name].with_suffix(".part")
                partial.write_text(document, encoding="utf-8")
                partial.replace(files[name])
    return {name: open_trace(file) if file.stat().st_size else None for name, file in files.items()}


def _traced(name: str) -> str:
    """A stage's trace as JSON; nothing where it has no kernel."""
    stage = next(one for one in LADDER if one.name == name)
    try:
        trace = trace_stage(name)
    except ValueError:
        if stage.needs_library:
            return ""
        raise
    main = Trace(trace.title, (trace.main,), trace.about)
    return json.dumps(main.as_json())


def _fingerprint(root: Path) -> str:
    """What the source files are, in short."""
    digest = hashlib.sha256()
    for path in sorted((root / "src/convlab").rglob("*.py")):
        if "site" not in path.relative_to(root).parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
