"""The forecast compared with emulation over a list of settings drawn by a seeded rule: two to three hours.

    python -m tests.validation.forecast FOLDER [--most 5]
    python -m tests.validation.forecast FOLDER --advice
    python -m tests.validation.forecast [FOLDER] --published

FOLDER has profile-MODEL.json of each model; the file and the picture go there, and what is in the file is not emulated
again. --advice: the first choice of `bench predict mode` on made-up clusters, compared with emulation. --published: the
forecast compared with published tables of throughput, without emulation. Exit code 1 where a setting could not be
emulated; the next call retries it.
"""

import argparse
import sys
from pathlib import Path

from bench.analysis import tables
from bench.errors import BenchError, ExitCode, RunFailed, UserError
from bench.measure.environment import collect_environment
from bench.predict.emulation import record as records
from bench.predict.step.profile import Profile
from bench.process import tree
from tests.validation.forecast import advice, figure, measured, published, result, settings
from tests.validation.forecast.settings import Setting

START_S = 120.0  # until the ranks have joined, on a busy machine
SLOWER = 3  # times the expected length: the limit of a setting
GRACE_S = 40.0  # for an emulation after it was asked to end
RECORD = "record: "


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.validation.forecast", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=published.FOLDER)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--advice", action="store_true")
    kind.add_argument("--published", action="store_true", help="FOLDER: with the tables [results/published]")
    parser.add_argument("--most", type=int, help="emulate at most so many of the settings that are left [all]")
    parser.add_argument("--only-judge", dest="most", action="store_const", const=0,
                        help="emulate nothing: the forecast again, held against what is there")  # fmt: skip
    parser.add_argument("--measured", help="folder of comparisons between namespaces, with the upper bound: real steps "
                        "beside the forecast's")  # fmt: skip
    parser.add_argument("--out", help="folder of the emulations' records [results/runs]")
    args = parser.parse_args(argv)
    try:
        return of_tables(args.folder) if args.published else of_settings(args)
    except BenchError as error:
        print(f"forecast: {error}", file=sys.stderr)
        return error.exit_code


def of_settings(args) -> int:
    """Emulate what is not in the file yet, nor in that of the other check; the file is written after each setting, the
    picture at the end."""
    check, other = (advice, result) if args.advice else (result, advice)
    folder = args.folder
    console, found, data = tables.terminal(), result.read_profiles(folder), check.read(folder)
    if args.measured:
        data[measured.NAME] = real_runs(console, args.measured, folder)
    result.take(data, other.read(folder), check.left(found, result.names(data)))
    left = check.left(found, result.names(data))
    most = len(left) if args.most is None else args.most
    failed = 0
    for number, setting in enumerate(left[:most], 1):
        profile = found[setting.model]
        console.print(f"{number} of {min(most, len(left))}: {setting.name}, about {setting.needs_s(profile):.0f} s",
                      highlight=False, markup=False)  # fmt: skip
        try:
            row = emulated(setting, profile, folder, args.out)
        except UserError as error:
            failed += 1
            print(f"forecast: {error}", file=sys.stderr, flush=True)
            continue
        data.setdefault("environment", collect_environment())
        data["rows"].append(row)
        data = check.judged(data, found)
        check.write(folder, data)
        console.print(f"  {check.of_row(data['rows'][-1])}", highlight=False, markup=False)
    if failed and not data["rows"]:
        raise RunFailed(f"none of the {failed} settings could be emulated: the reasons are above")
    if not data["rows"]:
        raise UserError(f"{folder} has no emulated setting yet: leave out --only-judge and --most 0")
    data = check.judged(data, found)
    path = check.write(folder, data)
    if check is result:
        figure.save(data, folder)
    show(console, check.grids(data), check.answer(data))
    print(f"written: {path}", flush=True)
    return ExitCode.FAILED if failed else ExitCode.DONE


def show(console, grids: list[tables.Grid], answer: list[str]) -> None:
    """Tables, and what they say."""
    for grid in grids:
        console.print(grid.caption, highlight=False, markup=False)
        tables.print_grid(console, grid)
    for line in answer:
        console.print(line, highlight=False, markup=False)


def real_runs(console, runs: str, folder: Path) -> list[dict]:
    """The rows of MEASURED; what does not belong is said."""
    rows, left_out = measured.rows_of(runs, result.read_records(folder))
    for why, count in left_out.items():
        console.print(f"note: left out: {count} programs: {why}", highlight=False, markup=False)
    return rows


def of_tables(folder: Path) -> int:
    """The published tables: prints each row, and leaves the pictures beside the tables."""
    tables_read = published.read(folder)
    found = published.judged(tables_read, folder)
    if not found:
        raise UserError(f"{folder} has no table of published throughput (*.csv)")
    learned = published.learned(tables_read, folder)
    figure.save_published(found, learned, folder)
    grids = [published.grid(found), published.summary(found)]
    if learned:
        given = {f"up to {most} devices": published.learned(tables_read, folder, most) for most in (1, 2, 4)}
        grids += [published.learned_grid(learned), published.learned_summary({"one node": learned} | given),
                  published.sensitivity(tables_read, folder)]  # fmt: skip
    show(tables.terminal(), grids, published.answer(found))
    return ExitCode.DONE


def emulated(setting: Setting, profile: Profile, folder: Path, out: str | None) -> dict:
    """A setting's row: the mean of as many emulations as its engine needs. Raises UserError where one fails."""
    return result.mean_of([steady(setting, profile, folder, out) for _ in range(setting.engine.emulations)])


def steady(setting: Setting, profile: Profile, folder: Path, out: str | None) -> dict:
    """The row of one emulation; or of the steadier of two, if steps scatter. Raises UserError if it fails."""
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
    """One `bench cluster emulate` as a process, within its limit; SIGTERM ends it. Raises UserError with its last
    words."""
    words = {
        "mode": setting.engine.mode, **setting.engine.options, "compute": folder / f"profile-{setting.model}.json",
        "nodes": setting.nodes, "link": f"{setting.rate_mbit}mbit", "dilate": setting.dilate(profile),
        "warmup": settings.WARMUP, "steps": settings.STEPS, **({"out": out} if out else {}),
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "bench",
        "cluster",
        "emulate",
        *(f"--{name}={value}" for name, value in words.items()),
    ]
    limit = START_S + SLOWER * (setting.before_s(profile) + setting.clock_s(profile))
    done = tree.capture(command, limit, alone_s=GRACE_S)
    if done.code is None:
        raise UserError(f"{setting.name}: not within {limit:.0f} s")
    lines = done.out.strip().splitlines()
    if done.code or not lines or not lines[-1].startswith(RECORD):
        raise UserError(f"{setting.name}: {(done.err.strip().splitlines() or ['it ended without a record'])[-1]}")
    return records.load(Path(lines[-1].removeprefix(RECORD)))


if __name__ == "__main__":
    sys.exit(main())
