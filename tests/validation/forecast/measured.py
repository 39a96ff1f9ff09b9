"""The forecast compared with real trainings between namespaces of one machine, with the no-communication baseline.

Nodes share this machine's cores with each other, with the network and with whatever else runs, and a profile was taken
at another hour. How long their computation takes beside the profile's is measured and not assumed: by the upper bound,
the same processes without communication, in the same rounds.
"""

import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.analysis import style
from bench.analysis.suite import Program, Suite, suites_of
from bench.analysis.tables import Grid
from bench.cluster.plan import LABEL, limit_of
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.predict.pictures.points import other_engine, other_work
from bench.predict.step import link
from bench.predict.step import profile as profiles
from bench.predict.step.engines import ENGINES
from bench.predict.step.profile import Profile
from bench.predict.step.result import forecast
from bench.record import packed
from bench.record.read import find_runs
from bench.record.view import Record

NAME = "measured"  # in forecast-check.json
KEPT = ("model", "mode", "nodes", "rate_mbit", "computation", "measured_s", "rounds")


def rows_of(folder: str, known: dict[str, Record]) -> tuple[list[dict], Counter]:
    """A row for each mode of each comparison below a folder that belongs to a profile, without its prediction; why
    others do not, and how many. known: model -> the profile's record. Raises UserError where none belongs, and
    BadRecord."""
    if not packed.holds_records(place := Path(folder).expanduser()):
        raise UserError(f"--measured {folder} is no folder")
    rows, left_out = [], Counter()
    for suite in suites_of(find_runs(place)):
        ways = [program for program in suite.programs.values() if program.config.mode in ENGINES]
        for program in ways:
            if why := why_not(suite, program, known):
                left_out[why] += 1
            else:
                rows.append(row_of(suite, program, known))
    if not rows:
        said = "; ".join(f"{count} programs: {why}" for why, count in left_out.items())
        raise UserError(f"--measured {folder} has no comparison between namespaces that belongs to a profile"
                        f"{f': {said}' if said else ''}")  # fmt: skip
    return rows, left_out


def why_not(suite: Suite, program: Program, known: dict[str, Record]) -> str:
    """Why a program does not belong; "" where it does."""
    first = program.first
    if first.config.model not in known:
        return f"no profile of {first.config.model}"
    if not LABEL.fullmatch(first.network or "") or limit_of(first.network) is None:
        return "not between namespaces with limited links"
    if not bound_of(suite):
        return "without the upper bound (independent) in the same rounds"
    plain = RunConfig(mode=program.config.mode, num_devices=2)
    return other_work(first, known[first.config.model]) or other_engine(first.config, plain)


def bound_of(suite: Suite) -> Program | None:
    """The upper bound of a suite."""
    return next((program for program in suite.programs.values() if program.is_bound), None)


def row_of(suite: Suite, program: Program, known: dict[str, Record]) -> dict:
    """What was measured of a program, the mean over its rounds, and what its computation took over the profile's."""
    config, steps = program.config, [record.step_time["mean"] for record in program.records]
    alone = profiles.profile_of(known[config.model], config.model).mean_step_s
    bound = [seconds for record in bound_of(suite).records for part in record.samples for seconds in part.step_time_s]
    return {
        "model": config.model, "mode": config.mode, "nodes": config.num_devices,
        "rate_mbit": limit_of(program.first.network), "computation": statistics.fmean(bound) / alone,
        "measured_s": statistics.fmean(steps), "rounds": len(steps),
    }  # fmt: skip


def judged(rows: list[dict], found: dict[str, Profile]) -> Iterator[dict]:
    """The rows with their predictions."""
    for row in rows:
        profile = found[row["model"]].slower(row["computation"])
        config = RunConfig(mode=row["mode"], num_devices=2)
        said = forecast(profile, config, row["nodes"], link.parse_link(f"{row['rate_mbit']:g}mbit,0us", "gloo")).step_s
        yield {name: row[name] for name in KEPT} | {"predicted_s": said, "off": said / row["measured_s"] - 1}


def grid(rows: list[dict]) -> Grid:
    """Every row."""
    head = [("model", False), ("mode", False), ("nodes", True), ("links,\nMbit/s", True), ("rounds", True),
            ("computation,\n× profile's", True), ("measured, s", True), ("predicted, s", True),
            ("off by", True)]  # fmt: skip
    cells = [
        [row["model"], row["mode"], str(row["nodes"]), f"{row['rate_mbit']:g}", str(row["rounds"]),
         f"{row['computation']:.2f}", style.number(row["measured_s"]), style.number(row["predicted_s"]),
         f"{100 * row['off']:+.1f} %"] for row in rows
    ]  # fmt: skip
    return Grid(head, cells, "predicted against measured: real trainings between namespaces that share this machine's "
                "cores; computation as long as the upper bound's in the same rounds")  # fmt: skip
