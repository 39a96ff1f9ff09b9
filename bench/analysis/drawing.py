"""Figures as SVG files, identical bytes for identical records. ``style`` defines their look."""

import re
from pathlib import Path

from bench import files


def svg_of(figure) -> str:
    from bench.analysis import style

    text = rendered(figure, "svg").decode().replace(f"'{style.FONT}'", style.FALLBACK)
    # matplotlib names a clip path after the address of an object; a name by its position is reproducible.
    clips = list(dict.fromkeys(re.findall(r'<clipPath id="(\w+)"', text)))
    return re.sub(r"\b(" + "|".join(clips) + r")\b", lambda m: f"clip{clips.index(m[1])}", text) if clips else text


def save(figure, folder: Path, name: str) -> Path:
    """Write NAME.svg into a folder atomically; returns its path. Raises OSError."""
    path, content = Path(folder) / f"{name}.svg", svg_of(figure).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return path


def save_all(figures: dict, folder: Path) -> list[Path]:
    return [save(figure, folder / "pictures", name) for name, figure in figures.items()]


def rendered(figure, kind: str) -> bytes:
    """A figure without date and version, so that files of the same figure are identical."""
    import io

    from bench.analysis import style

    names = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    buffer = io.BytesIO()
    style.styled(figure.savefig)(buffer, format=kind, dpi=style.DPI, metadata=dict.fromkeys(names))
    return buffer.getvalue()
