"""TeX formulas as pictures inside a page, drawn by matplotlib, because MathJax would come from another host.

Also a Sphinx extension (``setup``).
"""

import base64
import html
import io


def picture(formula: str, kind: str) -> str:
    """An ``<img>`` of a formula. kind: "inline" or "block". Raises ValueError if matplotlib cannot parse it."""
    from matplotlib import mathtext
    from matplotlib.font_manager import FontProperties

    formula, file = " ".join(formula.split()), io.BytesIO()
    points = FontProperties(size=12 if kind == "inline" else 15)
    depth = mathtext.math_to_image(f"${formula}$", file, prop=points, dpi=72, format="svg")
    data, alt = base64.b64encode(file.getvalue()).decode(), html.escape(formula, quote=True)
    style = f' style="vertical-align: -{depth:.1f}pt"' if kind == "inline" else ""
    return f'<img class="formula {kind}" alt="{alt}"{style} src="data:image/svg+xml;base64,{data}">'


def render(writer, node, kind: str) -> None:
    from docutils.nodes import SkipNode
    from sphinx.util import logging

    try:
        body = picture(node.astext(), kind)
    except ValueError as error:
        reason = str(error).strip().splitlines()[-1]
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), reason, location=node)
        body = html.escape(node.astext())
    writer.body.append(body if kind == "inline" else f"<p>{body}</p>")
    raise SkipNode


def render_inline(writer, node) -> None:
    render(writer, node, "inline")


def render_block(writer, node) -> None:
    render(writer, node, "block")


def setup(app) -> dict:
    app.add_html_math_renderer("mathtext", inline_renderers=(render_inline, None), block_renderers=(render_block, None))
    return {"parallel_read_safe": True}
