"""Where convlab is installed from, and what messages tell people to install."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import msgspec

CHECKOUT = Path(__file__).parents[2]


class _Repository(msgspec.Struct):
    vcs: str
    commit_id: str


class _Origin(msgspec.Struct):
    """What pip notes of where a distribution came from (PEP 610)."""

    url: str
    vcs_info: _Repository | None = None


def in_checkout() -> bool:
    """Whether convlab runs from a checkout of its repository."""
    return (CHECKOUT / "lessons/source").is_dir()


def how_to_install(extra: str, target: str = "") -> str:
    """The command that adds an extra to this installation: in a checkout also make's ``target``,
    elsewhere one that names the wheel, repository or index that convlab was installed from."""
    if in_checkout():
        return f"{target}{', or ' * bool(target)}python -m pip install -e '.[{extra}]'"
    return f"python -m pip install '{requirement(extra)}'"


def requirement(extra: str) -> str:
    """This distribution with an extra, as pip takes it."""
    # Another project has the name `convlab` on the package index: take the one of the command.
    scripts = metadata.entry_points(group="console_scripts", name="convlab")
    ours = [one.dist for one in scripts if one.value == "convlab.__main__:main" and one.dist]
    if not ours:
        raise RuntimeError("convlab has no metadata: install it by pip, or use a checkout")
    (own, *_) = ours
    named = f"{own.metadata['Name']}[{extra}]"
    if (origin := own.read_text("direct_url.json")) is None:
        return f"{named}=={own.version}"
    try:
        found = msgspec.json.decode(origin, type=_Origin)
    except (ValueError, RecursionError):  # a damaged file, of which a message must not fail
        return f"{named}=={own.version}"
    vcs = found.vcs_info
    return f"{named} @ " + (f"{vcs.vcs}+{found.url}@{vcs.commit_id}" if vcs else found.url)
