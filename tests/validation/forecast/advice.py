"""The advice compared with emulation: advice-check.json, beside what the forecast is compared with.

From all combinations of models, numbers of nodes and rates those are left out of which a program could not be emulated;
of the others a rule with a seed draws some clusters. On each, every program that `bench predict mode` may name for it
is emulated, and its first choice is compared with the one that did most per second. One device alone has nothing to
send: it is taken as long as the ranks' own draws of the profile's steps are.

Rows are those of the forecast's check, and what one of both has emulated the other one takes.
"""

import itertools
import random
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.analysis import style
from bench.analysis.tables import Grid
from bench.config.modes import MODES
from bench.config.options import RunConfig
from bench.predict.advice import cluster as advice
from bench.predict.advice.facts import ALONE, Facts
from bench.predict.step import link
from bench.predict.step.profile import Profile
from tests.validation.forecast import result, settings
from tests.validation.forecast.settings import Engine, Setting

NAME, KEY = "advice-check.json", "advice_check_version"
DRAWN = {2: 9, 4: 7, 8: 4}  # nodes -> clusters
RATES_MBIT = (250, 500, 1000, 2000, 4000)
NEAR = 0.03  # by so much longer than the best one is as good
KEPT = [name for name in result.KEPT if name != "made_with"]


@dataclass(frozen=True)
class Cluster:
    """Nodes of one device each, with the profile of a model, and the links between them."""

    model: str
    nodes: int
    rate_mbit: int

    @property
    def name(self) -> str:
        """In the file, and for people."""
        return f"{self.model}, {self.nodes} nodes, {self.rate_mbit} Mbit/s"

    def settings(self) -> list[Setting]:
        """An emulation of each program that may be advised."""
        return [Setting(self.model, engine_of(config), self.nodes, self.rate_mbit) for config in advice.candidates()]

    def why_not(self, profile: Profile) -> str:
        """Why it is left out; "" where it is not."""
        return next((why for setting in self.settings() if (why := setting.why_not(profile))), "")

    def advised(self, profile: Profile) -> str:
        """The first choice of `bench predict mode`: an engine, or one device."""
        facts = Facts(profile=profile, link=link.parse_link(f"{self.rate_mbit}mbit,0us", "gloo"), nodes=self.nodes)
        return name_of(advice.advised(advice.forecasts(facts, self.nodes)).config)


def engine_of(config: RunConfig) -> Engine:
    """The engine of a program that may be advised."""
    compression = {} if config.compression == "none" else {"compression": config.compression}
    return next(each for each in settings.ENGINES if (each.mode, each.options) == (config.mode, compression))


def name_of(config: RunConfig) -> str:
    """Of a program, in the file and for people."""
    return ALONE if MODES[config.mode].max_devices == 1 else engine_of(config).name


def everything() -> Iterator[Cluster]:
    """All combinations."""
    return itertools.starmap(Cluster, itertools.product(settings.MODELS, DRAWN, RATES_MBIT))


def drawn(profiles: dict[str, Profile]) -> list[Cluster]:
    """The clusters."""
    draw = random.Random(settings.SEED)
    possible = [cluster for cluster in everything() if not cluster.why_not(profiles[cluster.model])]
    found = []
    for nodes, count in DRAWN.items():
        there = [cluster for cluster in possible if cluster.nodes == nodes]
        found += draw.sample(there, min(count, len(there)))
    return found


def left(profiles: dict[str, Profile], there: Iterable[str] = ()) -> list[Setting]:
    """What is to be emulated: first the cluster of which least is left. there: the names of what has been."""
    each = [[setting for setting in cluster.settings() if setting.name not in there] for cluster in drawn(profiles)]
    each.sort(key=lambda some: sum(setting.needs_s(profiles[setting.model]) for setting in some))
    return list(itertools.chain.from_iterable(each))


# --- the judgement ------------------------------------------------------------------------------------------------


def read(folder: Path) -> dict:
    """What is there already; a beginning where nothing is."""
    return result.read_file(Path(folder) / NAME, KEY)


def write(folder: Path, data: dict) -> Path:
    """The file, whole or not at all."""
    return result.write_file(Path(folder) / NAME, data)


