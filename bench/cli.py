"""The commands. Each is one target of the Makefile with the same options; none imports torch itself."""

import argparse
import os
import signal
import sys
from pathlib import Path

from bench import config as cfg
from bench.errors import BenchError, UserError


def main(argv: list[str] | None = None) -> int:
    """Read the command line, run the command, return the exit code. A user's error is one line on stderr."""
    args = build_parser().parse_args(argv)
    try:
        return args.command(args) or 0
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `bench report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


class Parser(argparse.ArgumentParser):
    """argparse, but an error is one line and exit code 2, and a shortened flag is an error."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, **options)

    def error(self, message):
        self.exit(2, f"bench: {message} (see `{self.prog} --help`)\n")


def build_parser() -> argparse.ArgumentParser:
    """One sub-command a command; those that run something take the options of RunConfig."""
    from bench.install import horovod

    parser = Parser(prog="bench", description="Data-parallel training, measured fairly: single, DP, DDP, Horovod.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, function, text in (
        ("run", run, "run one benchmark; prints a table, and `record: PATH` as its last line"),
        ("verify", verify, "show that all modes compute the same update on this machine"),
        ("gpu-check", gpu_check, "run what only a GPU can prove; leaves records for results/reference/"),
        ("selfbench", selfbench, "measure what the harness itself costs, against bare scripts"),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        cfg.add_arguments(sub)
        sub.set_defaults(command=function)
        if name == "selfbench":
            sub.add_argument("--rounds", default="8", metavar="ROUNDS", help="interleaved rounds [8]")
            sub.add_argument("--only", metavar="PART", help="overhead, horovod, bound or startup [all]")
    sub = commands.add_parser("report", help="a table of the records below a folder")
    sub.add_argument("folder", nargs="?", default="results/runs")
    sub.set_defaults(command=report)
    sub = commands.add_parser("doctor", help="what this machine has, what each mode can run here, and what is wrong")
    sub.set_defaults(command=doctor)
    sub = commands.add_parser("install-horovod", help="build Horovod against the installed torch, and install it")
    horovod.add_arguments(sub)
    sub.set_defaults(command=horovod.run)
    return parser


def run(args) -> int:
    """One run, and on a CPU the two baselines that decide whether distribution paid at all."""
    from bench import record, suites
    from bench.launch.run import resolve_here
    from bench.report import tables

    config = resolve_here(cfg.from_arguments(args))
    console = tables.terminal()
    announce(console, config)
    path = run_live(console, config, config.mode)
    baselines = []
    if config.baselines and config.num_devices > 1:
        baselines = [record.load(run_live(console, b, b.mode)) for b in suites.baselines(config, path.parent)]
    tables.print_run(console, record.load(path), baselines)
    print(f"record: {path}", flush=True)
    return 0


def run_live(console, config: cfg.RunConfig, title: str) -> Path:
    """Launch one config under a progress bar."""
    from bench.launch.run import launch
    from bench.live import LiveProgress

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
    console.print(
        f"{config.mode} on {config.num_devices} × {config.device}: {config.model}, {config.data} at "
        f"{config.image_size} px, {config.per_device_batch} images a device a step, {steps}, {config.precision}, "
        f"{config.launcher}, seed {config.seed}"
    )


def report(args) -> int:
    """A table of all records below a folder."""
    from bench.report import tables
    from bench.report.load import find_records

    records, refused = find_records(Path(args.folder))
    console = tables.terminal()
    for machine in sorted({tables.machine_line(r) for r in records if r["status"] == "ok"}):
        console.print(machine)
    console.print(tables.run_table(records))
    for sentence in refused:
        print(f"refused: {sentence}", file=sys.stderr)
    return 1 if refused and not records else 0


def doctor(args) -> int:
    """What this machine has."""
    from bench import doctor

    return doctor.run()


def verify(args) -> int:
    """All modes from the same start on the same batches."""
    from bench import verify

    return verify.run(cfg.from_arguments(args))


def gpu_check(args) -> int:
    """What only a GPU can prove."""
    from bench import gpu_check

    return gpu_check.run(cfg.from_arguments(args))


def selfbench(args) -> int:
    """What the harness costs."""
    from bench.selfbench import run

    rounds = int(args.rounds) if args.rounds.isdecimal() and int(args.rounds) >= 2 else None
    if rounds is None:
        raise UserError(f"ROUNDS={args.rounds}: at least 2, for an interval")
    return run.run(cfg.from_arguments(args), rounds, args.only)


if __name__ == "__main__":
    sys.exit(main())
