"""Sphinx's settings, and what the site needs beyond Sphinx's own extensions. ``build_site.py``
(``make site``) makes the pages and calls Sphinx; build/site-source has docs/ and those pages.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.ext.autodoc import FunctionDocumenter
from sphinx.parsers import Parser
from sphinx.util import logging
from sphinx.util.nodes import make_refnode

import convlab

project = "convlab"
author = "the convlab authors"
copyright = f"2026, {author}"
version = release = convlab.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
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

# Pages link as a forge needs it, from file to file; on the site docs/ is the root.
LINKS = (
    (r"\]\((?:\.\./)+src/convlab/ladder/\w+/([a-z]\d\d_\w+)\.py\)", r"](/stages/\1.md)"),
    (r"\]\((?:\.\./)+(src|tests|lessons)/", r"](/\1/"),
    (r"\]\((?:\.\./)+docs/README\.md", "](/index.md"),
    (r"\]\((?:\.\./)+docs/", "](/"),
    (r"\]\(((?:\.\./)*)README\.md", r"](\1index.md"),
    (r"\]\(results\)", "](measurements.md)"),
    (r"\[[\w-]+\.md\]\(", "[]("),  # without a text Sphinx puts the page's title
)


def rewrite_links(app: Any, docname: str, source: list[str]) -> None:
    """Make a page's links suit the site."""
    if docname.startswith("lessons/solutions/"):  # a copy of its lesson's link to itself
        source[0] = re.sub(r"\[([^\]]*)\]\(solutions/[^)]*\)", r"\1", source[0])
    for pattern, replacement in LINKS:
        source[0] = re.sub(pattern, replacement, source[0])


class Listing(Parser):
    """A Python file as a page: numbered lines, and every name in the file as a link's target."""

    supported = ("listing",)

    def parse(self, inputstring: str, document: Any) -> None:
        """Called by Sphinx."""
        about = self.env.metadata[self.env.docname]
        about["orphan"] = "True"
        about["myst_slugs"] = {
            node.name: (node.lineno, f"L-{node.lineno}", node.name)
            for node in ast.walk(ast.parse(inputstring))
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
        }
        title = f"{self.env.docname}.py"
        code = nodes.literal_block(inputstring, inputstring, language="python", linenos=True)
        code["highlight_args"] = {"lineanchors": "L", "anchorlinenos": True}
        document += nodes.section("", nodes.title("", title), code, ids=["top"], names=["top"])


class IntrinsicDocumenter(FunctionDocumenter):
    """Numba's intrinsics: callable objects, whose docstring and parameters are a function's."""

    objtype, directivetype = "intrinsic", "function"
    priority = FunctionDocumenter.priority + 1

    @classmethod
    def can_document_member(cls, member: Any, name: str, attr: bool, parent: Any) -> bool:
        return hasattr(member, "_defn")

    def import_object(self, raiseerror: bool = False) -> bool:
        """Called by autodoc: documents the function that the intrinsic wraps."""
        found = bool(super().import_object(raiseerror))
        self.object = getattr(self.object, "_defn", self.object)
        return found

    def format_args(self, **options: Any) -> str:
        """The parameters without Numba's own first one."""
        return re.sub(r"\(typing_?c(onte)?xt(, )?", "(", super().format_args(**options))


def find_public(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Docstrings say ``:class:`Program``` wherever it stands: look for the public name."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rsplit(".", 1)[-1]
    for name, found in env.get_domain("py").objects.items():
        if name.rsplit(".", 1)[-1] == last and name.startswith("convlab."):
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode)
    return None


def check_pictures(app: Any, doctree: Any) -> None:
    """Every picture has words for those who cannot see it: a warning, which fails the build."""
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            logging.getLogger(__name__).warning(
                "picture without alternative text", location=image.parent
            )


def visit_math(self: Any, node: Any) -> None:
    """A formula as MathML, which browsers draw with no script and no network."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_source_suffix(".py", "listing")
    app.add_source_parser(Listing)
    app.add_autodocumenter(IntrinsicDocumenter)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", rewrite_links)
    app.connect("missing-reference", find_public)
    app.connect("doctree-read", check_pictures)
