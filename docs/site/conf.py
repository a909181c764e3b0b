"""Sphinx's settings, and the site's own extensions of Sphinx.

``build_site.py`` (``make site``) collects the pages in build/site-source and calls Sphinx.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any
from unittest import mock

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.addnodes import toctree
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
# Modules have no pages of their own (docs/design.md lists them), and other projects' pages are
# not available without a network.
nitpick_ignore_regex = [
    ("py:mod", ".*"),
    ("py:.*", r"(collections|contextlib|pathlib|numpy|numba|rich)\..*"),
    # Types in signatures that are no part of the reference: any library's arrays and streams.
    ("py:class", r"convlab\.problems\.arrays\.(Array|ArrayT|ApiArrayT)"),
    ("py:class", r"convlab\.running\.engines\.(CudaStream|Packed|Start|Stream)"),
    ("py:class", r"convlab\.(ladder\.stage\.Kernel|simulation\.recording\.loops\.ResultT)"),
    ("py:class", r"convlab\.(problems\.number_types\.NumberType|ladder\.stage_choice\.GpuLimits)"),
    ("py:class", r"convlab\.(problems\.oracle\.Allowances|simulation\..*\.(Result|Requests))"),
]
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# The site shows the stored outputs of notebooks. A test of their own runs the notebooks.
nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # the default loads scripts from the network
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
html_show_search_summary = False  # browsers do not fetch it for a page that is opened as a file
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0a58b5", "color-brand-content": "#0a58b5"},
    "dark_css_variables": {"color-brand-primary": "#7ab7ff", "color-brand-content": "#7ab7ff"},
}
html_math_renderer = "mathml"

# In the repository pages link from file to file. On the site docs/ is the root.
LINKS = (
    (
        r"\]\((?:\.\./)+src/convlab/ladder/(?!gradients)\w+/([a-z]\d\d_\w+)\.py\)",
        r"](/stages/\1.md)",
    ),
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
    """A parser that shows a Python file as a page, with each name in it as the target of links."""

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
    """A documenter of Numba's intrinsics, which are objects that wrap a function."""

    objtype, directivetype = "intrinsic", "function"
    priority = FunctionDocumenter.priority + 1

    @classmethod
    def can_document_member(cls, member: Any, name: str, attr: bool, parent: Any) -> bool:
        return hasattr(member, "_defn")

    def import_object(self, raiseerror: bool = False) -> bool:
        """Import the intrinsic and document the function that it wraps; autodoc calls this."""
        found = bool(super().import_object(raiseerror))
        self.object = getattr(self.object, "_defn", self.object)
        return found

    def format_args(self, **options: Any) -> str:
        """Return the parameters without Numba's typing context, the first of them."""
        return re.sub(r"\(typing_?c(onte)?xt(, )?", "(", super().format_args(**options))


def find_public(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve a reference such as ``:class:`Program``` to the object of that public name."""
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rsplit(".", 1)[-1]
    for name, found in env.get_domain("py").objects.items():
        if name.rsplit(".", 1)[-1] == last and name.startswith("convlab."):
            return make_refnode(app.builder, node["refdoc"], found.docname, found.node_id, contnode)
    return None


def check_pictures(app: Any, doctree: Any) -> None:
    """Fit pictures to the page, and warn of each without alternative text, which fails the build.

    Sphinx links a picture that has a width to its file, which a phone shows at full size.
    """
    for image in doctree.findall(nodes.image):
        image.setdefault("width", "100%")
        if not image.get("alt", "").strip():
            logging.getLogger(__name__).warning(
                "picture without alternative text", location=image.parent
            )


def visit_math(self: Any, node: Any) -> None:
    """Write a formula as MathML, which browsers draw without a script or a network."""
    block = isinstance(node, nodes.math_block)
    formula = tex2mathml(node.astext(), as_block=block)
    self.body.append(f'<div class="formula">{formula}</div>' if block else formula)
    raise nodes.SkipNode


@cache
def without_sections(env: Any) -> dict[str, Any]:
    """Return the tables of contents of all pages, without sections where no page follows them."""
    contents = {}
    for page, table in env.tocs.items():
        contents[page] = table.deepcopy()
        if not any(table.findall(toctree)):
            for title in contents[page]:
                del title[1:]
    return contents


def make_menu_of_titles(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: Any
) -> None:
    """Let the theme make its menu, which has no sections, without a copy of every section of every
    page for each page: a quarter of the build."""
    usual = context["toctree"]

    def made(**options: Any) -> str:
        tables = without_sections(app.env) if options.get("titles_only") else app.env.tocs
        with mock.patch.object(app.env, "tocs", tables):
            return str(usual(**options))

    context["toctree"] = made


def setup(app: Any) -> None:
    """Register the site's extensions; Sphinx calls this."""
    app.add_source_suffix(".py", "listing")
    app.add_source_parser(Listing)
    app.add_autodocumenter(IntrinsicDocumenter)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("source-read", rewrite_links)
    app.connect("missing-reference", find_public)
    app.connect("doctree-read", check_pictures)
    app.connect("html-page-context", make_menu_of_titles, priority=400)  # the theme's has 500
