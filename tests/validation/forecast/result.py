"""What `python -m tests.validation.forecast` leaves in its folder: forecast-check.json, with one row for each setting.

A row has the seconds that were emulated, and what the forecast says of them. The forecast can be computed again from
the rows and the profiles beside them, without another emulation.

Nothing is fitted: the terms in bench/formulas.py come from what Gloo's source does. The division says which
settings' errors may decide on a term, and which are only for judging.
"""

import itertools
import json
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench import files
from bench.analysis.tables import Grid
from bench.config.options import RunConfig
from bench.measure.environment import cores_in_words
from bench.predict.emulation.record import EmulationRecord
from bench.predict.emulation.record import draw_factors as factors_of
from bench.predict.step import engines, link
from bench.predict.step import profile as profiles
from bench.predict.step.profile import Profile
from bench.record.view import Record
from tests.validation.forecast import measured, settings
from tests.validation.forecast.settings import Setting

NAME, KEY = "forecast-check.json", "forecast_check_version"
SCATTER = 0.1  # of the steps of an emulation, beyond which there is one more, and the steadier counts
SETS = ("made with", "judged by")
KEPT = ("name", "model", "engine", "nodes", "rate_mbit", "dilate", "made_with", "steps_s", "runs_s", "cpu_share",
        "emulated")  # fmt: skip


def read_records(folder: Path) -> dict[str, Record]:
    """The record of each model's profile, from profile-MODEL.json in the folder. Raises UserError."""
    return {model: profiles.record_at(str(folder / f"profile-{model}.json")) for model in settings.MODELS}


def read_profiles(folder: Path) -> dict[str, Profile]:
    """The profile of each model, of these records. Raises UserError."""
    return {model: profiles.profile_of(record, folder) for model, record in read_records(folder).items()}


def read(folder: Path) -> dict:
    """What is there already; a beginning where nothing is."""
    return read_file(Path(folder) / NAME, KEY)


def read_file(path: Path, key: str) -> dict:
    """A file's content; a beginning where there is none. key: of its version."""
    return json.loads(path.read_text()) if path.exists() else {key: 1, "rows": []}


def names(data: dict) -> set[str]:
    """Of the settings that have been emulated."""
    return {row["name"] for row in data["rows"]}


def take(data: dict, other: dict, wanted: list[Setting]) -> None:
    """Add the rows of the other check for what is wanted."""
    missing = {setting.name: setting for setting in wanted}
    taken = [row | {"made_with": missing[row["name"]].made_with} for row in other["rows"] if row["name"] in missing]
    data["rows"] += taken
    if taken:
        data.setdefault("environment", other["environment"])


def left(found: dict[str, Profile], there: Iterable[str] = ()) -> list[Setting]:
    """What is to be emulated, the shortest first. there: the names of what has been."""
    return [setting for setting in settings.drawn(found) if setting.name not in there]


def row_of(setting: Setting, profile: Profile, record: EmulationRecord) -> dict:
    """A setting's row from one emulation, without the prediction. steps_s: of each timed step; runs_s: the mean step of
    each emulation; cpu_share: of the CPU, what was in use; emulated: how many emulations there were."""
    return {
        "name": setting.name, "model": setting.model, "engine": setting.engine.name, "nodes": setting.nodes,
        "rate_mbit": setting.rate_mbit, "dilate": setting.dilate(profile), "made_with": setting.made_with,
        "steps_s": record.steps_s, "runs_s": [statistics.fmean(record.steps_s)], "cpu_share": record.cpu_share,
        "emulated": 1,
    }  # fmt: skip


def mean_of(rows: list[dict]) -> dict:
    """A setting's row from those of its emulations, in which the ranks drew the same: the mean of each timed step."""
    return rows[0] | {
        "steps_s": [statistics.fmean(steps) for steps in zip(*(row["steps_s"] for row in rows), strict=True)],
        "runs_s": list(itertools.chain.from_iterable(row["runs_s"] for row in rows)),
        "cpu_share": statistics.fmean(row["cpu_share"] for row in rows),
        "emulated": sum(row["emulated"] for row in rows),
    }


def scatter(row: dict, profile: Profile) -> float:
    """How far apart the steps are, each over what is predicted of it: on an idle machine they are nearly equal."""
    ratios = [seconds / said for seconds, said in zip(row["steps_s"], predicted_s(row, profile), strict=True)]
    return (max(ratios) - min(ratios)) / statistics.median(ratios)


def predicted_s(row: dict, profile: Profile) -> list[float]:
    """The forecast of each timed step, with the computation that its slowest rank drew."""
    engine = next(each for each in settings.ENGINES if each.name == row["engine"])
    config = RunConfig(mode=engine.mode, num_devices=2, **engine.options)
    over = link.parse_link(f"{row['rate_mbit']}mbit,0us", "gloo")
    forecast = engines.ENGINES[engine.mode]
    return [forecast(profile.slower(max(drew)), config, row["nodes"], over).seconds
            for drew in drawn_factors(row, profile)]  # fmt: skip


def drawn_factors(row: dict, profile: Profile) -> list[list[float]]:
    """By how much longer than the median each rank's computation is, in each timed step."""
    draws = [factors_of(profile.factors, RunConfig().seed, rank) for rank in range(row["nodes"])]
    steps = [[next(draw) for draw in draws] for _ in range(settings.WARMUP + len(row["steps_s"]))]
    return steps[settings.WARMUP :]


