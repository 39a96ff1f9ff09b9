"""The known mistakes of data-parallel training: list, explain, reproduce, find in records."""

from bench.cli.base import RECORDS, Command, action, study_command
from bench.errors import ExitCode, UserError
from bench.mistakes import DETECTED, MISTAKES, scripts
from bench.studies.registry import STUDIES


def show_all(args) -> int:
    width = max(map(len, DETECTED))
    for name, mistake in DETECTED.items():
        print(f"{name:{width}}  {mistake.title}{'' if name in MISTAKES else ' (found in scripts; no demo)'}")
    print("\n`bench mistake show NAME` explains one; `bench mistake demo NAME` runs it beside the right version.")
    return ExitCode.DONE


def show(args) -> int:
    if args.name not in DETECTED:
        raise UserError(f"NAME={args.name or ''}: not a known mistake; `bench mistake` lists them")
    mistake = DETECTED[args.name]
    print(f"{mistake.name}: {mistake.title}\n")
    print(f"consequence: {mistake.consequence}\n\nremedy: {mistake.remedy}")
    if case := scripts.read(mistake.case).get(mistake.case):
        print(f"\nexample: {case.about}\ndiff against the right script ({case.base} in bench/mistakes/scripts):\n")
        print("\n".join(case.difference()))
    if mistake.lab:
        print(f"\ndemo: bench mistake demo {mistake.name}")
    return ExitCode.DONE


NAME = {"metavar": "NAME", "help": "name of a mistake, as `bench mistake` lists them"}
SHOW = Command("mistake show", "explain", "one known mistake explained: consequence, remedy, and a diff that makes it",
               "NAME=no-reshuffle", run=show, positional={"name": NAME})  # fmt: skip
CHECK = Command("mistake check", "explain", "search records for the known mistakes",
                "RECORDS=folder", run=action("check_records"), positional={"records": RECORDS})  # fmt: skip
DEMO = study_command(STUDIES["lab"], positional={"name": NAME | {"help": "name of a mistake with a demo, or all"}})
COMMAND = Command("mistake", "explain", "known mistakes of data-parallel training: list, explain, reproduce, find",
                  run=show_all, parts=(SHOW, DEMO, study_command(STUDIES["unsynced"]), CHECK))  # fmt: skip
