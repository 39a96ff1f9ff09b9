from collections.abc import Iterator

from bench.cli.base import GROUPS, Command
from bench.config.flags import SWITCH
from bench.errors import ExitCode

COLUMN = 40  # characters


def run(args) -> int:
    from bench.cli import ALIASES, COMMANDS, OF_MAKE, RENAMED, all_commands

    if args.targets:  # for the Makefile
        names = [*COMMANDS, *ALIASES, *RENAMED]
        parts = [part.name.replace(" ", "/") for part in all_commands() if " " in part.name]
        course = {line.name.replace(" ", "/") for line in all_commands() if "course" in line.needs}
        course |= {
            old for old, new in (ALIASES | RENAMED).items() if new.partition(" -")[0].replace(" ", "/") in course
        }
        print(*(name + ("+course" if name in course else "") for name in [*names, *parts]))
    elif args.make:
        print("\n".join(listing([*COMMANDS.values(), *OF_MAKE], "make")))
        print("\nOptions are variables: make bench MODE=ddp GPUS=4. `bench COMMAND --help` lists those of a command.")
        print(
            "VENV=none uses this Python and leaves its packages untouched; PYTHON=python3.12 makes .venv with another."
        )
        print("TORCH=cpu, cuda, cu126, cu128 or cu130 chooses PyTorch's build for .venv [by the driver].")
    else:
        print("usage: bench COMMAND [SUBCOMMAND] [ARGUMENT] [--option=value ...]\n")
        print("\n".join(listing(list(COMMANDS.values()), "bench")))
        print(
            "\n`bench COMMAND --help` lists the options of a command. With make an option is a variable: make X GPUS=2."
        )
        print("\n中文: README.zh.md. The course: `bench site`, build/site/zh; `bench notebooks --edition zh`.")
        print("\nexit codes")
        for code in ExitCode:
            print(f"  {code:<5d}{code.meaning}")
    return 0


def listing(lines: list[Command], program: str) -> Iterator[str]:
    """The commands in groups; for make with the variables that are given most often."""
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
            if line.parts:
                own = f"{program} {line.make if program == 'make' else line.name}"
                yield f"  {'':{width}}  also: " + ", ".join(f"{own} {word}" for word in line.parts)


COMMAND = Command("help", "set up", "this list", run=run, flags={
    "--make": SWITCH | {"help": "as targets of make"},
    "--targets": SWITCH | {"help": "the targets of make; +course: needs the course's packages"},
})  # fmt: skip
