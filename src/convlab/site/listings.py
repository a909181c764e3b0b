"""Source files as HTML: highlighted, every line and every name in them with an anchor."""

from __future__ import annotations

import ast
import difflib
from html import escape
from pathlib import Path

CONTEXT = 3  # unchanged lines that are shown around a change


def highlighted(text: str, language: str = "python") -> list[str]:
    """The lines of a text as HTML, by Pygments."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name

    lexer = get_lexer_by_name(language, stripnl=False, ensurenl=True)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True))).splitlines()


def names(text: str) -> dict[str, int]:
    """The line of every function, class and top-level constant of a Python file, by its name."""
    tree = ast.parse(text)
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.setdefault(node.name, node.lineno)
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                found.setdefault(target.id, node.lineno)
    return found


def listing(text: str, language: str = "python", *, anchors: bool = True) -> str:
    """A file with its line numbers; line 12 is at ``#L12``, with ``anchors`` names are too."""
    at: dict[int, list[str]] = {}
    if anchors and language == "python":
        for name, line in names(text).items():
            at.setdefault(line, []).append(name)
    lines = []
    for number, shown in enumerate(highlighted(text, language), 1):
        marks = "".join(f'<a id="{escape(name)}"></a>' for name in at.get(number, ()))
        lines.append(
            f'{marks}<span class="row" id="L{number}"><a class="number" href="#L{number}">'
            f"{number}</a>{shown}\n</span>"
        )
    return _block("".join(lines), language, "listing")


def difference(before: str, after: str) -> str:
    """The lines that came and went from one file to another, with a few around them."""
    old, new = before.splitlines(), after.splitlines()
    old_lines, new_lines = highlighted(before), highlighted(after)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    rows: list[str] = []
    for group in matcher.get_grouped_opcodes(CONTEXT):
        if rows:
            rows.append('<span class="row gap">\N{MIDLINE HORIZONTAL ELLIPSIS}\n</span>')
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                rows += [_changed(" ", line) for line in new_lines[j1:j2]]
            else:
                rows += [_changed("-", line) for line in old_lines[i1:i2]]
                rows += [_changed("+", line) for line in new_lines[j1:j2]]
    return _block("".join(rows), "python", "difference")


def changed_lines(before: str, after: str) -> tuple[int, int]:
    """How many lines came, and how many went."""
    marks = [line[0] for line in difflib.ndiff(before.splitlines(), after.splitlines())]
    return marks.count("+"), marks.count("-")


def without_docstring(text: str) -> str:
    """A module's text from below its docstring: what there is to compare."""
    first = ast.parse(text).body[0]
    lines = text.splitlines(keepends=True)
    return "".join(lines[first.end_lineno :]).lstrip("\n")


def language_of(path: Path) -> str:
    """What Pygments calls a file's language."""
    known = {".py": "python", ".json": "json", ".toml": "toml", ".yml": "yaml", ".js": "javascript"}
    return known.get(path.suffix, "text")


KINDS = {"+": "came", "-": "went", " ": "stayed"}
SPOKEN = {"+": "added", "-": "removed", " ": "unchanged"}


def _changed(mark: str, line: str) -> str:
    return (
        f'<span class="row {KINDS[mark]}"><span class="mark" title="{SPOKEN[mark]}">{mark}</span>'
        f"{line}\n</span>"
    )


def _block(lines: str, language: str, kind: str) -> str:
    return (
        f'<div class="highlight-{language} notranslate {kind}"><div class="highlight">'
        f'<pre tabindex="0">{lines}</pre></div></div>'
    )
