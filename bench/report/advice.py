"""The facts of an advice from measured records: the newest comparison, the parts of its steps, a profile, a link."""

from collections.abc import Iterable

from bench import formulas
from bench.analysis import style
from bench.analysis.stats import FEWEST_ROUNDS
from bench.analysis.suite import Program, Suite
from bench.config.data_sets import info_of
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.predict.advice.facts import COMPUTATION, DATA_WAIT, EXPOSED, IMBALANCE, REST, Facts, Way
from bench.predict.pictures.points import Asked, why_not
from bench.predict.step import link as links
from bench.predict.step import profile as profiles
from bench.predict.step.engines import ENGINES
from bench.predict.step.fit import Fit
from bench.predict.step.link import Link
from bench.predict.step.profile import Profile
from bench.record import describe
from bench.record.disturbance import disturbances_of, in_words
from bench.record.view import Record
from bench.report.pooling import machine_of
from bench.studies.breakdown import result as breakdown
from bench.studies.breakdown.study import BREAKDOWN
from bench.studies.compare.study import COMPARE
from bench.studies.registry import study_of
from bench.studies.scaling.study import WEAK
from bench.tasks.network.record import NetworkRecord


def facts_of(suites: list[Suite], runs: list[Record], networks: Iterable[NetworkRecord] = ()) -> Facts:
    """The facts of the newest complete comparison; without one, of the newest profile of one device. suites: oldest
    first. runs: single runs. Raises UserError without either, and where a suite compares different workloads."""
    suite = choose_suite(suites)
    profiled = find_profile(runs, suite)
    if not suite and not profiled:
        raise UserError("there is no comparison, no breakdown, and no profile of one device among these records: run "
                        "`make predict mode GPUS=2` to create them")  # fmt: skip
    first = suite.first if suite else profiled
    found = facts_of_suite(suite, suites) if suite else facts_of_run(profiled)
    profile, unknown = None, []
    if suite and (others := sum(each.study == suite.study for each in suites) - 1):
        unknown.append(f"the other {others} suites of this study: only {suite.id} is used")
    if profiled and (why := in_words(disturbances_of(profiled))):
        unknown.append(f"scaling to more devices: the profile {profiled.run_id} was disturbed: {why}")
        profiled = None
    try:
        profile = profiles.profile_of(profiled, profiled.run_id) if profiled else None
    except UserError as error:
        unknown.append(f"scaling to more devices: {error}")
    near = [each for each in networks if same_machine(each, first) and not disturbances_of(each)]
    link = links.of_records(near, "nccl" if first.on_gpu else "gloo")
    fits = fits_of(profiled, profile, link, suites) if profile and link else {}
    return Facts(
        **found, fits=fits, what=f"{describe.workload(first)}, {first.config.optimizer}", units=first.workload.units,
        batched=first.workload.batched, profile=profile, link=link, own_link=link, unknown=tuple(unknown),
        examples=info_of(first.config.data).train_examples, per_example=first.workload.per_example,
    )  # fmt: skip


def fits_of(record: Record, profile: Profile, link: Link, suites: list[Suite]) -> dict[str, Fit]:
    """Forecasts fitted to what comparisons measured of the profile's work between the same devices."""
    asked = Asked(record, profile, link, {mode: RunConfig(mode=mode, num_devices=2) for mode in ENGINES})
    runs = [run for suite in suites if suite.study in (COMPARE.name, WEAK.name) for run in suite.records
            if run.config.mode in ENGINES and run.num_devices > 1]  # fmt: skip
    runs = [run for run in runs if same_machine(run, record) and not disturbances_of(run) and not why_not(run, asked)]
    return asked.fitted(runs).fits


def same_machine(a: Record, b: Record) -> bool:
    one, other = machine_of(a), machine_of(b)
    return (one.hardware, one.network) == (other.hardware, other.network)


def choose_suite(suites: list[Suite]) -> Suite | None:
    """The newest comparison with enough rounds and not disturbed; else with enough rounds; else with any; else a
    breakdown."""
    found = [(suite.study == COMPARE.name, min(suite.n, FEWEST_ROUNDS), not suite.disturbed, place)
             for place, suite in enumerate(suites)
             if suite.study in (COMPARE.name, BREAKDOWN.name) and suite.n]  # fmt: skip
    return suites[max(found)[-1]] if found else None


