"""One change of one module's code."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from convlab import Stage
from stage_mutants.sources import code_of, remade


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """The code of ``module`` with ``old``, which stands at ``line`` and ``column``, replaced by
    ``new``."""

    module: str
    old: str
    new: str
    line: int = field(compare=False)
    column: int = field(compare=False)

    @property
    def text(self) -> str:
        """The module's whole code with the change."""
        code = code_of(self.module)
        lines = code.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        return code[:start] + self.new + code[start + len(self.old) :]

    def stage(self, module: str, folder: Path) -> Stage:
        """Return the stage of ``module`` with the change. Its files are written to ``folder``."""
        return remade(module, {self.module: self.text}, folder)
