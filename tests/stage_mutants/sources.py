"""The source of stages, and stages made of other source."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from unittest import mock

from convlab import Stage


@cache
def source_of(module: str) -> str:
    """Return the text of a module's file."""
    return Path(import_module(module).__file__ or "").read_text(encoding="utf-8")


def code_of(module: str) -> str:
    """Return a module's source without comments. Lines and columns are those of the file."""
    return _without_comments(source_of(module))


@cache
def _without_comments(source: str) -> str:
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, column = token.start
            lines[line - 1] = lines[line - 1][:column].rstrip()
    return "\n".join(lines) + "\n"


@cache
def imports_of(module: str) -> tuple[str, ...]:
    """Return the ladder's modules that a module imports, directly or through others. Each stands
    before those that import it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source_of(module))):
        if not isinstance(node, ast.ImportFrom):
            continue
        name = node.module or ""
        for one in (name, *(f"{name}.{alias.name}" for alias in node.names)):
            if one.startswith("convlab.ladder.") and one in sys.modules:
                found += [*imports_of(one), one]
    return tuple(dict.fromkeys(found))


def remade(stage: str, texts: dict[str, str], folder: Path) -> Stage:
    """Return the stage of module ``stage``, imported anew with ``texts`` as the sources of the
    modules that they name."""
    imports = imports_of(stage)
    # Each mutant has a folder of its own, because linecache takes a file of the same size and time
    # for the same file.
    folder = Path(mkdtemp(dir=folder))
    with ExitStack() as patched:
        for module in [m for m in [*imports, stage] if texts.keys() & {m, *imports_of(m)}]:
            made = _changed(module, texts.get(module) or source_of(module), folder)
            package, _, short = module.rpartition(".")
            patched.enter_context(mock.patch.dict(sys.modules, {module: made}))
            patched.enter_context(mock.patch.object(sys.modules[package], short, made))
    return made.STAGE  # type: ignore[no-any-return]


def _changed(module: str, text: str, folder: Path) -> ModuleType:
    path = folder / f"{module.rpartition('.')[2]}.py"
    path.write_text(text, encoding="utf-8")
    changed = ModuleType(module)
    with mock.patch.dict(sys.modules, {module: changed}):  # its dataclasses look themselves up
        exec(compile(text, path, "exec", dont_inherit=True), vars(changed))
    return changed
