"""The commands: one table, from which `bench`, the Makefile, their help and the README's list are made.

To add one: its file in this folder, with ``run(args)``, and its line here.
"""

from bench.cli.base import OWN, Command
from bench.config.command_line import ON_OFF
from bench.config.flags import SWITCH, number, rounds, whole_number
from bench.config.options import UNSET
from bench.proof.gpu_check.base import PARTS as GPU_PARTS
from bench.studies.base import MAX_MINUTES, Study
from bench.studies.compare.study import COMPARE
from bench.studies.programs import MODES_FLAG
from bench.studies.registry import STUDIES
from bench.tasks.network.plan import MOST_ROUNDS, SIZES

HOROVOD, COURSE, CLONE, CLONE_OR_SETS = ("horovod",), ("course",), ("clone",), ("sets",)
MOST_DILATE = 100_000
PERCENT = {"read": number("write per cent, from 0 to below 100", lambda bound: 0 <= bound < 100)}
NUMBER, FROM_1 = {"read": number()}, {"read": whole_number(1)}
FOLDER = {"out": {"metavar": "FOLDER", "help": "folder of records [results/runs]"}}
FOLDER_FLAG = {f"--{name}": flag for name, flag in FOLDER.items()}
QUICK = {"--quick": SWITCH | {"help": "2 rounds: a preview, without interval and verdict"}}
NAME = {"--name": {"help": "only those whose name begins so: 03, or 03,07"}}
SETS = NAME | {"--sets": {"metavar": "FOLDER", "help": "the sets' texts [tutorials/exercises]"}}
KEY = {"--key": {"default": "0", "help": "a number of your own, which changes what hidden tests draw "
                "[0: as published]", "read": whole_number(0)}}  # fmt: skip
LIMIT = {"--timeout": FROM_1 | {"metavar": "SECONDS", "default": "60", "help": "limit of one cell; five times this for "
                                "a whole notebook [60]"}}  # fmt: skip


def of_study(study: Study) -> Command:
    auto = "; auto: until every pair has a verdict" if study.auto else ""
    count = {"--rounds": {"help": f"interleaved rounds{auto} [{study.rounds}]", "read": rounds}}
    if study.auto:
        count["--max-minutes"] = NUMBER | {"metavar": "MAX_MINUTES", "help": f"limit of ROUNDS=auto [{MAX_MINUTES:g}]"}
    if study.seeded:
        count = {"--seeds": FROM_1 | {"help": f"seeds, one per round, from SEED on [{study.rounds}]"}}
    return Command(
        study.command, study.group, study.help, study.example, "studies", (study,), flags=count | QUICK | study.flags,
        options=True, own=study.defaults, others=study.others, needs=HOROVOD,
    )  # fmt: skip


def of_studies() -> list[Command]:
    """One for each command that studies have; of several studies with one command the first describes it."""
    found = {}
    for study in STUDIES.values():
        found.setdefault(study.command, study)
    return [of_study(study) for study in found.values()]


def place(out: str) -> dict[str, dict]:
    return {"--out": {"help": f"where to [{out}]"}}


