"""`bench forecast-check`: the forecast held against emulation over a list of settings drawn by a seeded rule, the
advice for made-up clusters likewise, and the forecast against published tables of throughput."""

import sys
from pathlib import Path

from bench.analysis import tables
from bench.commands.base import is_on, needed, warn, whole
from bench.errors import ExitCode, RunFailed, UserError
from bench.measure.environment import collect_environment
from bench.process import tree
from bench.without_training.emulation import record as records
from bench.without_training.forecast.profile import Profile
from bench.without_training.forecast_check import advice, figure, measured, published, result, settings
from bench.without_training.forecast_check.settings import Setting

START_S = 120.0  # until the ranks have joined, on a busy machine
SLOWER = 3  # times the expected length: the limit of a setting
GRACE_S = 40.0  # for an emulation that was told to end
RECORD = "record: "


def run(args) -> int:
    """Emulate what is not in the file yet, nor in that of the other check; the file is written after each setting, the
    picture at the end. Exit code 1 where a setting could not be emulated."""
    of_advice = is_on("ADVICE", args.advice)
    if is_on("PUBLISHED", args.published):
        if of_advice:
            raise UserError("PUBLISHED and ADVICE are two checks: leave one of them out")
        return of_tables(args)
    check, other = (advice, result) if of_advice else (result, advice)
    folder = Path(needed("FOLDER", args.folder)).expanduser()
    console, found, data = tables.terminal(), result.read_profiles(folder), check.read(folder)
    if args.measured:
        if of_advice:
            raise UserError("MEASURED and ADVICE are two checks: leave one of them out")
        data[measured.NAME] = real_runs(console, args.measured, folder)
    result.take(data, other.read(folder), check.left(found, result.names(data)))
    left = check.left(found, result.names(data))
    most = len(left) if args.most is None else whole("MOST", args.most, 0)
    failed = 0
    for number, setting in enumerate([] if is_on("ONLY_JUDGE", args.only_judge) else left[:most], 1):
        profile = found[setting.model]
        console.print(f"{number} of {min(most, len(left))}: {setting.name}, about {setting.needs_s(profile):.0f} s",
                      highlight=False, markup=False)  # fmt: skip
        try:
            row = emulated(setting, profile, folder, args.out)
        except UserError as error:
            failed += 1
            warn(f"bench: {error}")
            continue
        data.setdefault("environment", collect_environment())
        data["rows"].append(row)
        data = check.judged(data, found)
        check.write(folder, data)
        console.print(f"  {check.of_row(data['rows'][-1])}", highlight=False, markup=False)
    if failed and not data["rows"]:
        raise RunFailed(f"none of the {failed} settings could be emulated: the reasons are above")
    if not data["rows"]:
        raise UserError(f"{folder} has no emulated setting yet: leave out ONLY_JUDGE and MOST=0")
    data = check.judged(data, found)
    path = check.write(folder, data)
    if check is result:
        figure.save(data, folder)
    for grid in check.grids(data):
        tables.print_grid(console, grid)
    for line in check.answer(data):
        console.print(line, highlight=False, markup=False)
    print(f"written: {path}", flush=True)
    return ExitCode.FAILED if failed else ExitCode.DONE


def real_runs(console, runs: str, folder: Path) -> list[dict]:
    """The rows of MEASURED; what does not belong is said."""
    rows, left_out = measured.rows_of(runs, result.read_records(folder))
    for why, count in left_out.items():
        console.print(f"note: left out: {count} programs: {why}", highlight=False, markup=False)
    return rows


def of_tables(args) -> int:
    """The published tables, without emulation: prints each row, and leaves the picture beside the tables."""
    folder = Path(args.folder).expanduser() if args.folder else published.FOLDER
    found = published.judged(published.read(folder), folder)
    if not found:
        raise UserError(f"{folder} has no table of published throughput (*.csv)")
    figure.save_published(found, folder)
    console = tables.terminal()
    for grid in (published.grid(found), published.summary(found)):
        console.print(grid.caption, highlight=False, markup=False)
        tables.print_grid(console, grid)
    for line in published.answer(found):
        console.print(line, highlight=False, markup=False)
    return ExitCode.DONE


def emulated(setting: Setting, profile: Profile, folder: Path, out: str | None) -> dict:
    """A setting's row: the mean of as many emulations as its engine needs. Raises UserError where one fails."""
    return result.mean_of([steady(setting, profile, folder, out) for _ in range(setting.engine.emulations)])


def steady(setting: Setting, profile: Profile, folder: Path, out: str | None) -> dict:
    """The row of one emulation; of two, the steadier one's, where steps scatter. Raises UserError where it fails."""
    tries = []
    while not tries or (len(tries) < 2 and result.scatter(tries[0], profile) > result.SCATTER):
        try:
            tries.append(result.row_of(setting, profile, emulate(setting, profile, folder, out)))
        except UserError:
            if not tries:
                raise
            break
    return min(tries, key=lambda row: result.scatter(row, profile)) | {"emulated": len(tries)}


def emulate(setting: Setting, profile: Profile, folder: Path, out: str | None) -> records.EmulationRecord:
    """One `bench emulate` as a process, within its limit; SIGTERM ends it. Raises UserError with its last words."""
    words = {
        "mode": setting.engine.mode, **setting.engine.options, "compute": folder / f"profile-{setting.model}.json",
        "nodes": setting.nodes, "rate": f"{setting.rate_mbit}mbit", "dilate": setting.dilate(profile),
        "warmup": settings.WARMUP, "steps": settings.STEPS, **({"out": out} if out else {}),
    }  # fmt: skip
    command = [sys.executable, "-m", "bench", "emulate", *(f"--{name}={value}" for name, value in words.items())]
    limit = START_S + SLOWER * (setting.before_s(profile) + setting.clock_s(profile))
    done = tree.capture(command, limit, alone_s=GRACE_S)
    if done.code is None:
        raise UserError(f"{setting.name}: not within {limit:.0f} s")
    lines = done.out.strip().splitlines()
    if done.code or not lines or not lines[-1].startswith(RECORD):
        raise UserError(f"{setting.name}: {(done.err.strip().splitlines() or ['it ended without a record'])[-1]}")
    return records.load(Path(lines[-1].removeprefix(RECORD)))
