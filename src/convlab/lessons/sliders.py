"""Pictures with a slider: one picture for each value of a setting, such as a stride.

In a notebook the slider is ipywidgets', where that is installed. Everywhere else, also on the site,
it is HTML with a line of script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.util import find_spec
from typing import Any

from convlab.lessons.pictures import Picture, explanation

WIDGET = "application/vnd.jupyter.widget-view+json"
MOVED = (
    "const all=this.closest('div').querySelectorAll('figure');"
    "all.forEach((one,n)=>{one.style.display=n==this.value?'block':'none'});"
    "this.nextElementSibling.value=all[this.value].dataset.value"
)
SHOWN, HIDDEN = "margin:0", "margin:0;display:none"  # styles of a figure


@dataclass(frozen=True)
class Slider:
    """Pictures by the values of a setting, of which a slider shows one."""

    name: str
    pictures: Sequence[tuple[str, Picture]] = field(repr=False)

    @property
    def alt(self) -> str:
        """The alternative texts of all pictures."""
        return "; ".join(f"{self.name} = {value}: {one.alt}" for value, one in self.pictures)

    def figures(self) -> list[str]:
        """Return each picture with its caption, as HTML."""
        return [f"{one.html}<p><em>{_code(one.caption)}</em></p>" for _, one in self.pictures]

    def html(self) -> str:
        """Return the pictures with a slider that needs no notebook."""
        first = escape(self.pictures[0][0])
        figures = "".join(
            f'<figure data-value="{escape(value)}" style="{SHOWN if n == 0 else HIDDEN}">'
            f"{figure}</figure>"
            for n, ((value, _), figure) in enumerate(
                zip(self.pictures, self.figures(), strict=True)
            )
        )
        return (
            f'<div class="slider"><label>{escape(self.name)}: <input type="range" min="0" '
            f'max="{len(self.pictures) - 1}" value="0" autocomplete="off" oninput="{MOVED}"> '
            f"<output>{first}</output></label>{figures}{self._legend()}</div>"
        )

    def _legend(self) -> str:
        said = explanation(*(picture for _, picture in self.pictures))
        return f"<p><em>{_code(said)}</em></p>" if said else ""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        shown = {"text/html": self.html(), "text/plain": self.alt}
        if find_spec("ipywidgets") is not None:
            shown[WIDGET] = self.widget()._repr_mimebundle_()[WIDGET]
        display(shown, raw=True)

    def widget(self) -> Any:
        """Return ipywidgets' slider above the picture. Raises ``ImportError`` without it."""
        import ipywidgets

        figures, legend = self.figures(), self._legend()
        values = [value for value, _ in self.pictures]
        slider = ipywidgets.SelectionSlider(options=values, description=self.name)
        shown = ipywidgets.HTML(figures[0] + legend)

        def move(change: Any) -> None:
            shown.value = figures[values.index(change["new"])] + legend

        slider.observe(move, names="value")
        return ipywidgets.VBox([slider, shown])


def slider(draw: Callable[[Any], Picture], **setting: Sequence[Any]) -> Slider:
    """Return the pictures that ``draw`` makes for each value of one setting, with a slider:
    ``slider(draw, stride=(1, 2, 4))``. Raises ``ValueError`` unless there is one setting, with two
    values or more."""
    if len(setting) != 1:
        raise ValueError(f"settings are {', '.join(setting) or 'none'}: there must be one")
    ((name, values),) = setting.items()
    if len(values) < 2:
        raise ValueError(f"{name} is {values!r}: it must have two values or more")
    return Slider(name, [(str(value), draw(value)) for value in values])


def _code(caption: str) -> str:
    """Return a caption in Markdown as HTML."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(caption, quote=False))
