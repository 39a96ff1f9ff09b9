"""A formula in TeX as a picture inside a page, drawn by matplotlib: no script from elsewhere, no network."""

import base64
import html
import io


def picture(formula: str, kind: str) -> str:
    """An ``<img>`` of a formula. kind: "inline" or "block". Raises ValueError for what matplotlib cannot read."""
    from matplotlib import mathtext
    from matplotlib.font_manager import FontProperties

    formula, file = " ".join(formula.split()), io.BytesIO()
    points = FontProperties(size=12 if kind == "inline" else 15)
    depth = mathtext.math_to_image(f"${formula}$", file, prop=points, dpi=72, format="svg")
    data, alt = base64.b64encode(file.getvalue()).decode(), html.escape(formula, quote=True)
    style = f' style="vertical-align: -{depth:.1f}pt"' if kind == "inline" else ""
    return f'<img class="formula {kind}" alt="{alt}"{style} src="data:image/svg+xml;base64,{data}">'
