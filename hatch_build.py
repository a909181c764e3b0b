"""Puts the lessons' notebooks into a wheel, without the outputs, which are nine tenths of them, and
the results that they show."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RESULTS = ("ladder_*_h200.json", "memory*.json", "channel_sweeps_h200.json")  # that charts read


class Notebooks(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Hatchling's hook of the target ``wheel``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add what ``convlab lessons`` copies. An editable wheel has the checkout."""
        if version == "editable":
            return
        self.folder = TemporaryDirectory()
        lessons = Path(self.root, "lessons")
        for pattern in RESULTS:
            for result in Path(self.root, "docs/results").glob(pattern):
                build_data["force_include"][str(result)] = f"convlab/lessons/results/{result.name}"
        for source in [*lessons.glob("*.ipynb"), *lessons.glob("solutions/*.ipynb")]:
            notebook = json.loads(source.read_bytes())
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            name = source.relative_to(lessons).as_posix()
            stripped = Path(self.folder.name, name.replace("/", "-"))
            stripped.write_text(json.dumps(notebook, indent=1, ensure_ascii=False), "utf-8")
            build_data["force_include"][str(stripped)] = f"convlab/lessons/notebooks/{name}"
