"""The command line: finds the command in the table, runs it, and turns an error into one line and an exit code."""

import io
import os
import re
import signal
import sys

from bench.cli import ALIASES, COMMANDS, GONE, OF_MAKE, RENAMED
from bench.cli.base import Command, misspelt_variables, nearest
from bench.errors import MOST_LETTERS, BenchError, ExitCode, UserError, printable, shortened

INSTALLS = "BENCH_INSTALLS"  # set by make: a command may install its requirements


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's error is one line on standard error."""
    words = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):  # a terminal or file that is not UTF-8 gets ? for unencodable characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        if words and words[0] in ("-h", "--help"):
            words = ["help", *words[1:]]
        command, words = command_of(words)
        args = command.parse(words)
        by_make = bool(os.environ.pop(INSTALLS, ""))
        if by_make and argv is None:
            from bench.process import ending

            ending.with_parent()
        if unused := command.unused_variables(words, args):
            print(not_used(command, unused, by_make), file=sys.stderr)
        for name, meant in misspelt_variables(os.environ):
            print(f"bench: {name} is set, but nothing reads it: did you mean {meant}?", file=sys.stderr)
        if command.missing_clone(args):
            raise UserError(
                f"`bench {command.name}` works on files that the installed package does not contain: clone the "
                f"project, and run `make {command.make}` there"
            )
        if by_make and "horovod" in command.needs:
            from bench.cli.install import provide_horovod

            provide_horovod(args)
        return command.run(args) or ExitCode.DONE
    except BenchError as error:
        if error.exit_code == ExitCode.INTERRUPTED and argv is None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # another Ctrl-C has no effect
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
        if argv is None:  # with others, this process continues
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("bench: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def not_used(command: Command, names: list[str], by_make: bool) -> str:
    """A note on variables that may be meant as options. Their values may be secrets and are not shown."""
    flags = [f"{name}=…" if by_make else f"--{name.lower().replace('_', '-')}=…" for name in names]
    how = " ".join([f"make {command.make}" if by_make else f"bench {command.name}", *flags])
    verb = "is an environment variable and is" if len(names) == 1 else "are environment variables and are"
    return f"bench: {', '.join(names)} {verb} not used: options are given as in `{how}`"


def command_of(words: list[str]) -> tuple[Command, list[str]]:
    """The command that a command line names, and the words after its name. Raises UserError."""
    if not words:
        raise UserError("give a command: `bench help` lists them")
    name, *rest = words
    if name in RENAMED:
        print(f"bench: {name} is `bench {RENAMED[name]}` since version 0.2", file=sys.stderr)
    if new := (ALIASES | RENAMED).get(name):
        name, *more = new.split()
        rest = [*more, *rest]
    if command := COMMANDS.get(name):
        if rest and rest[0] in command.parts:
            return command.parts[rest[0]], rest[1:]
        if command.run or rest[:1] in (["-h"], ["--help"]):
            return command, rest
        raise UserError(f"{name}: add {' or '.join(command.parts)}, as in `bench {name} {next(iter(command.parts))}`")
    if name in [line.name for line in OF_MAKE]:
        raise UserError(f"{name} is a target of make: run `make {name}`")
    if re.match("--local[-_]rank", name):
        raise UserError(
            f"{name} comes from torch.distributed.launch: start `bench run` with torchrun, or give --use-env"
        )
    if name in GONE:
        raise UserError(f"{name} is no longer a command: in a clone, run `{GONE[name]}`")
    near = " or ".join(nearest(name, [*COMMANDS, *ALIASES, *RENAMED]))
    raise UserError(f"unknown command {name}: {f'did you mean {near}?' if near else '`bench help` lists them'}")


if __name__ == "__main__":
    sys.exit(main())
