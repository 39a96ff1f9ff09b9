"""An executed notebook made small enough to be committed: pictures of few colours, no paths of this machine."""

import base64
import io
import sys
from pathlib import Path

from bench.files import PROJECT

COLOURS, WIDTH = 24, 720  # of a picture, at most: lines, text and a few fills need no more; pixels
MOST_BYTES = 300_000  # of a committed notebook


def made_light(notebook):
    """The notebook, changed: its pictures in fewer colours, the project's own folder taken out of what was printed."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = without_own_folder(output["text"])
            for kind, data in output.get("data", {}).items():
                output["data"][kind] = few_colours(data) if kind == "image/png" else without_own_folder(data)
    return notebook


def few_colours(png: str) -> str:
    """A PNG in base64 as one of at most COLOURS colours."""
    from PIL import Image

    small = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    picture.thumbnail((WIDTH, picture.height), Image.Resampling.LANCZOS)
    few = picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)  # keeps the marks' hues
    few.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def without_own_folder(text: str) -> str:
    """A text in which files of the project, of its environment and of Python have the names that they have in it."""
    if not isinstance(text, str):
        return text
    for folder in (PROJECT, Path(sys.prefix).resolve(), Path(sys.base_prefix)):
        text = text.replace(f"{folder}/", "")
    return text.replace(str(PROJECT), ".")
