"""How Sphinx makes the site of the course (`make site`). Nothing on a page comes from another host."""

import html

from docutils import nodes
from sphinx.util import logging

from bench.course.formula import picture

project = "Data-parallel training"
html_title = "Data-parallel training"
language = "en"
extensions = ["myst_nb"]

nb_execution_mode = "off"  # the chapters have been executed by `bench notebooks`
nb_merge_streams = True
nb_ipywidgets_js = {}  # they would come from another host; no chapter uses widgets
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False  # $5 is money
html_math_renderer = "mathtext"  # MathJax would come from another host

html_theme = "sphinx_book_theme"
html_theme_options = {
    "use_fullscreen_button": False,
    "use_download_button": True,
    "show_navbar_depth": 1,
    "navbar_persistent": [],
    "footer_content_items": [],
}
html_context = {"default_mode": "light"}
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False


def drawn(node: nodes.Node, kind: str) -> str:
    """A formula as a picture in the page. One that cannot be read is a warning."""
    try:
        return picture(node.astext(), kind)
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), reason, location=node)
        return html.escape(node.astext())


def inline(writer, node: nodes.math) -> None:
    """A formula in a line."""
    writer.body.append(drawn(node, "inline"))
    raise nodes.SkipNode


def block(writer, node: nodes.math_block) -> None:
    """A formula in a line of its own."""
    writer.body.append(f"<p>{drawn(node, 'block')}</p>")
    raise nodes.SkipNode


def setup(app) -> dict:
    """Sphinx calls this."""
    app.add_html_math_renderer("mathtext", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True}
