"""A Sphinx extension: formulas as pictures inside a page, drawn by matplotlib. MathJax would come from another host."""

import html

from docutils import nodes
from sphinx.util import logging

from bench.course.formula import picture


def drawn(node: nodes.Node, kind: str) -> str:
    """A formula as a picture in the page. One that cannot be read is a warning."""
    try:
        return picture(node.astext(), kind)
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), reason, location=node)
        return html.escape(node.astext())


def inline(writer, node: nodes.math) -> None:
    writer.body.append(drawn(node, "inline"))
    raise nodes.SkipNode


def block(writer, node: nodes.math_block) -> None:
    writer.body.append(f"<p>{drawn(node, 'block')}</p>")
    raise nodes.SkipNode


def setup(app) -> dict:
    app.add_html_math_renderer("mathtext", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True}
