"""The commands: one table, from which `bench`, the Makefile, their help and the README's list are made.

To add one: its file in this folder, with ``run(args)``, and its line here.
"""

from bench.commands.base import Command
from bench.config.command_line import ON_OFF
from bench.config.options import UNSET
from bench.studies.base import Study
from bench.studies.registry import STUDIES
from bench.studies.sequential import MAX_MINUTES

HOROVOD, COURSE, CLONE, CLONE_OR_SETS = ("horovod",), ("course",), ("clone",), ("sets",)
FOLDER = {"out": {"metavar": "FOLDER", "help": "folder of records [results/runs]"}}
QUICK = {"--quick": ON_OFF | {"metavar": "QUICK", "help": "2 rounds: a look, not a result"}}
NAME = {"--name": {"metavar": "NAME", "help": "only those whose name begins so: 03, or 03,07"}}
SETS = NAME | {"--sets": {"metavar": "FOLDER", "help": "the sets' texts [tutorials/exercises]"}}
LIMIT = {"--timeout": {"metavar": "SECONDS", "default": "60", "help": "limit of one cell; five times this for a whole "
                       "notebook [60]"}}  # fmt: skip


def of_study(study: Study) -> Command:
    """The command of a study."""
    auto = "; auto: until every pair has a verdict" if study.auto else ""
    number = {"--rounds": {"metavar": "ROUNDS", "help": f"interleaved rounds{auto} [{study.rounds}]"}}
    if study.auto:
        number["--max-minutes"] = {"metavar": "MAX_MINUTES", "help": f"limit of ROUNDS=auto [{MAX_MINUTES:g}]"}
    if study.seeded:
        number = {"--seeds": {"metavar": "SEEDS", "help": f"seeds, one per round, from SEED on [{study.rounds}]"}}
    return Command(
        study.command, study.group, study.help, study.example, "studies", (study,), flags=number | QUICK | study.flags,
        options=True, own=study.defaults, needs=HOROVOD,
    )  # fmt: skip


def of_studies() -> list[Command]:
    """One for each command that studies have; of several studies with one command the first describes it."""
    found = {}
    for study in STUDIES.values():
        found.setdefault(study.command, study)
    return [of_study(study) for study in found.values()]


def place(out: str) -> dict[str, dict]:
    """The flag of a folder that is written."""
    return {"--out": {"metavar": "OUT", "help": f"where to [{out}]"}}


