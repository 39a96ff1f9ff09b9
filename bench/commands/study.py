"""The commands that compare: suites in interleaved rounds, then certificate, verdict, pictures and a page.

compare (and its replays), scaling, breakdown, knobs, accuracy. Each makes its roles in bench/studies/programs.py, runs them by
bench/studies/rounds.py, and says what came of it by bench/report: this file holds no measurement and no figure.
"""

import dataclasses
import importlib.util
from pathlib import Path

from bench.analysis import tables
from bench.analysis.comparison import compare_suite
from bench.analysis.suite import suite_of
from bench.analysis.words import COMPILE_NOTE
from bench.config.modes import MODES
from bench.config.options import RECIPE_GLOBAL_BATCH, UNSET, RunConfig
from bench.config.rules import variable_of
from bench.errors import UserError
from bench.launch.devices import choose_device
from bench.launch.launcher import resolve_here
from bench.record.read import find_records
from bench.studies import programs as suites
from bench.studies import rounds as running
from bench.studies.accuracy import result as accuracies

ROUNDS = {"compare": 8, "replay": 8, "weak": 5, "strong": 5, "breakdown": 5, "knobs": 5, "accuracy": 5, "unsynced": 10,
          "lab": 3}  # fmt: skip
QUICK_ROUNDS = 2
OF_TRAINING = ("epochs", "lr_warmup_epochs", "target")
NOT_HERE = (*suites.MEASURED_ONLY, "baselines", "profile", "suite", "role", "round", "launcher", "dist_url",
            "mistake")  # fmt: skip


def compare(asked: RunConfig, rounds: int | None, quick: bool, strict: bool, replay: str | None) -> int:
    """All modes on one workload, or a replayed unfairness."""
    if replay is not None:
        if strict:
            raise UserError("a replay is unfair on purpose, and STRICT=1 refuses what is unfair: leave one of them out")
        return compare_replay(asked, rounds, quick, replay)
    refuse(asked, "mode")
    console = tables.terminal()
    config = prepare(console, dataclasses.replace(asked, mode="ddp"))
    roles = suites.comparison(config, available(console))

    def after_first_round(records):
        suite = suite_of(records[0]["config"]["suite"], records)
        refuse_unfair(console, compare_suite(suite), records[0]["config"]["out"])

    folder = run(console, "compare", roles, rounds, quick, asked.out, after_first_round if strict else None)
    return finish(console, [folder], strict=strict)


def compare_replay(asked: RunConfig, rounds: int | None, quick: bool, name: str) -> int:
    """A classic unfairness on purpose: how far it moves the verdict."""
    if name not in suites.REPLAYS:
        raise UserError(f"unknown REPLAY={name}: choose one of {', '.join(suites.REPLAYS)}")
    refuse(asked, "mode")
    case, console = suites.REPLAYS[name], tables.terminal()
    missing = [mode for mode in (case.base, case.program) if mode not in available(console)]
    if missing:
        raise UserError(f"REPLAY={name} needs MODE={missing[0]}, which cannot run here: run `bench doctor`")
    common = {name: value for name, value in case.common.items() if getattr(asked, name) == UNSET[name]}
    asked = dataclasses.replace(asked, **common)
    config = prepare(console, dataclasses.replace(asked, mode=case.program))
    console.print(f"replayed on purpose: {case.change}")
    folder = run(console, "replay", suites.replay(config, name), rounds, quick, asked.out)
    return finish(console, [folder], replay=case)


def scaling(asked: RunConfig, rounds: int | None, quick: bool, max_devices: int) -> int:
    """Weak and strong scaling of every mode."""
    refuse(asked, "mode", "num_devices")
    console = tables.terminal()
    config = prepare(console, dataclasses.replace(asked, mode="ddp", num_devices=max_devices))
    modes, folders = available(console), []
    for kind in ("weak", "strong"):
        roles = suites.scaling(config, modes, max_devices, strong=kind == "strong")
        folders.append(run(console, kind, roles, rounds, quick, asked.out))
    return finish(console, folders)


def breakdown(asked: RunConfig, rounds: int | None, quick: bool) -> int:
    """Where the step goes and where the memory goes, for every mode."""
    refuse(asked, "mode")
    console = tables.terminal()
    config = prepare(console, dataclasses.replace(asked, mode="ddp"))
    modes = available(console)
    suite = running.new_suite("breakdown")
    folder = run(console, "breakdown", suites.breakdown(config, modes), rounds, quick, asked.out, suite=suite)
    for mode, profiled in suites.profiled(config, modes).items():
        running.run_one(console, suite, mode, profiled, 0, folder, f"profile {mode}")
    return finish(console, [folder])


def knobs(asked: RunConfig, rounds: int | None, quick: bool) -> int:
    """The settings of one engine, or of training: those that this machine can have."""
    console = tables.terminal()
    config, roles = prepare(console, asked), {}
    for role, setting in suites.knobs(config).items():
        try:
            choose_device(setting)
            roles[role] = setting
        except UserError as error:
            console.print(f"left out: {role}: {error}", markup=False)
    if any(setting.compile for setting in roles.values()):
        if not config.warmup_steps:
            raise UserError("WARMUP=0 would time the compiler: give untimed steps, as in WARMUP=3")
        console.print(COMPILE_NOTE)
    return finish(console, [run(console, "knobs", roles, rounds, quick, asked.out)])


