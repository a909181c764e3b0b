"""Sphinx's settings. ``build_site.py`` (``make site``) makes the pages and calls Sphinx: the source
folder is build/site-source, where docs/ and the generated pages come together.
"""

from __future__ import annotations

import convlab

project = "convlab"
author = "the convlab authors"
copyright = f"2026, {author}"
version = release = convlab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_ext"]
root_doc = "index"
suppress_warnings = ["myst.header"]  # generated tables choose the size of their headings
# Modules have no pages, docs/design.md tells of them; other projects' pages are not at hand.
nitpick_ignore_regex = [
    ("py:mod", ".*"),
    ("py:.*", r"(collections|contextlib|pathlib|numpy|rich)\..*"),
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
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a58b5", "color-brand-content": "#0a58b5"},
    "dark_css_variables": {"color-brand-primary": "#7ab7ff", "color-brand-content": "#7ab7ff"},
}
html_math_renderer = "mathml"