def facts_of_suite(suite: Suite, suites: list[Suite]) -> dict:
    """The facts of a suite's programs. suites: a breakdown among them adds parts of their steps. Raises UserError."""
    more = [each for each in suites if each.study == BREAKDOWN.name and each.n >= FEWEST_ROUNDS and not each.disturbed]
    more = [each for each in more if same_machine(each.first, suite.first)]
    return {
        "disturbed": suite.disturbed,
        "withheld": withheld(suite.disturbance, suite.n),
        "ways": tuple(way_of(program, [suite, *more]) for program in suite.programs.values()
                      if not program.is_bound and program.config.sync),
        "looks": len(suite.looks) or 1,
        "source": f"measured: {suite.id}, n = {suite.n}; {suite.machine}",
        "unfair": style.flag(study_of(suite).result(suite).certificate),
        "said": (*describe.oom_notes(suite.failed, suite.records), *describe.cautions(suite.records)),
    }  # fmt: skip


def withheld(disturbance: str, rounds: int = FEWEST_ROUNDS) -> str:
    """Why measurements do not allow a recommendation; "" if they do."""
    if disturbance:
        return f"the runs were disturbed: {disturbance}. Repeat them on an idle machine"
    few = f"n = {rounds} rounds are a preview: a recommendation needs ROUNDS={FEWEST_ROUNDS} or more"
    return few if rounds < FEWEST_ROUNDS else ""


def facts_of_run(record: Record) -> dict:
    return {
        "withheld": withheld(in_words(disturbances_of(record))),
        "ways": (Way(record.program, record.config, [record.throughput], parts_of(Program("", [record]), None)),),
        "source": f"measured: {record.run_id}, n = 1; {describe.machine_line(record)}",
        "said": tuple(describe.cautions([record])),
    }


def way_of(program: Program, suites: list[Suite]) -> Way:
    """The measurements of a program; the parts of its step are from the last of these suites that contains it."""
    found = [(suite, suite.programs[program.label]) for suite in suites if program.label in suite.programs]
    suite, same = [(suite, other) for suite, other in found if other is program or not other.overrides(program)][-1]
    return Way(program.label, program.config, program.throughputs, parts_of(same, without_exchange(suite, same)))


def without_exchange(suite: Suite, program: Program) -> Program | None:
    """The same processes without communication: the program's own such run, or the no-communication baseline."""
    if program.first.mode.one_process:
        return None
    bounds = (each for each in suite.programs.values()
              if each.is_bound and each.config.num_devices == program.config.num_devices)  # fmt: skip
    return breakdown.bare_of(suite, program) or next(bounds, None)


def parts_of(program: Program, bare: Program | None) -> dict[str, list[float]]:
    """Part -> milliseconds of a step in each round; the parts add up to the step of the slowest rank. bare: the same
    without communication, which separates exposed communication and imbalance between ranks from the rest."""
    steps = [breakdown.step_ms(record) for record in program.records]
    found = {DATA_WAIT: []}
    for part in map(breakdown.slowest, program.records):
        phases = breakdown.phases_of(part.step_time_s, part.data_wait_s, part.phase_time_s)
        found[DATA_WAIT].append(1e3 * phases["data wait"])
    if bare:
        found[EXPOSED] = breakdown.exposed_comm(program, bare)[0]
        steps_s = ([part.step_time_s for part in record.samples] for record in bare.records)
        found[IMBALANCE] = [1e3 * formulas.rank_imbalance_s(ranks) for ranks in steps_s]
    one = program.first.mode.max_devices == 1 or program.config.num_devices == 1
    rest = [step - sum(each) for step, each in zip(steps, zip(*found.values(), strict=True), strict=True)]
    return found | {COMPUTATION if bare or one else REST: rest}


def find_profile(runs: list[Record], suite: Suite | None) -> Record | None:
    """The newest good profile of one device, an undisturbed one if there is any. suite: only with its workload and
    per-device batch, from an equal machine."""
    found = [record for record in runs if record.ok and record.num_devices == 1 and record.samples[0].profile]
    if suite:
        most = max((record.config for record in suite.records), key=lambda config: config.num_devices)
        found = [
            record for record in found if same_machine(record, suite.first)
            and all(getattr(record.config, name) == getattr(most, name) for name in profiles.SAME_STEP)
        ]  # fmt: skip
    return max(found, key=lambda record: (not disturbances_of(record), record.started_at), default=None)
