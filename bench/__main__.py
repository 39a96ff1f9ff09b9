"""The command line: finds the command in the table, runs it, and turns an error into one line and an exit code."""

import io
import os
import re
import signal
import sys

from bench.cli import COMMANDS
from bench.cli.base import Command, misspelt_variables, nearest
from bench.errors import MOST_LETTERS, BenchError, ExitCode, UserError, printable, shortened

INSTALLS = "BENCH_INSTALLS"  # set by make: a command may install what it needs


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's error is one line on standard error."""
    words = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # a terminal or a file that is not UTF-8 shows ? for what it has not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        if words and words[0] in ("-h", "--help"):
            words = ["help", *words[1:]]
        command = command_of(words)
        args = command.parse(words[1:])
        by_make = bool(os.environ.pop(INSTALLS, ""))
        if by_make and argv is None:
            from bench.process import ending

            ending.with_parent()
        if unused := command.unused_variables(words[1:], args):
            print(not_used(command, unused, by_make), file=sys.stderr)
        for name, meant in misspelt_variables(os.environ):
            print(f"bench: {name} is set, but nothing reads it: did you mean {meant}?", file=sys.stderr)
        if command.missing_clone(args):
            raise UserError(
                f"`bench {command.name}` works on files of the project that this installed package has not: clone the "
                f"project, and run `make {command.make}` there"
            )
        if by_make and "horovod" in command.needs:
            from bench.cli.install_horovod import provide

            provide(args)
        return command.run(args)
    except BenchError as error:
        if error.exit_code == ExitCode.INTERRUPTED and argv is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a further Ctrl-C changes nothing any more
        print(f"bench: {shortened(printable(str(error)), MOST_LETTERS)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `bench report | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a folder that may not be written to
        place = error.filename or "writing"
        print(f"bench: {printable(f'{place}: {error.strerror or error}')}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        if argv is None:  # with others, this process goes on
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("bench: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def not_used(command: Command, names: list[str], by_make: bool) -> str:
    """What to say of variables that somebody may have meant as options. Their values may be secrets: not shown."""
    flags = [f"{name}=…" if by_make else f"--{name.lower().replace('_', '-')}=…" for name in names]
    how = " ".join([f"make {command.make}" if by_make else f"bench {command.name}", *flags])
    verb = "is an environment variable and is" if len(names) == 1 else "are environment variables and are"
    return f"bench: {', '.join(names)} {verb} not used: options are given as in `{how}`"


GONE = {
    "selfbench": "python -m tests.validation.overhead",
    "forecast-check": "python -m tests.validation.forecast",
    "renew": "python -m tests.validation.renew",
}


def command_of(words: list[str]) -> Command:
    """The command that the first word names, by its own name or by that of its target of make. Raises UserError."""
    if not words:
        raise UserError("give a command: `bench help` lists them")
    known = {name: line for line in COMMANDS.values() if line.module for name in (line.name, line.make)}
    if words[0] in known:
        return known[words[0]]
    if words[0] in COMMANDS:
        raise UserError(f"{words[0]} is a target of make alone: run `make {words[0]}`")
    if re.match("--local[-_]rank", words[0]):
        raise UserError(
            f"{words[0]} comes from torch.distributed.launch: start `bench run` with torchrun, or give --use-env"
        )
    if words[0] in GONE:
        raise UserError(f"{words[0]} is no command any more: in a clone run `{GONE[words[0]]}`")
    near = " or ".join(nearest(words[0], known))
    raise UserError(f"unknown command {words[0]}: {f'did you mean {near}?' if near else '`bench help` lists them'}")


if __name__ == "__main__":
    sys.exit(main())
