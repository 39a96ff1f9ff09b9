"""`bench help`: every command in groups, for the terminal and for make."""

from collections.abc import Iterator

from bench.cli.base import GROUPS, Command
from bench.errors import ExitCode

COLUMN = 40  # letters


def run(args) -> int:
    from bench.cli import LINES

    if args.targets:
        print(*(line.make + ("+course" if "course" in line.needs else "") for line in LINES if line.module))
    elif args.make:
        print("\n".join(listing(LINES, "make")))
        print("\nOptions are variables: make bench MODE=ddp GPUS=4. `bench COMMAND --help` lists those of a command.")
        print("VENV=none uses this Python and replaces nothing in it; PYTHON=python3.12 makes .venv with another.")
        print("TORCH=cpu, cuda, cu126, cu128 or cu130 chooses PyTorch's build for .venv [by the driver].")
    else:
        print("usage: bench COMMAND [--option=value ...]\n")
        print("\n".join(listing([line for line in LINES if line.module], "bench")))
        print("\n`bench COMMAND --help` lists the options of a command.")
        print("\nexit codes")
        for code in ExitCode:
            print(f"  {code:<5d}{code.meaning}")
    return 0


def listing(lines: list[Command], program: str) -> Iterator[str]:
    """The groups one below the other; of make with the variables that are given most often."""
    names = {line.name: f"bench {line.name}" for line in lines}
    if program == "make":
        names = {line.name: f"make {line.make} {line.example}".rstrip() for line in lines}
    width = min(COLUMN, max(map(len, names.values())))
    for group in GROUPS:
        found = [line for line in lines if line.group == group]
        if found:
            yield group
        for line in found:
            name = names[line.name]
            if len(name) > width:
                yield f"  {name}"
                name = ""
            yield f"  {name:{width}}  {line.help}"
