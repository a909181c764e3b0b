"""The stages that an engine can run, and why it cannot run the others."""

from __future__ import annotations

from collections.abc import Iterable

from convlab.ladder import LADDER, Stage
from convlab.ladder.stage import Capability
from convlab.running.engines import Engine, EngineUnavailable


def why_too_old(stages: Iterable[Stage], capability: Capability | None, gpu: str) -> str | None:
    """Return a sentence that names the stages which a GPU of that name and compute capability
    cannot run, and their needs; None where it runs them all."""
    needed: dict[str, list[str]] = {}
    for stage in stages:
        if (must := stage.requires) is not None and not stage.runs_on(capability):
            needs, has = (".".join(map(str, pair)) for pair in (must.capability, capability or ()))
            others = ", no other" if must.exact else " or higher"
            what = f"a GPU of compute capability {needs}{others}, for {must.feature}"
            needed.setdefault(f"{what}: {gpu} has {has}", []).append(stage.name)
    sentences = (
        f"stage {names[0]} needs {what}"
        if len(names) == 1
        else f"stages {', '.join(names)} need {what}"
        for what, names in needed.items()
    )
    return "; ".join(sentences) or None


def check_runs(stage: Stage, engine: Engine) -> None:
    """Raise ``EngineUnavailable`` where the engine's GPU cannot run the stage."""
    if (reason := why_too_old((stage,), engine.capability(), engine.device)) is not None:
        raise EngineUnavailable(reason)


def stages_for(
    engine: Engine, among: tuple[Stage, ...] = LADDER
) -> tuple[tuple[Stage, ...], str | None]:
    """The stages that can run on an engine, and, if some cannot, which and why."""
    able = tuple(stage for stage in among if stage.runs_on(engine.capability()))
    reasons = [why_too_old(among, engine.capability(), engine.device)]
    by_library = [stage for stage in among if calls_a_library(stage)]
    # The search for a library imports it, so search only if a stage needs one.
    if by_library and (lacking := engine.why_no_library()) is not None:
        able = tuple(stage for stage in able if stage not in by_library)
        reasons.append(f"{', '.join(stage.name for stage in by_library)}: {lacking}")
    return able, "; ".join(filter(None, reasons)) or None


def calls_a_library(stage: Stage) -> bool:
    """Return whether a library computes a part of the stage."""
    try:
        return stage.needs_library
    except Exception:  # a stage that cannot be prepared fails when it is run, with its reason
        return False
