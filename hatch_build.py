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
        for source in lessons.glob("*.ipynb"):
            given, solved = stripped(source), stripped(source.parent / "solutions" / source.name)
            # The solution has most texts too: of these the wheel has only the cells' numbers.
            texts = [cell["source"] for cell in given["cells"]]
            for cell in solved["cells"]:
                if cell["source"] in texts:
                    cell["source"] = texts.index(cell["source"])
            for name, notebook in (source.name, given), (f"solutions/{source.name}", solved):
                packed = Path(self.folder.name, name.replace("/", "-"))
                packed.write_text(json.dumps(notebook, indent=1, ensure_ascii=False), "utf-8")
                build_data["force_include"][str(packed)] = f"convlab/lessons/notebooks/{name}"


def stripped(file: Path) -> dict[str, Any]:
    """Return a notebook without outputs."""
    notebook: dict[str, Any] = json.loads(file.read_bytes())
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return notebook
