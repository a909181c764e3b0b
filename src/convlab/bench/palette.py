"""The colours of the documentation's pictures, which read on a light card and on a dark one."""

from __future__ import annotations

# Of words, axes and the card behind them; what plots show has the same colours on both cards.
LIGHT = {"panel": "#ffffff", "ink": "#1f2328", "quiet": "#59636e", "line": "#d1d9e0"}
DARK = {"panel": "#1c2129", "ink": "#e4e8ef", "quiet": "#98a2b5", "line": "#303743"}
CARD, INK, QUIET, LINE = LIGHT.values()
# At least 3:1 against both cards; shapes tell them apart without colour.
COLOURS = (
    "#2f7fd6", "#c9731a", "#2e9e5b", "#9a6fd0", "#d6455d", "#7d8590", "#16969b", "#b0559c",
    "#8a7a1f", "#5c7a99",
)  # fmt: skip


def with_dark_mode(svg: str) -> str:
    """A picture that is a file of its own, and takes the dark card where a reader's pages are dark.
    Programs that know nothing of that show the light one."""
    rules = []
    for name, light in LIGHT.items():
        for what in ("fill", "stroke"):
            rules.append(
                f'[{what}="{light}"], [style*="{what}: {light}"] '
                f"{{ {what}: {DARK[name]} !important }}"
            )
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    head, end, rest = svg.partition(">")
    return f"{head}{end}\n{style}{rest}"
