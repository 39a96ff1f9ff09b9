"""Figures to files: SVG and PNG, byte for byte the same for the same records. How they look is ``style``'s."""

import re
from pathlib import Path

from bench import files


def svg_of(figure) -> str:
    from bench.analysis import style

    text = rendered(figure, "svg").decode().replace(f"'{style.FONT}'", style.FALLBACK)
    # matplotlib names a clip path after the address of an object: named after its place, it is the same every time.
    clips = list(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', text)))
    return re.sub(r"\b(" + "|".join(clips) + r")\b", lambda m: f"clip{clips.index(m[1])}", text) if clips else text


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.png into a folder, each whole or not at all; returns their paths. Raises OSError."""
    contents = {f"{name}.svg": svg_of(figure).encode(), f"{name}.png": rendered(figure, "png")}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        with files.written_whole(Path(folder) / file) as temporary:
            temporary.write_bytes(content)
    return [Path(folder) / file for file in contents]


def save_all(figures: dict, folder: Path) -> list[Path]:
    return [path for name, figure in figures.items() for path in save(figure, folder / "pictures", name)]


def rendered(figure, kind: str) -> bytes:
    """A picture without the date and the version that would make two files of the same picture differ."""
    import io

    from bench.analysis import style

    names = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    buffer = io.BytesIO()
    style.styled(figure.savefig)(buffer, format=kind, dpi=style.DPI, metadata=dict.fromkeys(names))
    return buffer.getvalue()
