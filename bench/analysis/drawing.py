"""The pictures. Each module draws one kind from a suite or its result; ``style`` decides how all of them look."""

from pathlib import Path

from bench import files


def figures_of(suite_or_result) -> dict:
    """The pictures that a suite calls for, by name, in the order in which they should be read.

    Raises UserError when the records of the suite cannot be compared. matplotlib is imported here and not before.
    """
    from bench.analysis import memory_figure as memory
    from bench.analysis import style
    from bench.studies.accuracy import figures as accuracy
    from bench.studies.breakdown import step_figure as step
    from bench.studies.compare import figures as compare
    from bench.studies.knobs import figures as knobs
    from bench.studies.lab import figures as lab
    from bench.studies.replay import figures as replay
    from bench.studies.scaling import figures as scaling
    from bench.studies.unsynced import figures as unsynced

    result = style.result_of(suite_or_result)
    drawers = {
        "compare": {
            "ratios": compare.draw,
            "throughput": compare.draw_throughput,
            "memory": memory.draw,
            "memory-over-time": memory.draw_over_time,
        },
        "weak": {"weak-scaling": scaling.draw},
        "strong": {"strong-scaling": scaling.draw},
        "breakdown": {"step": step.draw, "timeline": draw_timeline, "memory": memory.draw},
        "knobs": {"knobs": knobs.draw},
        "replay": {"replay": replay.draw},
        "accuracy": {"accuracy": accuracy.draw},
        "lab": {"lab": lab.draw},
        "unsynced": {
            "replica-distance": unsynced.draw,
            "accuracy-by-rank": unsynced.draw_ranks,
            "seed-pairs": unsynced.draw_pairs,
        },
    }.get(result.suite.kind, {"ratios": compare.draw})
    drawn = {name: draw(result) for name, draw in drawers.items()}
    return {name: figure for name, figure in drawn.items() if figure is not None}


def draw_timeline(result):
    """One step of each mode, where the suite has a profiled run that holds a timeline; else None."""
    from bench.studies.breakdown import timeline_figure as timeline

    parts = [part for record in result.suite.extra for part in record["samples"]]
    return timeline.draw(result) if any(part.get("timeline") for part in parts) else None


def svg_of(figure) -> str:
    """A picture as SVG text, byte for byte the same for the same records and the same matplotlib."""
    from bench.analysis import style

    return rendered(figure, "svg").decode().replace(f"'{style.FONT}'", style.FALLBACK)


def save(figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.svg and NAME.png into a folder, which is made if need be; returns their paths.

    Each is written whole or not at all. Raises OSError.
    """
    contents = {f"{name}.svg": svg_of(figure).encode(), f"{name}.png": rendered(figure, "png")}
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file, content in contents.items():
        with files.written_whole(Path(folder) / file) as temporary:
            temporary.write_bytes(content)
    return [Path(folder) / file for file in contents]


def rendered(figure, kind: str) -> bytes:
    """A picture without the date and the version that would make two files of the same picture differ."""
    import io

    from bench.analysis import style

    names = ("Date", "Creator", "Format", "Type") if kind == "svg" else ("Software",)
    buffer = io.BytesIO()
    style.styled(figure.savefig)(buffer, format=kind, dpi=style.DPI, metadata=dict.fromkeys(names))
    return buffer.getvalue()
