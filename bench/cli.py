"""The commands. Each is one target of the Makefile with the same options; none imports torch itself."""

import argparse
import os
import signal
import sys
from pathlib import Path

from bench.config import options as cfg
from bench.errors import BenchError, UserError
from bench.mistakes import MISTAKES, confession
from bench.storage.remote import without_credentials


def main(argv: list[str] | None = None) -> int:
    """Read the command line, run the command, return the exit code. A user's error is one line on stderr."""
    args = build_parser().parse_args(argv)
    try:
        return args.command(args) or 0
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `bench report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a folder that may not be written to
        print(f"bench: {error.filename or 'writing'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130


ROUNDS = {"--rounds": {"metavar": "ROUNDS", "help": "interleaved rounds [compare and selfbench 8, others 5]"}}
SEEDS = {
    "--seeds": {"metavar": "SEEDS", "help": "seeds, one a round, from SEED on [accuracy 5, unsynced-init 10, lab 3]"}
}
QUICK = {"--quick": {"metavar": "QUICK", "nargs": "?", "const": "1", "help": "2 rounds: a look, not a result"}}
SUITE_FLAGS = {  # what these commands take beside the options of a run
    "compare": ROUNDS | QUICK | {
        "--strict": {"metavar": "STRICT", "nargs": "?", "const": "1", "help": "refuse an unfair comparison"},
        "--replay": {"metavar": "REPLAY", "help": "an unfairness on purpose: dp-workers, horovod-fp16, ddp-barrier, "
                     "item-sync, batch-grows, or nothing"},
    },
    "scaling": ROUNDS | QUICK | {"--max-gpus": {"metavar": "MAX_GPUS", "default": "4", "help": "up to so many [4]"}},
    "breakdown": ROUNDS | QUICK,
    "knobs": ROUNDS | QUICK,
    "accuracy": SEEDS | QUICK,
    "unsynced-init": SEEDS | QUICK,
    "lab": SEEDS | QUICK | {"--name": {"metavar": "NAME", "help": f"{', '.join(MISTAKES)}, or all"}},
    "selfbench": ROUNDS | {"--only": {"metavar": "PART", "help": "loop, overhead, horovod, bound, startup, input"}},
}  # fmt: skip

# Command -> options that it has another default for.
OWN_DEFAULTS = {"accuracy": cfg.ACCURACY, "unsynced-init": cfg.UNSYNCED, "lab": cfg.LAB}


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and exit code 2, and a shortened flag is an error."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        self.exit(2, f"bench: {message} (see `{self.prog} --help`)\n")


def build_parser() -> argparse.ArgumentParser:
    """One sub-command a command; those that run something take the options of RunConfig."""
    from bench.commands import course as teaching
    from bench.install import horovod_install as horovod

    parser = Parser(prog="bench", description="Data-parallel training, measured fairly: single, DP, DDP, Horovod.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, function, text in (
        ("run", run, "run one benchmark; prints a table, and `record: PATH` as its last line"),
        ("compare", compare, "all modes on one workload in interleaved rounds: certificate, verdict, pictures, page"),
        ("scaling", scaling, "weak and strong scaling of every mode, with the bound without communication"),
        ("breakdown", breakdown, "where the step and the memory go: phases, exposed communication, timeline of a step"),
        (
            "knobs",
            knobs,
            "the settings of MODE=ddp or horovod, or of training with MODE=single or dp, each against the run's",
        ),
        ("accuracy", accuracy, "every mode trained to the end, paired by seed: do all reach the same accuracy?"),
        ("unsynced-init", unsynced_init, "what is lost when replicas start from different weights, paired by seed"),
        ("lab", lab, "a known mistake beside the right version, over seeds: what it does and how it is found"),
        ("verify", verify, "show that all modes compute the same update on this machine"),
        ("gpu-check", gpu_check, "run what only a GPU can prove; leaves records for results/reference/"),
        ("selfbench", selfbench, "measure what the harness itself costs, against bare scripts"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        cfg.add_arguments(sub, OWN_DEFAULTS.get(name))
        sub.set_defaults(command=function)
        for flag, options in SUITE_FLAGS.get(name, {}).items():
            sub.add_argument(flag, **options)
    text = "look for the known mistakes in records; exit code 3 when one is found"
    sub = commands.add_parser("check", help=text, description=text)
    sub.add_argument("folder", nargs="?", default="results/runs", help="a record or a folder of records [results/runs]")
    sub.set_defaults(command=check)
    sub = commands.add_parser("report", help="a table of the records below a folder; with --html one page as well")
    sub.add_argument("folder", nargs="?", default="results/runs", help="folder of records [results/runs]")
    sub.add_argument("--html", metavar="FILE", nargs="?", const="", help="write the page [FOLDER/report.html]")
    sub.set_defaults(command=report)
    sub = commands.add_parser("plots", help="every picture of the suites below a folder, as SVG and PNG")
    sub.add_argument("folder", nargs="?", default="results/runs", help="folder of records [results/runs]")
    sub.set_defaults(command=plots)
    sub = commands.add_parser("table", help="the records below a folder as a table: CSV, Parquet or Markdown")
    sub.add_argument("folder", nargs="?", default="results/runs", help="folder of records [results/runs]")
    sub.add_argument("--to", metavar="FILE", help="a new file, never one that exists [standard output]")
    sub.add_argument("--format", metavar="FORMAT", help="csv, parquet or md [by the name of FILE; md without one]")
    sub.add_argument("--memory", metavar="MEMORY", nargs="?", const="1",
                     help="peak memory, a row a device and source, instead")  # fmt: skip
    sub.set_defaults(command=table)
    text = "two sets of records compared: two machines, two versions, before and after; exit code 3 on a regression"
    codes = "exit codes: 0 no regression shown; 3 a regression beyond --bound, never without it; 2 not comparable"
    sub = commands.add_parser("diff", help=text, description=text, epilog=codes)
    sub.add_argument("a", metavar="A", help="folder of the first set, or one record.json")
    sub.add_argument("b", metavar="B", help="folder of the second set: each ratio is B over A")
    sub.add_argument("--bound", metavar="PERCENT", help="exit 3 when the whole 95 %% interval of a mode is slower by "
                     "more than this; one record on a side has no interval and is not judged")  # fmt: skip
    sub.add_argument("--strict", metavar="STRICT", nargs="?", const="1", help="exit 3 unless the whole interval of "
                     "every mode of A is shown to be within --bound; one record on a side fails")  # fmt: skip
    sub.set_defaults(command=diff)
    sub = commands.add_parser("pool", help="records of many machines: checked, one table, one picture, a new folder")
    sub.add_argument("folder", metavar="FOLDER", help="folder with the records of many machines below it")
    sub.add_argument("--out", metavar="OUT", default="results/pool", help="where a new folder is made [results/pool]")
    sub.set_defaults(command=pool)
    sub = commands.add_parser("doctor", help="what this machine has, what each mode can run here, and what is wrong")
    sub.set_defaults(command=doctor)
    sub = commands.add_parser("install-horovod", help="build Horovod against the installed torch, and install it")
    horovod.add_arguments(sub)
    sub.set_defaults(command=horovod.run)
    teaching.add(commands)
    return parser


def run(args) -> int:
    """One run, and on a CPU the two baselines that decide whether distribution paid at all."""
    from bench.analysis import tables
    from bench.commands import check
    from bench.launch.launcher import resolve_here
    from bench.record import write as record
    from bench.storage import remote
    from bench.storage import stage as storage
    from bench.studies import programs as suites

    config = resolve_here(cfg.from_arguments(args))
    console = tables.terminal()
    announce(console, config)
    if config.copy_to:
        remote.Remote(config.copy_to, config.timeout)  # a wrong address is said before the training, not after
    path = run_live(console, config, config.mode)
    baselines = []
    if config.baselines and config.num_devices > 1 and not config.epochs and not config.evaluate:
        baselines = [record.load(run_live(console, b, b.mode)) for b in suites.baselines(config, path.parent)]
    tables.print_run(console, record.load(path), baselines)
    if config.watch:
        check.show_run(record.load(path))
    try:
        if config.copy_to:
            print(f"copied to: {storage.copy_back(path.parent, config.copy_to, config.timeout)}")
    finally:
        print(f"record: {path}", flush=True)
    return 0


def run_live(console, config: cfg.RunConfig, title: str) -> Path:
    """Launch one config under a progress bar."""
    from bench.launch.launcher import launch
    from bench.launch.progress_bar import LiveProgress

    with LiveProgress(config, console, title) as watch:
        return launch(config, watch)


def announce(console, config: cfg.RunConfig) -> None:
    """Before anything runs: what will run, with the defaults that were chosen, and what stands for a device."""
    if config.device == "cpu" and config.num_devices > 1:
        console.print(
            f"No GPU is used: {config.num_devices} CPU workers stand for {config.num_devices} devices; memory is the "
            "host's."
        )
    steps = f"{config.epochs} epochs" if config.epochs else f"{config.warmup_steps} + {config.timed_steps} steps"
    steps = "validation alone" if config.evaluate else steps
    data = without_credentials(config.data)
    console.print(
        f"{config.mode} on {config.num_devices} × {config.device}: {config.model}, {data} at {config.image_size} px, "
        f"{config.per_device_batch} images a device a step, {steps}, {config.precision}, "
        f"{config.launcher}, seed {config.seed}"
    )
    if config.mistake != "none":
        console.print(f"[bold red]{confession(config.mistake)}[/]")


def report(args) -> int:
    """A table of all records below a folder, and the page when it is asked for."""
    from bench.analysis import tables
    from bench.record.read import find_records

    folder = Path(args.folder)
    records, refused = find_records(folder)
    console = tables.terminal()
    for machine in sorted({tables.machine_line(r) for r in records if r["status"] == "ok"}):
        console.print(machine)
    tables.print_records(console, records)
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    if args.html is not None:
        from bench.analysis.suite import suites_of
        from bench.report import page

        suites = suites_of(records)
        shown = {suite.id for suite in suites}
        others = [record for record in records if record["config"]["suite"] not in shown]
        path = page.write_page(suites, others, refused, Path(args.html or folder / "report.html"))
        print(f"report: {path}", flush=True)
    return 1 if refused and not records else 0


def plots(args) -> int:
    """Every suite's pictures, beside its records in a folder called pictures."""
    from bench.analysis import drawing as figures
    from bench.analysis.suite import suites_of
    from bench.record.read import FOLDER, find_records

    folder = Path(args.folder)
    records, refused = find_records(folder)
    suites = suites_of(records)
    if not suites:
        raise UserError(f"no suite below {folder} to draw: run `make compare` first")
    for suite in suites:
        try:
            drawn = figures.figures_of(suite)
        except UserError as error:
            refused.append(str(error))
            continue
        for name, figure in drawn.items():
            print(figures.save(figure, Path(suite.first[FOLDER]).parent / "pictures", name)[0])
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    return 0


def table(args) -> int:
    """The records as data."""
    from bench.report import export as frame

    return frame.run(args.folder, args.to, args.format, is_on("MEMORY", args.memory))


def diff(args) -> int:
    """Two sets of records."""
    from bench.report import difference as diff

    return diff.run(args.a, args.b, args.bound, is_on("STRICT", args.strict))


def pool(args) -> int:
    """Records of many machines."""
    from bench.report import pooling as pool

    return pool.run(args.folder, args.out)


def doctor(args) -> int:
    """What this machine has."""
    from bench.commands import doctor

    return doctor.run()


def verify(args) -> int:
    """All modes from the same start on the same batches."""
    from bench.commands import verify

    return verify.run(cfg.from_arguments(args))


def gpu_check(args) -> int:
    """What only a GPU can prove."""
    from bench.commands import gpu_check

    return gpu_check.run(cfg.from_arguments(args))


def selfbench(args) -> int:
    """What the harness costs."""
    from bench.selfbench import benchmark as run

    return run.run(cfg.from_arguments(args), rounds_of(args, at_least=2) or 8, args.only)


def compare(args) -> int:
    """All modes on one workload."""
    from bench.commands import study as experiments

    words = rounds_of(args), is_on("QUICK", args.quick), is_on("STRICT", args.strict), args.replay
    return experiments.compare(cfg.from_arguments(args), *words)


def scaling(args) -> int:
    """Weak and strong scaling."""
    from bench.commands import study as experiments

    most = whole("MAX_GPUS", args.max_gpus, at_least=2)
    return experiments.scaling(cfg.from_arguments(args), rounds_of(args), is_on("QUICK", args.quick), most)


def breakdown(args) -> int:
    """Where the step and the memory go."""
    from bench.commands import study as experiments

    return experiments.breakdown(cfg.from_arguments(args), rounds_of(args), is_on("QUICK", args.quick))


def knobs(args) -> int:
    """The settings of an engine."""
    from bench.commands import study as experiments

    return experiments.knobs(cfg.from_arguments(args), rounds_of(args), is_on("QUICK", args.quick))


def accuracy(args) -> int:
    """Whether all modes learn the same."""
    from bench.commands import study as experiments

    return experiments.accuracy(cfg.from_arguments(args), seeds_of(args), is_on("QUICK", args.quick))


def unsynced_init(args) -> int:
    """Replicas that start apart."""
    from bench.studies.unsynced import study as unsynced

    return unsynced.run(cfg.from_arguments(args), seeds_of(args), is_on("QUICK", args.quick))


def lab(args) -> int:
    """A known mistake beside the right version."""
    from bench.studies.lab import study as museum

    return museum.run(cfg.from_arguments(args), args.name, seeds_of(args), is_on("QUICK", args.quick))


def check(args) -> int:
    """The known mistakes, looked for in records."""
    from bench.commands import check

    return check.run(args.folder)


def seeds_of(args) -> int | None:
    """The seeds that were asked for; None: the command's own number."""
    return None if args.seeds is None else whole("SEEDS", args.seeds, at_least=1)


def rounds_of(args, at_least: int = 1) -> int | None:
    """The rounds that were asked for; None: the command's own number."""
    return None if args.rounds is None else whole("ROUNDS", args.rounds, at_least)


def whole(name: str, text: str, at_least: int) -> int:
    """A whole number from the command line. Raises UserError for anything else."""
    if not text.isdecimal() or int(text) < at_least:
        raise UserError(f"{name}={text}: a whole number, at least {at_least}")
    return int(text)


def is_on(name: str, text: str | None) -> bool:
    """A switch from the command line. Raises UserError for anything but 1 and 0."""
    if text not in (None, "0", "1"):
        raise UserError(f"{name}={text}: write 1 or 0")
    return text == "1"


if __name__ == "__main__":
    sys.exit(main())