LINES = [
    Command("run", "measure", "one benchmark run; prints a table, and `record: PATH` as its last line",
            "MODE=ddp GPUS=4", "run", target="bench", options=True, own={"mode": UNSET["mode"]}, needs=HOROVOD),
    *of_studies(),
    Command("time", "measure", "a training script that is not this project's, timed as it is; looks for known mistakes",
            'CMD="torchrun --nproc-per-node=2 train.py" [BATCH=32 STEPS=100]', "timed", rest=True, flags={
                "--cmd": {"help": "the command that trains, as a shell splits it; or after --"},
                "--batch": FROM_1 | {"help": "examples per device per step [what a Watch counts]"},
                "--warmup": FROM_1 | {"default": "20", "help": "first steps that are not timed [20]"},
                "--steps": FROM_1 | {"help": "end the script after so many timed steps [at its end]"},
                "--watch": SWITCH | {"help": "look for the known mistakes [1]"},
                "--label": {"help": "what it is called [the script's file]"},
                "--limit": {"help": "seconds after which the command is ended [none]",
                            "read": number("seconds, a number above 0")}}
            | FOLDER_FLAG, note="the record is a kind of its own: report, diff and check show it, no pool and no "
            "comparison takes it"),
    Command("cluster", "measure", "several machines on this one: runs CMD on the first of NODES network namespaces",
            'NODES=2 RATE=100mbit CMD="make compare"', "cluster", needs=HOROVOD, flags={
                "--cmd": {"help": "a shell command, for which HOSTS, REMOTE and IFACE are set"},
                "--nodes": {"default": "2", "help": "from 2 to 64 [2]"},
                "--per-node": FROM_1 | {"default": "1", "help": "devices of each node [1]"},
                "--rate": {"help": "of every link, as 100mbit or 1gbit [no limit]"},
                "--latency": {"help": "one way, as 5ms; where the kernel has netem [none]"},
                "--loss": {"help": "share of packets lost, as 0.1%%; with netem [none]"}},
            note="exit code: that of CMD. Needs no root; GPUs are hidden, for every node would count the same ones"),
    Command("emulate", "measure", "a mode's real engine on many nodes of this machine, computation replaced by waits",
            "MODE=ddp NODES=8 RATE=100mbit COMPUTE=record [DILATE=4]", "emulate", options=True, needs=HOROVOD, flags={
                "--compute": {"metavar": "RECORD", "help": "the record of one device with PROFILE=1, how long to wait"},
                "--nodes": {"help": "from 2 to 64, a device each [2]"},
                "--rate": {"help": "of every link, as 100mbit or 25gbit [no limit]"},
                "--latency": {"help": "one way, as 5ms; where the kernel has netem [none]"},
                "--dilate": {"help": "slow computation and links down by this factor, and divide "
                             "the figures by it [1]", "read": number(
                                 f"a number from 1 to {MOST_DILATE}: by how much all is slowed down",
                                 lambda factor: 1 <= factor <= MOST_DILATE)}},
            note="the record is a kind of its own, emulation.json: no comparison, pool or certificate takes it"),

    Command("advise", "explain", "which data-parallel mode to use, in words: from a few short runs, or from records",
            "GPUS=2 [RECORDS=folder LINK=10gbit,50us NODES=8 PRICE=2.5]", "advise", options=True,
            own={"num_devices": 2}, needs=HOROVOD, note="what is predicted says so, and is in lines of its own", flags={
                "--records": {"metavar": "FOLDER", "help": "run nothing: what make compare, breakdown, network and "
                              "bench PROFILE=1 have left there"},
                "--rounds": FROM_1 | {"help": "interleaved rounds of its own comparison [3]"},
                "--modes": COMPARE.flags["--modes"],
                "--link": {"help": "rate and latency, one way, of every device's link, for the "
                           "forecast of more devices [what make network has left in RECORDS]"},
                "--rate": {"help": "the rate of LINK alone, as 10gbit; no latency"},
                "--nodes": {"help": "of a cluster that is not there, a device each: predicted",
                            "read": whole_number(2)},
                "--price": {"help": "of an hour of one device; without GPUs of one machine",
                            "read": number("what an hour of one device costs, a number above 0")},
                "--examples": FROM_1 | {"help": "in an epoch [what the data set has]"}}),
    Command("memory", "explain", "what a step needs of each device's memory, by what it is for, and the largest batch: "
            "predicted; exit code 3 when BATCH does not fit",
            "MODEL=resnet50 BATCH=64 GPUS=4 MEMORY_GIB=16 [MODE=ddp]", "memory", options=True,
            note="without MODE and MODES what `bench compare` runs; nothing is started", flags=MODES_FLAG | {
                "--memory-gib": {"metavar": "GIB", "help": "the memory of one GPU, for one that is not here [NVML's; "
                                 "of a machine without GPUs what it has available]", "read": number(
                                     "the memory of one device in GiB, as in 16", lambda size: 0 < size < 2**20)}}),
    Command("forecast", "explain", "the step of each mode on more devices than there are, from a profile of one: "
            "predicted", "RECORD=record DEVICES=2,4,8 LINK=10gbit,50us [MODES=ddp,horovod EXPLAIN=1 OUT=folder]",
            "forecast", options=True, note="nothing is started; options of the engines (BUCKET_CAP_MB, COMPRESSION, …) "
            "count; with OUT its pictures are drawn there",
            positional={"record": {"metavar": "RECORD", "help": "the record of one device with PROFILE=1"}}, flags={
                "--devices": {"help": "numbers of devices [2,4,8]"},
                "--link": {"help": "rate and latency, one way, of every device's link"},
                "--network": {"help": "what `bench network` has left, in the place of LINK"},
                "--per-node": FROM_1 | {"help": "devices of each node, which share its link [1]"},
                "--link-inside": {"metavar": "LINK", "help": "rate and latency between devices of one node"},
                "--modes": {"help": "of ddp, horovod, zero1, fsdp [all]"},
                "--points": {"help": "folders of runs and emulations, separated by commas: those "
                             "that belong to the forecast are drawn beside it"},
                "--explain": SWITCH | {"help": "show where the step's time goes"}}),

    Command("verify", "check", "show that all modes compute the same update on this machine", "GPUS=2", "verify",
            options=True, needs=HOROVOD, flags=MODES_FLAG),
    Command("check", "check", "look for the known mistakes in records; exit code 3 when one is found", "OUT=folder",
            "check", positional={"out": FOLDER["out"] | {"help": "a record, or a folder of records [results/runs]"}}),
    Command("doctor", "check", "what this machine has, what each mode can run on it, what is wrong and how to fix it",
            "", "doctor"),
    Command("gpu-check", "check", "run what only a GPU can prove, in parts; leaves records in results/reference",
            "[BUDGET=45m PART=A1,B1 PLAN=1]", "gpu_check", options=True, flags={
                "--budget": {"metavar": "TIME", "default": "45m", "help": "no check is begun that would take longer "
                             "than what is left of it, as in 600s, 10m, 1h [45m]"},
                "--part": {"metavar": "PARTS", "help": f"of {', '.join(GPU_PARTS)}, each ten minutes at most [all]"},
                "--plan": ON_OFF | {"help": "only say what it would do; needs no GPU"}}),
    Command("network", "check", "latency, bandwidth and all-reduce between the ranks, by Gloo, NCCL and Horovod",
            "GPUS=2", "network", options=True, own={"num_devices": 2}, needs=HOROVOD, flags={
                "--backends": {"help": "of gloo, nccl, horovod [all that are here]"},
                "--sizes": {"help": f"bytes of a message: a range, in steps of 4 times, or a list "
                            f"as in 4KiB,1MiB [{SIZES}]"},
                "--repeats": {"help": "rounds, each with every size once [10]",
                              "read": whole_number(1, MOST_ROUNDS)},
                "--max-minutes": NUMBER | {"help": "limit of the measuring; sizes that do not fit are "
                                  "left out, the largest first [5]"}}),

    Command("predict-images", "look at results", "a folder of images classified by a checkpoint, over all devices",
            "FOLDER=photos RESUME=checkpoint GPUS=2 [TO=predictions.csv]", "predict_images", options=True,
            positional={"folder": {"metavar": "FOLDER", "help": "searched whole, folders below it too"}}, flags={
                "--to": {"metavar": "FILE", "help": "a new file, .csv or .parquet [predictions.csv]"},
                "--classes": {"metavar": "FILE", "help": "names of the classes, a line for each [the checkpoint's]"}}),
    Command("watch", "look at results", "how a run goes on that somebody else has started, rank by rank",
            "OUT=folder", "watch", positional=FOLDER, flags={
                "--once": SWITCH | {"help": "show it once"}}),
    Command("report", "look at results", "a table of the records, and one self-contained page", "OUT=folder", "report",
            positional=FOLDER, flags={
                "--html": {"metavar": "FILE", "nargs": "?", "const": "", "help": "write the page [in FOLDER]"}}),
    Command("plots", "look at results", "pictures of suites and of single runs, as SVG and PNG", "OUT=folder", "plots",
            positional=FOLDER),
    Command("table", "look at results", "the records as data: CSV, Parquet or Markdown", "FORMAT=csv TO=file", "table",
            positional=FOLDER, flags={
                "--to": {"metavar": "FILE", "help": "a new file, never one that exists [standard output]"},
                "--format": {"help": "csv, parquet or md [by the name of FILE; md without one]"},
                "--memory": SWITCH | {"help": "peak memory by device and source instead"}}),
    Command("diff", "look at results", "two sets of records compared: two machines, two versions, before and after",
            "A=folder B=folder [BOUND=5 STRICT=1]", "diff", positional={
                "a": {"metavar": "A", "help": "folder of the first set, or one record.json"},
                "b": {"metavar": "B", "help": "folder of the second set: each ratio is B over A"}}, flags={
                "--bound": PERCENT | {"metavar": "PERCENT", "help": "exit 3 when the whole 95 %% interval of a program "
                                      "is slower by more than this; disturbed records, and fewer than 3 on a side, are "
                                      "not judged"},
                "--strict": SWITCH | {"help": "exit 3 unless the whole interval of every program of A is shown to be "
                                      "within BOUND; what cannot be judged fails"}},
            note="exit codes: 0 no regression shown; 3 a regression beyond BOUND, never without it; 2 not comparable"),
    Command("pool", "look at results", "records of many machines: checked, one table, one picture, a new folder",
            "FOLDER=folder", "pool", flags=place("results/pool"), positional={
                "folder": {"metavar": "FOLDER", "help": "folder with the records of many machines below it"}}),

    Command("jupyter", "learn", "open the chapters in JupyterLab", "[BROWSER=0 PORT=8889]", "jupyter",
            needs=COURSE + CLONE, rest=True,
            note="other options of JupyterLab stand after --: make jupyter ARGS='-- --debug'",
            flags={
                "--browser": SWITCH | {"help": "open a browser; 0 on a server [1]"},
                "--ip": {"help": "address to listen on; 0.0.0.0: for other machines, too [localhost]"},
                "--port": {"help": "[8888, or the next that is free]",
                           "read": whole_number(1, 65535)}}),
    Command("notebooks", "learn", "execute every chapter with real processes, into build/notebooks",
            "[NAME=03 QUICK=1]", "notebooks", needs=HOROVOD + COURSE + CLONE, flags=NAME | {
                "--quick": SWITCH | {"help": "at the small sizes that a test uses"},
                "--pair": SWITCH | {"help": "only make the notebooks from their texts"},
                "--outputs": SWITCH | {"help": "put what the cells gave, made small, into the committed notebooks"}}),
    Command("site", "learn", "the course as pages in build/site; executes chapters that have no outputs", "[QUICK=1]",
            "site", needs=HOROVOD + COURSE + CLONE,
            flags={"--quick": SWITCH | {"help": "chapters at the small sizes will do"}}),

    Command("slides", "teach", "a chapter as slides in build/slides: one HTML file that needs no network", "NAME=03",
            "slides", needs=HOROVOD + COURSE + CLONE, flags=NAME),
    Command("release", "teach", "the students' copies of the problem sets, without solutions, in build/release",
            "[NAME=03]", "release", needs=COURSE + CLONE, flags=SETS | place("build/release")),
    Command("grade", "teach", "grade what students have handed in: points and feedback, in build/grades",
            "SUBMITTED=folder [KEY=number]", "grade", needs=HOROVOD + COURSE + CLONE_OR_SETS,
            flags=SETS | place("build/grades") | LIMIT | KEY,
            positional={"submitted": {"metavar": "SUBMITTED", "help": "folder with STUDENT/NN_name.ipynb below it, or "
                                      "nbgrader's STUDENT/NN_name/NN_name.ipynb"}},
            note="exit code 2 when something could not be graded. Answers are programs: grade strangers' work in a "
            "container"),
    Command("export", "teach", "problem sets for Gradescope, or as the template of a GitHub Classroom assignment",
            "TO=gradescope NAME=03", "export", needs=COURSE + CLONE, flags=SETS | place("build/export/<TO>") | KEY | {
                "--to": {"help": "gradescope: a zip per set, with hidden tests; classroom: a folder "
                         "with a workflow that runs the visible tests"}}),
    Command("leaderboard", "teach", "a class's comparisons ranked by their ratio to one process; only the same update "
            "counts", "FOLDER=folder", "leaderboard", positional={
                "folder": {"metavar": "FOLDER", "help": "folder with a folder per student, with the records of make "
                           "compare below it"}}, note="exit code 1 when nothing counts"),
    Command("solutions-check", "teach", "show that every problem set's solution scores full and its blank zero",
            "[NAME=03]", "solutions_check", needs=HOROVOD + COURSE + CLONE_OR_SETS, flags=SETS | LIMIT | KEY),

    Command("install-horovod", "set up", "build Horovod against the installed torch, and install it",
            "[GPU=nccl MPI=1]", "install_horovod", flags={
                "--gpu": {"metavar": "GPU", "choices": ("auto", "none", "nccl", "here"), "default": "auto",
                          "help": "auto: NCCL where there is a GPU; none: CPUs only; nccl: for GPUs, also without one "
                          "here; here: for this machine's GPUs alone, which compiles faster"},
                "--mpi": SWITCH | {"help": "with MPI as well, for LAUNCHER=mpirun and ADASUM; needs mpicxx"},
                "--force": SWITCH | {"help": "build again, whatever is installed or cached"},
                "--wheel-dir": {"metavar": "DIR", "help": "only build, and put the wheel into this folder"},
                "--jobs": FROM_1 | {"metavar": "N", "help": "compilers at a time [by cores and memory]"},
                "--timeout": FROM_1 | {"metavar": "SECONDS", "default": "1800", "help": "give up after this time "
                                       "[1800]"}}),
    Command("new-workload", "set up", "write FILE, a model and data of your own to begin with, which runs as it is",
            "FILE=mine.py", "new_workload", positional={
                "file": {"metavar": "FILE", "help": "a new Python file, never one that exists"}}),
    Command("unpack-imagenet", "set up", "unpack ImageNet's archives into the class folders of DATA=imagefolder",
            "TRAIN=tar VAL=tar LABELS=file TO=folder", "unpack_imagenet", flags={
                "--train": {"metavar": "TAR", "help": "ILSVRC2012_img_train.tar: a tar of one tar for each class"},
                "--val": {"metavar": "TAR", "help": "ILSVRC2012_img_val.tar: a tar of images"},
                "--labels": {"metavar": "FILE", "help": "the classes of VAL: the development kit (folder or .tar.gz), "
                             "its ground truth, or a list of names and classes"},
                "--to": {"metavar": "FOLDER", "help": "where train/<class>/ and val/<class>/ are made"}}),
    Command("setup", "set up", "only set up: the other targets do so by themselves"),
    Command("test", OWN, "the test suite; ARGS=\"-k name\" for a part of it", "[QUICK=1]", needs=COURSE),
    Command("lint", OWN, "the style checks, and who may import whom"),
    Command("clean", OWN, "remove caches and build outputs; keeps .venv and results"),
    Command("help", "set up", "this list", module="help", flags={
        "--make": {"action": "store_true", "help": "as targets of make"},
        "--targets": {"action": "store_true", "help": "the targets of make; +course: needs the course's packages"}}),
]  # fmt: skip
COMMANDS: dict[str, Command] = {line.name: line for line in LINES}
