"""Sphinx's settings. ``python -m convlab.site`` (``make site``) makes the pages and calls Sphinx:
the source folder is build/site-source, where docs/ and the generated pages come together.
"""

from __future__ import annotations

from typing import Any

import convlab

project = "convlab"
author = "the convlab authors"
copyright = f"2026, {author}"
version = release = convlab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["_static", "extra"]
suppress_warnings = ["myst.header"]  # generated tables choose the size of their headings
# Modules have no pages, docs/design.md tells of them; other projects' pages are not at hand.
nitpick_ignore_regex = [
    ("py:mod", ".*"),
    ("py:.*", r"(collections|contextlib|pathlib|numpy)\..*"),
]
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# Notebooks are shown as they were run; a test of their own runs them.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # no network: the default loads scripts from one
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "convlab"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it is fetched, which browsers refuse to pages opened as files
html_extra_path = ["../build/site-source/extra"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a58b5", "color-brand-content": "#0a58b5"},
    "dark_css_variables": {"color-brand-primary": "#7ab7ff", "color-brand-content": "#7ab7ff"},
}
html_math_renderer = "mathml"  # no script and no network: browsers draw MathML themselves


def as_mathml(tex: str, *, block: bool) -> str:
    """A formula of TeX as MathML."""
    from docutils.utils.math.latex2mathml import tex2mathml

    return str(tex2mathml(tex, as_block=block))


def visit_math(self: Any, node: Any) -> None:
    """A formula among words."""
    from docutils import nodes

    self.body.append(as_mathml(node.astext(), block=False))
    raise nodes.SkipNode


def visit_displaymath(self: Any, node: Any) -> None:
    """A formula by itself."""
    from docutils import nodes

    self.body.append(f'<div class="formula">{as_mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def find_public(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Docstrings say ``:class:`Program``` wherever it stands: look for the public name."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rsplit(".", 1)[-1]
    for name, found in env.get_domain("py").objects.items():
        if name.rsplit(".", 1)[-1] == last and name.startswith("convlab."):
            from sphinx.util.nodes import make_refnode

            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode)
    return None


def setup(app: Any) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("missing-reference", find_public)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
