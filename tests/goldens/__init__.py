"""Pictures as they should look: one of each kind, drawn from made-up records.

``python -m tests.goldens`` draws them all anew; look at each that changed before it is committed. A picture is the same
to the byte only with the same matplotlib and FreeType, which lay out its text: ``versions.json`` names those of these.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from bench.analysis import drawing
from bench.analysis.suite import Suite, suites_of
from bench.predict.pictures import figures as forecast_figures
from bench.predict.pictures.points import Points
from bench.predict.step import result
from bench.report import pool_figure, pooling
from bench.studies.registry import study_of
from bench.tasks.network import result as network_result
from tests import forecasts, networks, records

FOLDER = Path(__file__).parent
VERSIONS = FOLDER / "versions.json"


def versions() -> dict[str, str]:
    """What lays out and writes a picture here."""
    import matplotlib
    from matplotlib import ft2font

    return {"matplotlib": matplotlib.__version__, "freetype": ft2font.__freetype_version__}


def drawn_with() -> dict[str, str]:
    """The versions with which the pictures in this folder were drawn."""
    return json.loads(VERSIONS.read_text())


def suites() -> dict[str, tuple[Suite, tuple[str, ...]]]:
    """Name -> a suite, and which of its study's pictures are of another kind than those before it; none: all are."""
    unfair = records.compare_programs()
    unfair["ddp"] |= {"compression": "fp16", "throughput": [91.0, 91.2, 90.8, 140.0, 91.1]}
    programs = records.compare_programs()
    where = [{"file": "bench/training/epochs.py", "line": 7, "function": "f", "collective": True}, None]
    return {
        "compare": (records.suite("compare", programs, rounds=3), ()),
        "one-round": (records.suite("compare", programs, rounds=1), ("ratios",)),
        "unfair": (records.suite("compare", unfair, rounds=5), ("ratios",)),
        "gpu": (records.suite("compare", programs, rounds=2, device="cuda"), ("memory", "memory-over-time")),
        "weak": (records.suite("weak", records.scaling_programs("weak"), rounds=3), ()),
        "strong": (records.suite("strong", records.scaling_programs("strong", (2, 4, 16)), rounds=3), ()),
        "breakdown": (suite_of(records.profiled_records()), ("step", "timeline")),
        "knobs": (records.suite("knobs", records.knob_programs(), rounds=3), ()),
        "settings": (records.suite("knobs", records.format_programs(), rounds=3), ()),
        "replay": (records.suite("replay", records.replay_programs(), rounds=3), ()),
        "accuracy": (records.suite("accuracy", records.accuracy_programs(), rounds=3), ()),
        "unsynced": (records.suite("unsynced", records.unsynced_programs(), rounds=4), ()),
        "measures": (suite_of(records.lab_records("no-reshuffle")), ()),
        "curves": (suite_of(records.lab_records("whole-data")), ()),
        "losses": (suite_of(records.lab_records("gradient-sum")), ()),
        "ranks": (suite_of(records.lab_records("rank-metrics")), ()),
        "files": (suite_of(records.lab_records("many-writers")), ()),
        "places": (suite_of(records.lab_records("rank0-collective", hung=where)), ()),
    }


def suite_of(found: list) -> Suite:
    """The one suite of these records."""
    (suite,) = suites_of(found)
    return suite


def figures() -> Iterator[tuple]:
    """(name, figure) of each picture."""
    for name, (suite, chosen) in suites().items():
        study = study_of(suite)
        for picture, drawn in study.figures(study.result(suite)).items():
            if not chosen or picture in chosen:
                yield f"{name}-{picture}", drawn
    cluster = {"ranks": 4, "nodes": ("node1", "node2"), "label": "2 namespaces of one machine, 100 Mbit/s",
               "beta": 80e-9, "left_out": (2**26, 2**28)}  # fmt: skip
    for name, made in {"network": {"noise": 0.1}, "network-cluster": cluster}.items():
        yield name, network_result.draw(networks.both(**made))
    yield from of_forecast().items()
    yield "pool", pool_figure.draw(pooling.panels_of(records_of_two_machines()))
    yield from pool_figure.single_runs_figures(single_runs()).items()


def single_runs() -> list:
    """Runs made one by one, of two networks; one mode ran twice."""
    made = [("dp", 80.0, {}), ("ddp", 100.0, {}), ("ddp", 110.0, {}), ("horovod", 95.0, {"fusion_mb": 1}),
            ("ddp", 30.0, {"model": "alexnet", "image_size": 64})]  # fmt: skip
    return [records.record(mode, rate, seconds=at, **more) for at, (mode, rate, more) in enumerate(made)]


def of_forecast() -> dict:
    """A forecast's pictures, with two measured rounds and emulations, one with a timeline."""
    asked = forecasts.asked()
    found = [result.forecast(asked.profile, config, ranks, asked.link) for config in asked.configs.values()
             for ranks in (2, 8)]  # fmt: skip
    points = Points([forecasts.measured(throughput=each) for each in (120.0, 126.0)],
                    [forecasts.emulated(asked.profile, ranks=8, step_s=0.52, watched=True),
                     forecasts.emulated(asked.profile, "fsdp", dilate=7.0, step_s=0.8)])  # fmt: skip
    return forecast_figures.figures(asked, found, points)


def records_of_two_machines() -> list:
    """Comparisons on a machine without and on one with GPUs."""
    programs = records.compare_programs()
    found = records.suite_records("compare", programs, rounds=3)
    return found + records.suite_records("compare", programs, rounds=2, name="0002", device="cuda")


def pictures() -> dict[str, str]:
    """File name -> SVG, of every picture."""
    return {f"{name}.svg": drawing.svg_of(figure) for name, figure in figures()}


def renew() -> None:
    """Write all pictures and the versions that drew them, and remove those that are no longer drawn."""
    drawn = pictures()
    for path in FOLDER.glob("*.svg"):
        if path.name not in drawn:
            path.unlink()
    for name, svg in drawn.items():
        (FOLDER / name).write_text(svg, encoding="utf-8")
    VERSIONS.write_text(json.dumps(versions(), indent=2) + "\n")
