"""A page with every kind of finding: a wrong kernel, what the simulator prints, what mends it."""

from __future__ import annotations

import inspect
from html import escape
from typing import Any

from convlab.engines.simulator import Simulator
from convlab.simulation.findings import REMEDIES, SimulationError
from convlab.site import listings
from convlab.site.finding_examples import EXAMPLES, Example
from convlab.site.markup import counted, raw

HEAD = """# Every finding, shown

Each section has a kernel that is wrong in one way, what the strict simulator prints when it
runs, and the kernel mended. This page is made by running them: what is printed is what you get.
[findings.md](findings.md) says what each kind means and what is no finding,
[mutants.md](mutants.md) has many more wrong kernels, and [check.md](check.md) how your own is
checked. Lines are numbered as in [finding_examples.py](../src/convlab/site/finding_examples.py).

```python
import numpy as np, convlab

print(convlab.trace(kernel, grid, block, *arguments).main.findings)
```
"""


def findings_page() -> str:
    """The page, as Markdown. Raises ``AssertionError`` for an example that does not hold."""
    return "\n".join([HEAD, *map(_section, EXAMPLES)])


def run(example: Example, kernel: Any) -> str | None:
    """What the simulator says of a kernel; None where it finds nothing."""
    try:
        Simulator().launch(kernel, example.grid, example.block, *example.arguments())
    except SimulationError as error:
        return str(error)
    return None


def _section(example: Example) -> str:
    said = run(example, example.wrong)
    assert said is not None, example.kind
    assert f"- {example.kind}, " in said, said
    assert run(example, example.mended) is None, example.kind
    threads = f"{counted(example.grid, 'block')} of {example.block} threads"
    arrays = zip("ab", example.arguments(), strict=True)
    sizes = " and ".join(f"`{name}` of {array.size}" for name, array in arrays)
    return "\n".join([
        f"## {example.kind.capitalize()}\n",
        f"{example.story} Launched with {threads}, {sizes}.\n",
        raw(_source(example.wrong)),
        "What the simulator says:\n",
        raw(f'<pre class="said" tabindex="0">{_lines(said)}</pre>'),
        f"**What mends it.** {example.mended_by}\n",
        raw(_source(example.mended)),
        f"In general: {REMEDIES[example.kind]}.\n",
    ])  # fmt: skip


def _lines(said: str) -> str:
    """A line for each finding, which the page wraps."""
    return "".join(f"<span>{escape(line)}\n</span>" for line in said.splitlines())


def _source(kernel: Any) -> str:
    """A kernel's own lines, with their numbers in the file, which the finding names."""
    lines, first = inspect.getsourcelines(kernel.py_func)
    rows = [
        f'<span class="row"><span class="number">{number}</span>{line}\n</span>'
        for number, line in enumerate(listings.highlighted("".join(lines)), first)
    ]
    return (
        '<div class="highlight-python notranslate listing"><div class="highlight">'
        f'<pre tabindex="0">{"".join(rows)}</pre></div></div>'
    )