def errors(rows: list[dict], found: dict[str, Profile]) -> list[float]:
    """Of each row, predicted over emulated, less 1."""
    return [statistics.fmean(predicted_s(row, found[row["model"]])) / statistics.fmean(row["steps_s"]) - 1
            for row in rows]  # fmt: skip


def counted(reasons: Iterable[str]) -> dict[str, int]:
    """How many combinations are left out, by why."""
    return dict(sorted(Counter(why for why in reasons if why).items()))


def figures(off: list[float]) -> dict:
    """Median and worst of errors, both without their sign."""
    sizes = [abs(each) for each in off]
    return {"n": len(sizes)} | ({"median": statistics.median(sizes), "worst": max(sizes)} if sizes else {})


def judged(data: dict, found: dict[str, Profile]) -> dict:
    """The file's content: the rows with their predictions, and the figures of both sets."""
    rows = [{name: row[name] for name in KEPT} for row in data["rows"]]
    for row, off in zip(rows, errors(rows, found), strict=True):
        row["emulated_s"] = statistics.fmean(row["steps_s"])
        row["predicted_s"], row["off"] = row["emulated_s"] * (1 + off), off
    drawing = {
        "seed": settings.SEED, "settings": len(settings.drawn(found)),
        "left_out": counted(each.why_not(found[each.model]) for each in settings.everything()),
        "warmup": settings.WARMUP, "steps": settings.STEPS,
    }  # fmt: skip
    by_set = {name: figures([row["off"] for row in rows if row["made_with"] == (name == SETS[0])]) for name in SETS}
    head = {name: data[name] for name in (KEY, "environment") if name in data}
    runs = list(measured.judged(data.get(measured.NAME, ()), found))
    more = {measured.NAME: runs} if runs else {}
    return head | {"drawing": drawing, "figures": by_set, "rows": rows} | more


def write(folder: Path, data: dict) -> Path:
    """The file, whole or not at all."""
    return write_file(Path(folder) / NAME, data)


def write_file(path: Path, data: dict) -> Path:
    """A file, whole or not at all."""
    with files.atomic_write(path) as temporary:
        temporary.write_text(json.dumps(data, indent=1) + "\n")
    return path


# --- in tables and in words ---------------------------------------------------------------------------------------


def grid(data: dict) -> Grid:
    """A row for each engine and set: how many settings, the median and the worst error."""
    head = [("engine", False), *((f"{name}:\n{what}", True) for name in SETS for what in ("n", "median", "worst"))]
    names = [engine.name for engine in settings.ENGINES]
    rows = [[name, *cells(row for row in data["rows"] if row["engine"] == name)] for name in names]
    return Grid(head, [*rows, ["all", *cells(data["rows"])]], "predicted against emulated, how far off")


def grids(data: dict) -> list[Grid]:
    """What the command prints."""
    return [grid(data), *([measured.grid(data[measured.NAME])] if measured.NAME in data else [])]


def of_row(row: dict) -> str:
    """What is said of a setting that has been emulated."""
    return f"emulated {row['emulated_s']:.3g} s, predicted {100 * row['off']:+.1f} %"


def cells(rows) -> list[str]:
    """Both sets' figures."""
    rows = list(rows)
    found = [figures([row["off"] for row in rows if row["made_with"] == made]) for made in (True, False)]
    return list(itertools.chain.from_iterable([str(each["n"]), percent(each.get("median")), percent(each.get("worst"))]
                                              for each in found))  # fmt: skip


def percent(share: float | None) -> str:
    """A share.

    >>> percent(0.0312), percent(None)
    ('3.1 %', '')
    """
    return "" if share is None else f"{100 * share:.1f} %"


def answer(data: dict) -> list[str]:
    """The figures of both sets, where they are from, and what is not there."""
    said = [f"{name}: {each['n']} settings, off by {percent(each['median'])} at the median and "
            f"{percent(each['worst'])} at worst" for name, each in data["figures"].items() if each["n"]]  # fmt: skip
    drawing, done = data["drawing"], len(data["rows"])
    missing = [f"{drawing['settings'] - done} of {drawing['settings']} settings are not emulated yet"]
    runs = figures([row["off"] for row in data.get(measured.NAME, ())])
    spread = figures([(max(row["runs_s"]) - min(row["runs_s"])) / row["emulated_s"] for row in data["rows"]
                      if len(row["runs_s"]) > 1])  # fmt: skip
    apart = [f"{spread['n']} settings were emulated several times: runs of one are {percent(spread['median'])} apart "
             f"at the median and {percent(spread['worst'])} at worst"] if spread["n"] else []  # fmt: skip
    real = [f"measured: {runs['n']} programs of real trainings between namespaces, off by {percent(runs['median'])} at "
            f"the median and {percent(runs['worst'])} at worst"] if runs["n"] else []  # fmt: skip
    return [*said, *apart, *real, *(missing if done < drawing["settings"] else []), provenance_lines(data)]


def provenance_lines(data: dict) -> str:
    """Between what, on which machine, with which versions."""
    machine, versions = data["environment"]["machine"], data["environment"]["versions"]
    told = ", ".join(f"{name} {versions[name]}" for name in ("python", "torch", "horovod") if versions.get(name))
    nodes = sorted({row["nodes"] for row in data["rows"]})
    return (f"emulated between {words(nodes)} namespaces of one machine: {machine['cpu_model']}, "
            f"{cores_in_words(machine['usable_cores'])}; {told}")  # fmt: skip


def words(numbers: list[int]) -> str:
    """Numbers in a sentence.

    >>> words([2, 4, 8]), words([2])
    ('2, 4 or 8', '2')
    """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last