LINES = [
    Command("run", "measure", "one benchmark run; prints a table, and `record: PATH` as its last line",
            "MODE=ddp GPUS=4", "run", target="bench", options=True, own={"mode": UNSET["mode"]}, needs=HOROVOD),
    *of_studies(),

    Command("verify", "check", "show that all modes compute the same update on this machine", "GPUS=2", "verify",
            options=True, needs=HOROVOD),
    Command("check", "check", "look for the known mistakes in records; exit code 3 when one is found", "OUT=folder",
            "check", positional={"out": FOLDER["out"] | {"help": "a record, or a folder of records [results/runs]"}}),
    Command("doctor", "check", "what this machine has, what each mode can run on it, what is wrong and how to fix it",
            "", "doctor"),
    Command("gpu-check", "check", "run what only a GPU can prove; leaves records in results/reference", "", "gpu_check",
            options=True, needs=HOROVOD),
    Command("selfbench", "check", "what the harness itself costs, against bare scripts", "[ROUNDS=8 ONLY=loop]",
            "selfbench", options=True, needs=HOROVOD, flags={
                "--rounds": {"metavar": "ROUNDS", "help": "interleaved rounds [8]"},
                "--only": {"metavar": "ONLY", "help": "one part: loop, overhead, horovod, bound, startup, input"}}),

    Command("watch", "look at results", "how a run goes on that somebody else has started, rank by rank",
            "OUT=folder", "watch", positional=FOLDER, flags={
                "--once": ON_OFF | {"metavar": "ONCE", "help": "show it once"}}),
    Command("report", "look at results", "a table of the records, and one self-contained page", "OUT=folder", "report",
            positional=FOLDER, flags={
                "--html": {"metavar": "FILE", "nargs": "?", "const": "", "help": "write the page [in FOLDER]"}}),
    Command("plots", "look at results", "every picture of the suites, as SVG and PNG", "OUT=folder", "plots",
            positional=FOLDER),
    Command("table", "look at results", "the records as data: CSV, Parquet or Markdown", "FORMAT=csv TO=file", "table",
            positional=FOLDER, flags={
                "--to": {"metavar": "FILE", "help": "a new file, never one that exists [standard output]"},
                "--format": {"metavar": "FORMAT", "help": "csv, parquet or md [by the name of FILE; md without one]"},
                "--memory": ON_OFF | {"metavar": "MEMORY", "help": "peak memory by device and source instead"}}),
    Command("diff", "look at results", "two sets of records compared: two machines, two versions, before and after",
            "A=folder B=folder [BOUND=5 STRICT=1]", "diff", positional={
                "a": {"metavar": "A", "help": "folder of the first set, or one record.json"},
                "b": {"metavar": "B", "help": "folder of the second set: each ratio is B over A"}}, flags={
                "--bound": {"metavar": "PERCENT", "help": "exit 3 when the whole 95 %% interval of a program is slower "
                            "by more than this; one record on a side has no interval and is not judged"},
                "--strict": ON_OFF | {"metavar": "STRICT", "help": "exit 3 unless the whole interval of every program "
                                      "of A is shown to be within BOUND; one record on a side fails"}},
            note="exit codes: 0 no regression shown; 3 a regression beyond BOUND, never without it; 2 not comparable"),
    Command("pool", "look at results", "records of many machines: checked, one table, one picture, a new folder",
            "FOLDER=folder", "pool", flags=place("results/pool"), positional={
                "folder": {"metavar": "FOLDER", "help": "folder with the records of many machines below it"}}),

    Command("jupyter", "learn", "open the chapters in JupyterLab", "", "jupyter", needs=COURSE + CLONE),
    Command("notebooks", "learn", "execute every chapter with real processes, into build/notebooks",
            "[NAME=03 QUICK=1]", "notebooks", needs=HOROVOD + COURSE + CLONE, flags=NAME | {
                "--quick": ON_OFF | {"metavar": "QUICK", "help": "at the small sizes that a test uses"},
                "--pair": ON_OFF | {"metavar": "PAIR", "help": "only make the notebooks from their texts"}}),
    Command("site", "learn", "the course as pages in build/site; executes the chapters that have changed", "[QUICK=1]",
            "site", needs=HOROVOD + COURSE + CLONE,
            flags={"--quick": ON_OFF | {"metavar": "QUICK", "help": "chapters at the small sizes will do"}}),

    Command("release", "teach", "the students' copies of the problem sets, without solutions, in build/release",
            "[NAME=03]", "release", needs=COURSE + CLONE, flags=SETS | place("build/release")),
    Command("grade", "teach", "grade what students have handed in: points and feedback, in build/grades",
            "SUBMITTED=folder", "grade", needs=HOROVOD + COURSE + CLONE_OR_SETS,
            flags=SETS | place("build/grades") | LIMIT,
            positional={"submitted": {"metavar": "SUBMITTED", "help": "folder with STUDENT/NN_name.ipynb below it, or "
                                      "nbgrader's STUDENT/NN_name/NN_name.ipynb"}},
            note="exit code 2 when something could not be graded. Answers are programs: grade strangers' work in a "
            "container"),
    Command("solutions-check", "teach", "show that every problem set's solution scores full and its blank zero",
            "[NAME=03]", "solutions_check", needs=HOROVOD + COURSE + CLONE_OR_SETS, flags=SETS | LIMIT),

    Command("install-horovod", "set up", "build Horovod against the installed torch, and install it", "[GPU=nccl]",
            "install_horovod", flags={
                "--gpu": {"metavar": "GPU", "choices": ("auto", "none", "nccl"), "default": "auto",
                          "help": "auto: NCCL where there is a GPU; none: CPUs only; nccl: for GPUs, also without one "
                          "here"},
                "--force": ON_OFF | {"metavar": "FORCE", "help": "build again, whatever is installed or cached"},
                "--wheel-dir": {"metavar": "DIR", "help": "only build, and put the wheel into this folder"},
                "--jobs": {"metavar": "N", "help": "compilers at a time [by cores and memory]"},
                "--timeout": {"metavar": "SECONDS", "default": "1800", "help": "give up after this time [1800]"}}),
    Command("unpack-imagenet", "set up", "unpack ImageNet's archives into the class folders of DATA=imagefolder",
            "TRAIN=tar VAL=tar LABELS=file TO=folder", "unpack_imagenet", flags={
                "--train": {"metavar": "TAR", "help": "ILSVRC2012_img_train.tar: a tar of one tar for each class"},
                "--val": {"metavar": "TAR", "help": "ILSVRC2012_img_val.tar: a tar of images"},
                "--labels": {"metavar": "FILE", "help": "the classes of VAL: the development kit (folder or .tar.gz), "
                             "its ground truth, or a list of names and classes"},
                "--to": {"metavar": "FOLDER", "help": "where train/<class>/ and val/<class>/ are made"}}),
    Command("renew", "set up", "write again what is made from code and records: tables of README and manual, reference "
            "pages, pictures", "", "renew", needs=CLONE),
    Command("setup", "set up", "only set up: the other targets do so by themselves"),
    Command("test", "set up", "the test suite; ARGS=\"-k name\" for a part of it", "[QUICK=1]", needs=COURSE),
    Command("lint", "set up", "the style checks, and who may import whom"),
    Command("clean", "set up", "remove caches and build outputs; keeps .venv and results"),
    Command("help", "set up", "this list", module="help", flags={
        "--make": {"action": "store_true", "help": "as targets of make"},
        "--markdown": {"action": "store_true", "help": "as the README has it"},
        "--targets": {"action": "store_true", "help": "the targets of make; +course: needs the course's packages"}}),
]  # fmt: skip
COMMANDS: dict[str, Command] = {line.name: line for line in LINES}
