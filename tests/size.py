"""``make size``: how large the repository is, and how far a reader of a stage has to go.

Counts lines as ``wc -l`` does. Needs neither Numba nor an installed convlab.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/convlab"
CODE = {".py", ".js", ".cpp", ".cu", ".cuh"}
# What measures, reports and makes pages and pictures.
BEHIND = ("bench", "image.py", "lessons/pictures.py", "lessons/maps.py")
# What a stage's reader follows: how a kernel runs and is measured is another story.
FOLLOWED = ("problem", "stage", "stages", "kernels")


def lines(files: Iterable[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


def words(files: Iterable[Path]) -> int:
    return sum(len(file.read_text(encoding="utf-8").split()) for file in files)


def code_below(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in CODE and file.is_file())


def imported(file: Path) -> set[Path]:
    """The files that a file imports from convlab, of those that a stage's reader follows."""
    found: set[Path] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "convlab":
            package = SOURCE.parent / node.module.replace(".", "/")
            for place in (package / alias.name for alias in node.names):
                ways = place.with_suffix(".py"), package.with_suffix(".py"), package / "__init__.py"
                found.add(next(file for file in ways if file.is_file()))
    top = {file: file.relative_to(SOURCE).parts[0].removesuffix(".py") for file in found}
    return {file for file in found if top[file] in FOLLOWED}


def read_with(file: Path) -> set[Path]:
    """A file and all that it imports, followed to the end. The ladder's list of all stages is not
    followed: it imports them by name, and no kernel needs it."""
    seen: set[Path] = set()
    ahead = {file}
    while ahead:
        now = ahead.pop()
        seen.add(now)
        ahead |= imported(now) - seen
    return seen


def builds_on(file: Path) -> list[str]:
    """The stages that a stage's ``STAGE`` names as what it builds on."""
    found = re.search(r"builds_on=\((.*?)\)", file.read_text(encoding="utf-8"), re.DOTALL)
    return re.findall(r"\"(\w+)\"", found[1]) if found else []


def changed(old: Path, new: Path) -> int:
    """Lines added and removed, as ``diff`` counts them."""
    texts = [file.read_text(encoding="utf-8").splitlines() for file in (old, new)]
    delta = difflib.unified_diff(*texts, n=0, lineterm="")
    return sum(line[0] in "+-" for line in delta if not line.startswith(("+++", "---", "@@")))


def main() -> None:
    source = code_below(SOURCE)
    behind = [f for f in source if f.relative_to(SOURCE).as_posix().startswith(BEHIND)]
    tests, site = code_below(ROOT / "tests"), code_below(ROOT / "docs/site")
    pages, notes = (sorted((ROOT / "docs" / sub).glob("*.md")) for sub in ("", "notes"))
    print(f"{'':60}{'now':>8}{'files':>7}{'to reach':>10}")
    for what, count, files, limit in (
        ("source below src/convlab, lines", lines, source, "24000/140"),
        ("of these, measuring, reporting, pages and pictures", lines, behind, "6000"),
        ("beside the pages, in docs/site: what makes them, lines", lines, site, ""),
        ("tests, lines", lines, tests, "16000"),
        ("pages in docs/ and docs/notes/, words", words, pages + notes, "30000"),
        ("of these in docs/notes/, words", words, notes, ""),
    ):
        print(f"{what:60}{count(files):8,}{len(files):7}{limit:>10}")
    reach = "with its imports: files (lines)"
    print(f"\n{'stage':28}{'lines':>6}  {reach:32}changed from its base")
    for file in sorted((SOURCE / "stages").glob("s[0-9]*.py")):
        together = read_with(file)
        steps = ", ".join(
            f"{base}: {changed(file.with_name(base + '.py'), file)}" for base in builds_on(file)
        )
        reach = f"{len(together)} ({lines(together):,})"
        print(f"{file.stem:28}{lines([file]):6}  {reach:32}{steps}")


if __name__ == "__main__":
    main()
