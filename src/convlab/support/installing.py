"""The installation of convlab, and the commands that messages tell people to install with."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


def in_checkout() -> bool:
    """Return whether convlab runs from a checkout of its repository."""
    return (CHECKOUT / "lessons/source").is_dir()


def how_to_install(extra: str, target: str = "") -> str:
    """The command that adds an extra to this installation: in a checkout also make's ``target``,
    elsewhere one that names the wheel, repository or index that convlab was installed from."""
    tool = _tool()
    if tool is not None:
        place = f"--editable '{CHECKOUT}[{extra}]'" if in_checkout() else f"'{requirement(extra)}'"
        return f"{_INSTALL_AGAIN[tool]} {place}"
    if in_checkout():
        by_pip = f"{_pip_install()} -e '.[{extra}]'"
        return f"{target}, or {by_pip}" if target else by_pip
    return f"{_pip_install()} '{requirement(extra)}'"


def how_to_add(packages: str) -> str:
    """The command that adds other packages, or words about them, to convlab's environment."""
    tool = _tool()
    if tool is None:
        return f"{_pip_install()} {packages}"
    own = metadata_of_convlab().metadata["Name"]
    if tool == "pipx":
        return f"pipx inject {own} {packages}"
    return f"{_INSTALL_AGAIN[tool]} {_with_uv_s_words(packages)} '{requirement()}'"


# Programs that keep an application in an environment of its own, where pip must not install.
_INSTALL_AGAIN = {"uv tool": "uv tool install", "pipx": "pipx install --force"}
_RECEIPTS = {"uv-receipt.toml": "uv tool", "pipx_metadata.json": "pipx"}


def _tool() -> str | None:
    """``uv tool`` or ``pipx`` if that keeps this environment; None for an ordinary one."""
    return next((tool for name, tool in _RECEIPTS.items() if Path(sys.prefix, name).exists()), None)


def _with_uv_s_words(packages: str) -> str:
    return " ".join(f"--with {word}" for word in packages.split() if not word.startswith("-"))


def _pip_install() -> str:
    """Return the command that installs into this Python's environment, which may lack pip."""
    if find_spec("pip") is None and shutil.which("uv") is not None:
        return f"uv pip install --python {_this_python()}"
    return f"{_this_python()} -m pip install"


def _this_python() -> str:
    """``python`` if a shell finds this Python by that name, else its path, as short as it can be:
    somebody may start convlab without activating its environment."""
    found = shutil.which("python")
    if found is not None and os.path.dirname(found) == os.path.dirname(sys.executable):
        return "python"
    here = Path(sys.executable)
    inside = here.is_relative_to(Path.cwd())
    return shlex.quote(str(here.relative_to(Path.cwd()) if inside else here))


def metadata_of_convlab() -> metadata.Distribution:
    """This distribution. Raises ``RuntimeError`` where convlab runs without one."""
    # Another project has the name `convlab` on the package index: take the one of the command.
    scripts = metadata.entry_points(group="console_scripts", name="convlab")
    ours = [one.dist for one in scripts if one.value == "convlab.__main__:main" and one.dist]
    if not ours:
        raise RuntimeError("convlab has no metadata: install it by pip, or use a checkout")
    return ours[0]


def requirement(extra: str = "") -> str:
    """This distribution, with an extra if one is named, as pip takes it."""
    own = metadata_of_convlab()
    named = f"{own.metadata['Name']}{f'[{extra}]' if extra else ''}"
    if (origin := own.read_text("direct_url.json")) is None:
        return f"{named}=={own.version}"
    found = json.loads(origin)
    vcs = found.get("vcs_info")
    return f"{named} @ " + (
        f"{vcs['vcs']}+{found['url']}@{vcs['commit_id']}" if vcs else str(found["url"])
    )
