"""Three pictures as they should look, for the style: intervals, curves, and stacked bars. They are drawn from made-up
records; what the other pictures show is checked by structure (tests/unit/studies/test_figures.py).

``python -m tests.goldens`` draws them again; look at each that changed before it is committed. A picture is the same to
the byte only with the same matplotlib and FreeType, which lay out its text: ``versions.json`` names those of these.
"""

from pathlib import Path

from bench.analysis import drawing
from bench.studies.registry import study_of
from tests import records

FOLDER = Path(__file__).parent
VERSIONS = FOLDER / "versions.json"


def versions() -> dict[str, str]:
    """What lays out and writes a picture here."""
    import matplotlib
    from matplotlib import ft2font

    return {"matplotlib": matplotlib.__version__, "freetype": ft2font.__freetype_version__}


def pictures() -> dict[str, str]:
    made = {
        "ratios": records.suite("compare", records.compare_programs(), rounds=3),
        "weak-scaling": records.suite("weak", records.scaling_programs("weak"), rounds=3),
        "step": records.suite("breakdown", records.breakdown_programs(), rounds=2),
    }
    figures = {name: study_of(suite).figures(study_of(suite).result(suite))[name] for name, suite in made.items()}
    return {f"{name}.svg": drawing.svg_of(figure) for name, figure in figures.items()}