def judged(data: dict, profiles: dict[str, Profile]) -> dict:
    """The file's content: the rows, and of each cluster that has all of its rows what was advised and what was best."""
    rows = {row["name"]: {name: row[name] for name in KEPT} for row in data["rows"]}
    clusters = sorted(drawn(profiles), key=lambda each: (each.model, each.nodes, each.rate_mbit))
    whole = [each for each in clusters if all(setting.name in rows for setting in each.settings())]
    drawing = {
        "seed": settings.SEED, "clusters": len(clusters),
        "left_out": result.counted(each.why_not(profiles[each.model]) for each in everything()),
        "warmup": settings.WARMUP, "steps": settings.STEPS,
    }  # fmt: skip
    head = {name: data[name] for name in (KEY, "environment") if name in data}
    found = [judgement(each, profiles[each.model], rows) for each in whole]
    return head | {"drawing": drawing, "clusters": found, "rows": list(rows.values())}


def judgement(cluster: Cluster, profile: Profile, rows: dict[str, dict]) -> dict:
    """A cluster's: units per second of each program, the advised one, the best one, and how much longer each takes for
    as much as the best, less 1."""
    there = [rows[setting.name] for setting in cluster.settings()]
    speeds = {row["engine"]: cluster.nodes * profile.units / statistics.fmean(row["steps_s"]) for row in there}
    drew = itertools.chain.from_iterable(result.drawn_factors(there[0], profile))
    speeds[ALONE] = profile.units / (profile.step_s * statistics.fmean(drew))
    best = max(speeds, key=speeds.get)
    return {
        "name": cluster.name, "unit": profile.unit, "advised": cluster.advised(profile), "best": best, "speeds": speeds,
        "longer": {name: speeds[best] / speed - 1 for name, speed in speeds.items()},
    }  # fmt: skip


# --- in tables and in words ---------------------------------------------------------------------------------------


def grid(data: dict) -> Grid:
    """The advice, and beside it each program as the answer for every cluster."""
    found = data["clusters"]
    answers = {"the advice": [each["longer"][each["advised"]] for each in found]}
    for name in sorted({name for each in found for name in each["longer"]}):
        answers[f"always {name}"] = [each["longer"][name] for each in found]
    head = [("answer", False), (f"best or within {100 * NEAR:g} %", True), ("at worst longer by", True)]
    rows = [[name, f"{good(longer)} of {len(longer)}", result.percent(max(longer, default=None))]
            for name, longer in answers.items()]  # fmt: skip
    return Grid(head, rows, "advised against emulated: how much longer for as much")


def good(longer: list[float]) -> int:
    """How many are the best, or nearly."""
    return sum(each <= NEAR for each in longer)


def each_cluster(data: dict) -> Grid:
    """A row for each cluster: the advised program, the best one, by how much it is better."""
    head = [("cluster", False), ("advised", False), ("emulated\nper second", True), ("best", False),
            ("emulated\nper second", True), ("longer by", True)]  # fmt: skip
    rows = [[each["name"], *cells(each, each["advised"]), *cells(each, each["best"]),
             result.percent(each["longer"][each["advised"]])] for each in data["clusters"]]  # fmt: skip
    return Grid(head, rows, "advised against emulated, each cluster")


def cells(found: dict, name: str) -> list[str]:
    """A program of a cluster, and what it did per second."""
    return [name, f"{style.number(found['speeds'][name])} {found['unit']}"]


def grids(data: dict) -> list[Grid]:
    """What the command prints."""
    return [each_cluster(data), grid(data)]


def answer(data: dict) -> list[str]:
    """How often the first choice was the best, what is not there, and where it is from."""
    found, drawing = data["clusters"], data["drawing"]
    longer = [each["longer"][each["advised"]] for each in found]
    said = [f"advice: best or within {100 * NEAR:g} % in {good(longer)} of {len(found)} clusters; at worst longer by "
            f"{result.percent(max(longer))}"] if found else []  # fmt: skip
    return [*said, f"{len(found)} of {drawing['clusters']} clusters emulated", result.provenance_lines(data)]


def of_row(row: dict) -> str:
    """What is said of a setting that has been emulated."""
    return f"emulated {statistics.fmean(row['steps_s']):.3g} s"