def accuracy(asked: RunConfig, seeds: int | None, quick: bool) -> int:
    """Every mode trained to the end, once a seed: do all reach the same accuracy? asked: with the recipe's options."""
    console = tables.terminal()
    config = prepare_training(console, asked)
    roles = suites.accuracy(config, available(console))
    console.print(f"margin, fixed now: {accuracies.margin_words()}, against {next(iter(roles))}, paired by seed")
    folder = run(console, "accuracy", roles, seeds, quick, asked.out, in_round=suites.own_seed, say=last_top1)
    return finish(console, [folder])


def last_top1(record: dict) -> str:
    """What is said of a training while its suite goes on."""
    return f"{100 * record['accuracy']['top1']:.2f} %" if "top1" in record["accuracy"] else "not validated"


def refuse(asked: RunConfig, *names: str) -> None:
    """Raise UserError for an option that this command would ignore."""
    for f in dataclasses.fields(asked):
        if f.name in names and getattr(asked, f.name) != f.default:
            raise UserError(f"{variable_of(f)} belongs to single runs (`make bench`): leave it out")


def refuse_unfair(console, result, folder) -> None:
    """STRICT=1: raise UserError, after the certificate, when something differed."""
    if not result.certificate.fair:
        tables.print_certificate(console, result.certificate)
        raise UserError(f"STRICT=1: {result.certificate.sentence()}; the records are in {folder}")


def prepare(console, asked: RunConfig, trains: bool = False) -> RunConfig:
    """Refuse what would be ignored, fill in this machine's defaults, and say what will run. Raises UserError.

    trains: by epochs and not by steps.
    """
    refuse(asked, *(name for name in NOT_HERE if not (trains and name in OF_TRAINING)))
    config = dataclasses.replace(resolve_here(asked), baselines=False)
    if config.device == "cpu":
        console.print("No GPU is used: CPU workers stand for devices; memory is the host's.")
    work = f"{config.warmup_steps} + {config.timed_steps} steps"
    if trains:
        work = f"{config.epochs} epochs, learning rate {config.lr:g} ({config.schedule})"
    console.print(
        f"{config.model}, {config.data} at {config.image_size} px, {config.per_device_batch} images a device, "
        f"{work}, {config.precision}, seed {config.seed}"
    )
    return config


def prepare_training(console, asked: RunConfig) -> RunConfig:
    """``prepare`` for a suite that trains to the end: a recipe is for one global batch, which is shared out to the
    devices where the user names no batch, and nothing is written but the record."""
    refuse(asked, "mode", "timed_steps", "warmup_steps")
    if asked.per_device_batch is None:
        share = max(1, RECIPE_GLOBAL_BATCH // (asked.num_devices * asked.accumulate))
        asked = dataclasses.replace(asked, per_device_batch=share)
    config = prepare(console, dataclasses.replace(asked, mode="ddp"), trains=True)
    return dataclasses.replace(config, checkpoint=False)


def available(console) -> list[str]:
    """The ways to train that can run here; what is missing is said."""
    modes = []
    for mode in suites.WAYS:
        needs = MODES[mode].needs
        if needs and importlib.util.find_spec(needs) is None:
            console.print(f"left out: {mode} needs {needs}, which is not installed: run `bench install-{needs}`")
        else:
            modes.append(mode)
    return modes


def run(console, kind, roles, rounds, quick, out, after_round=None, suite=None, **each) -> Path:
    """Run a suite and return its folder. rounds: None for the default. each: as ``run_rounds`` takes it."""
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS[kind])
    if quick:
        console.print(f"[bold]QUICK: {rounds} rounds. Intervals will be wide; do not quote them.[/]")
    console.print(f"{kind}: {len(roles)} programs, {rounds} rounds")
    return running.run_rounds(console, suite or running.new_suite(kind), roles, rounds, out, after_round, **each)


def finish(console, folders: list[Path], replay=None, strict: bool = False) -> int:
    """Certificate, table, verdict; pictures and a page beside the records. The page's path is the last line.

    Raises UserError when ``strict`` is given and something differed after all.
    """
    from bench.analysis import drawing as figures
    from bench.analysis import style
    from bench.report import page

    found, refused = [], []
    for folder in folders:
        records, bad = find_records(folder)
        suite = suite_of(folder.name, records)
        result = style.result_of(suite)
        if strict:
            refuse_unfair(console, result, folder)
        tables.PRINTERS.get(suite.kind, tables.print_result)(console, result)
        if replay:
            tables.print_replay(console, result, replay)
        for name, figure in figures.figures_of(result).items():
            figures.save(figure, folder / "pictures", name)
        found.append(suite)
        refused += bad
    path = page.write_page(found, [], refused, folders[0] / "report.html")
    for folder in folders:
        print(f"records and pictures: {folder}")
    print(f"report: {path}", flush=True)
    return 0
