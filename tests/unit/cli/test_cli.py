"""The command line as a person meets it: real processes, exit codes, and one clear line on stderr.

Most begin as copies of a process that has imported it (tests/forked_python.py), and no torch; those of doctor, and the
helps of help, are fresh.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from bench.__main__ import command_of
from bench.cli import ALIASES, COMMANDS, GONE, OF_MAKE, RENAMED, every
from bench.cli.actions import doctor
from bench.cli.base import DEVELOP, GROUPS
from bench.config.combined import RENAMED as OLD_OPTIONS
from bench.config.fields import flag_of
from bench.config.modes import MODES
from bench.config.options import FIELDS
from bench.errors import ExitCode
from bench.files import LINUX
from bench.install import packages
from bench.studies.registry import STUDIES
from tests.forked_programs import Programs
from tests.records import compare_programs, record, store, suite_records
from tests.runs import ROOT, bench
from tests.shown import in_one_line

EVERY = {command.name: command for command in every()}


@pytest.fixture(scope="module")
def copies():
    """The process whose copies the commands are; None where a fork is not safe."""
    if not LINUX:
        yield None
        return
    modules = "bench.cli.base", "bench.studies.registry", "bench.analysis.tables"
    with Programs(*modules, torch=False) as programs:
        yield programs


@pytest.fixture
def fresh():
    """For a test whose commands begin afresh."""


@pytest.fixture(autouse=True)
def begin_as_copies(request, copies, monkeypatch):
    """The commands of the other tests do not."""
    if copies and "fresh" not in request.fixturenames:
        monkeypatch.setattr(sys, "executable", copies.python)


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """An environment in which importing torch, torchvision or Horovod is an error."""
    folder = tmp_path_factory.mktemp("no_torch")
    for name in ("torch", "torchvision", "horovod"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise AssertionError('{name} was imported')\n")
    (folder / "torch" / "version.py").write_text("__version__ = '2.7.0'\ncuda = None\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def records(tmp_path):
    """A folder with one good record, a failed one and a truncated one."""
    good = record("single", num_devices=1).data
    failure = {"rank": 1, "kind": "killed", "message": "rank 1 was killed", "traceback": ""}
    failed = good | {"status": "failed", "samples": [], "summary": {}, "failure": failure}
    texts = {"good": json.dumps(good), "failed": json.dumps(failed), "truncated": json.dumps(good)[:500]}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(text)
    return tmp_path


def refused(result) -> str:
    """The one line on stderr of a command that could not do what was asked."""
    assert result.code == 2, result.stderr
    assert result.stderr.startswith("bench: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], *([*name.split(), "--help"] for name in [*COMMANDS, *EVERY])], ids=" ".join
)
def test_help_needs_no_torch(arguments, no_torch):
    result = bench(*arguments, env=no_torch)
    assert result.code == 0 and not result.stderr
    assert result.stdout.startswith("usage: bench")


def test_the_table_has_every_command_that_there_is():
    """A file of bench/cli with a command, and what a study is called, is in it; no name stands for two."""
    files = [path for path in (ROOT / "bench" / "cli").glob("*.py") if "\nCOMMAND = " in path.read_text()]
    assert {path.stem for path in files} == set(COMMANDS)
    assert {study.command for study in STUDIES.values()} <= set(EVERY)
    lines = [*COMMANDS.values(), *OF_MAKE]
    assert {line.group for line in lines} == set(GROUPS) and all(line.help for line in [*lines, *every()])
    assert all(part.name == f"{name} {word}" for name, line in COMMANDS.items() for word, part in line.parts.items())
    names = [*COMMANDS, *(line.name for line in OF_MAKE), *ALIASES, *RENAMED, *GONE]
    assert len(names) == len(set(names))


def test_there_are_no_more_commands_than_anybody_can_know():
    assert len(COMMANDS) <= 20


@pytest.mark.parametrize("old", [*ALIASES, *RENAMED])
def test_another_name_of_a_command_is_that_command(old, capsys):
    """With what it adds to it; a name that goes says which one comes, in a line."""
    new, _, added = (ALIASES | RENAMED)[old].partition(" -")
    found, words = command_of([old, "--x"])
    assert found is EVERY[new] and words == [*([f"-{added}"] if added else []), "--x"]
    found.parse(words[:-1])
    said = capsys.readouterr().err
    assert said.count("\n") == (old in RENAMED) and (f"`bench {RENAMED[old]}`" in said if old in RENAMED else not said)


def flags_in(text: str) -> set[str]:
    """The flags that a help lists."""
    return set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)) - {"--help"}


@pytest.mark.parametrize("mode", ["", *MODES])
def test_the_help_of_a_run_is_short_and_has_the_options_of_the_mode_that_is_given(mode):
    text = EVERY["run"].parser().help_of([*(["--mode", mode] if mode else []), "--help"])
    assert len(flags_in(text)) <= 45 and text.count("\n") <= 100
    of_modes = {flag_of(FIELDS[name]) for info in MODES.values() for name in info.knobs} - {"--inject"}
    mine = {flag_of(FIELDS[name]) for name in (MODES[mode].knobs if mode else ())} - {"--inject"}
    assert flags_in(text) & of_modes == mine


def test_the_whole_help_has_every_option():
    assert flags_in(EVERY["run"].parser().help_of(["--help-all"])) == {flag_of(field) for field in FIELDS.values()}


@pytest.mark.parametrize("old", OLD_OPTIONS)
def test_an_old_option_names_the_new_form(old, capsys):
    with pytest.raises(SystemExit) as end:
        EVERY["run"].parse([f"--{old}=1"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1
    assert f"--{old} (" in said and f" is --{OLD_OPTIONS[old]} (" in said


OF_BEFORE = [(name, flag) for name, command in EVERY.items() for flag in command.gone]


@pytest.mark.parametrize(("name", "flag"), OF_BEFORE, ids=map(" ".join, OF_BEFORE))
def test_a_flag_that_is_gone_names_its_successor(name, flag, capsys):
    command = EVERY[name]
    with pytest.raises(SystemExit) as end:
        command.parse([f"{flag}=1"])
    said = capsys.readouterr().err
    successor = command.gone[flag].partition("=")[0]
    assert end.value.code == 2 and said.count("\n") == 1 and flag in said and successor in said
    assert flag[2:] not in command.parser().names() and successor[2:] in command.parser().names()


@pytest.mark.parametrize("name", EVERY)
def test_a_command_knows_the_options_of_its_help_and_no_other(name, capsys):
    """What its help shows it takes, and an option of a run that it does not take is unknown to it."""
    parser = EVERY[name].parser()
    shown = set(re.findall(r"^  (--[a-z0-9-]+)", parser.format_help(), re.MULTILINE)) - {"--help"}
    for flag in shown | {flag_of(field) for field in FIELDS.values()}:
        known = flag[2:] in parser.names()
        assert known or flag not in shown
        if not known:
            with pytest.raises(SystemExit) as end:
                parser.parse_args([f"{flag}=1"])
            assert end.value.code == 2 and f" {flag} " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "flag"),
    [("network", "--lr"), ("network", "--model"), ("infer", "--epochs"), ("doctor gpu", "--mode"),
     ("cluster emulate", "--hosts"), ("predict step", "--batch")],
)  # fmt: skip
def test_an_option_that_would_be_refused_is_unknown(command, flag):
    said = refused(bench(*command.split(), f"{flag}=1"))
    assert f"unknown option {flag}" in said


@pytest.mark.parametrize(
    ("form", "heading", "entry", "of_make"),
    [
        ([], "^{}$", r"^  bench ([a-z-]+)", False),
        (["--make"], "^{}$", r"^  make ([a-z-]+)", True),
    ],
    ids=["for the terminal", "for make"],
)
def test_every_help_lists_every_command_in_its_group(form, heading, entry, of_make):
    """One table, in two forms; make has some targets that are no command, and a group of these alone."""
    shown = [group for group in GROUPS if of_make or group != DEVELOP]
    groups = "|".join(heading.format(group) for group in shown)
    _, *sections = re.split(groups, bench("help", *form).stdout, flags=re.MULTILINE)
    for group, section in zip(shown, sections, strict=True):
        lines = [*COMMANDS.values(), *(OF_MAKE if of_make else ())]
        lines = [line for line in lines if line.group == group]
        names = [line.make if of_make else line.name for line in lines]
        assert re.findall(entry, section, re.MULTILINE) == names
        assert all(line.help in section for line in lines)
        assert all(f"{line.make if of_make else line.name} {part}" in section for line in lines for part in line.parts)


def test_help_says_with_which_codes_every_command_ends():
    found = dict(re.findall(r"^  (\d+) +(.+)$", bench("help").stdout.partition("\nexit codes\n")[2], re.MULTILINE))
    assert {int(code): meaning for code, meaning in found.items()} == {code: code.meaning for code in ExitCode}
    assert list(ExitCode) == [0, 1, 2, 3, 130]  # which scripts and workflows know


def test_help_is_the_help_of_the_command(fresh):
    assert bench("--help").stdout == bench("-h").stdout == bench("help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fly", ["unknown command fly", "bench help"]),
        ("selfbench", ["selfbench", "tests.validation.overhead"]),
        ("compair --gpus=2", ["unknown command compair", "compare"]),
        ("run --image-sise=8", ["--image-sise", "IMAGE_SISE=", "--image-size", "IMAGE_SIZE="]),
        ("compare --gpu 2", ["--gpu", "GPU=", "--gpus", "GPUS="]),
        ("compare accuracy --seed-s=3", ["--seed-s", "--seeds"]),
        ("diff --bounds=5", ["--bounds", "BOUND="]),
        ("run --colour red", ["--colour", "no such option"]),
        ("run --modl=x", ["--modl", "--model (MODEL=) or --mode (MODE=)?"]),
        ("doctor --gpus=2", ["--gpus", "no such option"]),  # of other commands
        ("install", ["install", "horovod", "workload", "imagenet"]),  # which is only its parts
        ("run 8", ["8", "not an argument"]),
        ("clean", ["clean", "make"]),  # a target of make
        ("run --arch resnet50", ["ARCH=", "use MODEL=", "--model"]),  # other scripts' names
        ("run --dist-backend=nccl", ["DIST_BACKEND=", "leave it out"]),
        ("compare --output_dir=x", ["use OUT=", "--out"]),
        ("run -b 256", ["-b", "use BATCH=", "per device"]),
        ("run -e", ["-e", "use EVALUATE=1"]),
        ("doctor --arch=x", ["--arch", "no such option"]),
        ("--local-rank=1 run", ["--local-rank=1", "torchrun", "--use-env"]),
    ],
)
def test_an_unknown_word_is_told_what_it_is_near_to(arguments, words, no_torch):
    said = refused(bench(*arguments.split(), env=no_torch))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "bench help"),
        ("run --gpus", "--gpus"),
        ("run --mode telepathy", "unknown MODE=telepathy: choose one of single, dp, ddp, horovod"),
        ("run --gpus 0", "GPUS=0 is too small"),
        ("run --gpus -1", "GPUS=-1 is too small"),
        ("run --gpus x", "GPUS=x is not a whole number"),
        ("run --device cpu --gpus all", "GPUS=all, but no GPU is used here"),
        ("run --gpus 1.5", "GPUS=1.5 is not a whole number"),
        ("run --gpus=", "GPUS= is not a whole number"),
        ("run --mode single --gpus 2", "MODE=single is one device, but GPUS=2"),
        ("run --data imagenet", "unknown DATA=imagenet"),
        ("run --device cpu --batch 2000", "BATCH=2000"),
        ("run --device cpu --gpus 2 --batch 1000", "use BATCH=718 or less"),
        ("run --device cpu --gpus 999999", "use GPUS=1437 or less"),
        ("run --device cpu --precision tf32", "PRECISION=tf32"),
        ("run --lr nan", "LR=nan"),
        ("run --steps 0", "STEPS=0"),
        ("run --inject maybe", "INJECT=maybe"),
        ('run --probe {"predcit":{}}', "PROBE="),
        ("verify --gpus x", "GPUS=x"),
        ("doctor gpu --gpus x", "GPUS=x"),
        ("compare --rounds 0", "ROUNDS=0"),
        ("compare --rounds many", "ROUNDS=many"),
        ("compare --replay magic", "unknown REPLAY=magic: choose one of dp-workers"),
        ("compare --strict perhaps", "STRICT=perhaps: write 1 or 0"),
        ("compare --device cpu --epochs 2", "EPOCHS belongs to single runs"),
        ("compare --mode horovod --device cpu", "MODE belongs to single runs"),
        ("compare --replay item-sync --strict", "a replay is unfair on purpose"),
        ("compare scaling --gpus 2", "GPUS belongs to single runs"),
        ("compare scaling --max-gpus 1", "MAX_GPUS=1"),
        ("sweep --device cpu --mode independent", "MODE=independent has no settings to sweep: use MODE=single"),
        ("sweep --device cpu --mode single --warmup 0", "WARMUP=0 would time the compiler"),
        ("compare accuracy --device cpu --mode horovod", "MODE belongs to single runs"),
        ("compare accuracy --device cpu --resume x", "RESUME belongs to single runs"),
        ("compare accuracy --device cpu --seeds 0", "SEEDS=0: a whole number, at least 1"),
        ("compare accuracy --data synthetic", "DATA=synthetic has no validation set"),
        ("mistake unsynced-init --gpus 1", "GPUS=1 is one replica"),
        ("mistake unsynced-init --device cpu --replicas 0", "REPLICAS=0 would record nothing"),
        ("mistake unsynced-init --device cpu --inject unsynced-init", "INJECT belongs to single runs"),
        ("mistake unsynced-init --device cpu --data synthetic", "DATA=synthetic has no validation set"),
        ("run --device cpu --replicas 1", "REPLICAS=1 needs EPOCHS"),
        ("run --mode dp --bucket-cap-mb 5", "BUCKET_CAP_MB=5.0 is an option of MODE=ddp and zero1, not of dp"),
        ("run --mode horovod --compression bf16", "MODE=horovod has no COMPRESSION=bf16"),
        ("report nowhere --format=plots", "nowhere is not a folder"),
        ("report nowhere --format=csv", "nowhere is not a folder"),
        ("report nowhere --by=machine", "nowhere is not a folder"),
        ("diff nowhere nowhere", "nowhere"),
        ("diff", "A=… is needed"),
        ("report --format=xls", "FORMAT=xls"),
        ("report --by=country", "BY=country"),
        ("report --by=machine --format=csv", "BY and FORMAT"),
        ("mistake show", "NAME="),
        ("mistake demo", "NAME="),
        ("install horovod --jobs 0", "JOBS=0"),
        ("install horovod --timeout soon", "TIMEOUT=soon"),
    ],
)
def test_a_bad_request_is_one_line_and_exit_code_2(arguments, words, no_torch, tmp_path):
    out = ["--out", tmp_path / "out"] if arguments.startswith("run ") else []
    assert words in refused(bench(*arguments.split(), *out, env=no_torch))
    assert not (tmp_path / "out").exists()


def test_a_shortened_flag_is_not_guessed():
    """--step 3 is not --steps 3: make refuses a misspelt variable, and so does the command."""
    assert "--step" in refused(bench("run", "--step=3", "--gpus=x"))


def test_a_variable_that_is_named_like_an_option_is_said_to_be_not_used(no_torch):
    """Not its value, which may be a secret; not of what was given; not of other commands' options."""
    env = no_torch | {"GPUS": "s3cret", "BATCH": "64", "SEED": "1", "ROUNDS": "3", "NAME": "laptop", "LR": ""}
    note, error = bench("run", "--seed=2", "--mode=no", env=env).stderr.splitlines()
    assert note == (
        "bench: GPUS, BATCH are environment variables and are not used: options are given as in `bench run --gpus=… "
        "--batch=…`"
    )
    assert "unknown MODE=no" in error
    assert bench("report", "nowhere", env=no_torch | {"RECORDS": "x"}).stderr.count("\n") == 1  # given by its position


def test_a_misspelt_variable_that_nothing_reads_is_named(no_torch):
    """The letter that is missing in many a course: CUDA takes all GPUs then, and says nothing."""
    note, _ = bench("report", "nowhere", env=no_torch | {"CUDA_VISIBLE_DEVICE": "1"}).stderr.splitlines()
    assert "CUDA_VISIBLE_DEVICE is set" in note and "did you mean CUDA_VISIBLE_DEVICES?" in note
    right = no_torch | {"CUDA_VISIBLE_DEVICES": "1", "MKL_NUM_THREADS": "1"}
    assert bench("report", "nowhere", env=right).stderr.count("\n") == 1


def test_a_command_that_a_command_runs_does_not_say_so_again(no_torch):
    """As in a chapter: there is nothing new for the reader in the variables that make has passed on."""
    first = f"{sys.executable} -m bench run --mode=no"
    code = (
        "import os, subprocess, sys; from bench.__main__ import main; main(['report', 'nowhere']); "
        f"sys.exit(subprocess.run({first.split()!r}).returncode)"
    )
    env = {**os.environ, **no_torch, "RECORDS": "x", "PYTHONPATH": f"{ROOT}:{no_torch['PYTHONPATH']}"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 2 and "environment variable" not in result.stderr


@pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="JupyterLab is not installed")
def test_jupyter_takes_what_a_server_needs_and_passes_on_the_rest():
    """JupyterLab itself says what it would do."""
    result = bench("notebooks", "open", "--browser=0", "--ip=127.0.0.1", "--port=8899", "--", "--show-config-json")
    assert result.code == 0, result.stderr
    server = json.loads(result.stdout)["ServerApp"]
    assert (server["open_browser"], server["ip"], server["port"]) == (False, "127.0.0.1", 8899)
    assert "PORT=x" in refused(bench("notebooks", "open", "--port=x"))
    assert "and at most 65535" in refused(bench("notebooks", "open", "--port=65536"))


# --- report -------------------------------------------------------------------------------------------------------


def test_report_of_a_missing_folder(tmp_path, no_torch):
    assert "is not a folder" in refused(bench("report", tmp_path / "nowhere", env=no_torch))


def test_report_of_an_empty_folder(tmp_path, no_torch):
    assert f"no record.json below {tmp_path}" in refused(bench("report", tmp_path, env=no_torch))


def test_report_shows_what_is_good_and_names_what_is_not(records, no_torch):
    result = bench("report", records, env=no_torch)
    assert result.code == 0
    assert "torch " in result.stdout and "failed: killed" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"refused: {records / 'truncated' / 'record.json'}: not a readable record")


def test_report_of_nothing_but_refused_records(records, no_torch):
    result = bench("report", records / "truncated", env=no_torch)
    assert result.code == 2 and result.stderr.startswith("refused: ")


def test_report_into_a_pipe_that_closes(records):
    """`bench report | head -1` ends quietly; rich gives 1 where the shell's own word is 141."""
    command = f"{sys.executable} -m bench report {records / 'good'} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() in ("0", "1", "141") and not result.stderr


# --- workflows -----


def test_workflows_are_yaml_and_run_targets_that_there_are():
    targets = {*COMMANDS, *ALIASES, *(line.name for line in OF_MAKE)}
    found = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    jobs = [job for path in found for job in yaml.safe_load(path.read_text())["jobs"].values()]
    ran = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]
    own = [words for words in ran if words[:2] != ["pip", "install"]]
    assert len(found) == 3 and own and all(words[0] == "make" and words[1] in targets for words in own)
    assert all(job["timeout-minutes"] for job in jobs)


def test_workflows_have_every_python_that_is_allowed():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"].values()
    given = [step["with"]["python-version"] for job in jobs for step in job["steps"] if "setup-python" in str(step)]
    given += [version for job in jobs for version in job.get("strategy", {}).get("matrix", {}).get("python", [])]
    assert {tuple(map(int, version.split("."))) for version in given if "$" not in version} == set(packages.OWN_PYTHONS)


# --- suites ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def suites(tmp_path):
    """A folder with a comparison of five modes over eight rounds."""
    store(tmp_path / "runs", suite_records("compare", compare_programs()))
    return tmp_path / "runs"


def test_report_writes_one_page_without_torch(suites, no_torch):
    result = bench("report", suites, env=no_torch)
    assert result.code == 0, result.stderr
    page = suites / "report.html"
    assert result.stdout.splitlines()[-1] == f"report: {page}"
    assert "<svg" in page.read_text() and "single" in page.read_text()


def test_plots_of_a_suite_are_every_picture(suites, no_torch):
    result = bench("report", suites, "--format=plots", env=no_torch)
    assert result.code == 0, result.stderr
    made = sorted(path.name for path in suites.rglob("pictures/*"))
    assert made == sorted(f"{name}.svg" for name in ("ratios", "throughput", "memory", "memory-over-time"))


def test_plots_of_single_runs_is_one_picture(records, no_torch):
    result = bench("report", records, "--format=plots", env=no_torch)
    assert result.code == 0, result.stderr
    assert sorted(path.name for path in records.rglob("pictures/*")) == ["runs.svg"]
    assert result.stdout.splitlines() == [f"{records / 'pictures' / 'runs.svg'}"]
    nothing = bench("plots", records / "failed", env=no_torch)
    assert "no run below" in nothing.stderr.splitlines()[-1] and nothing.code == 2


def test_table_diff_and_pool_from_the_command_line(suites, no_torch, tmp_path):
    result = bench("report", suites, "--format", "csv", env=no_torch)
    assert result.code == 0 and len(result.stdout.splitlines()) == 41
    same = bench("diff", suites, suites, "--bound", "5", env=no_torch)
    assert same.code in (0, 2), same.stderr  # the same records twice: equal, or refused as the same
    result = bench("report", suites, "--by", "machine", "--out", tmp_path / "pool", env=no_torch)
    assert result.code == 0 and list((tmp_path / "pool").rglob("*.svg")), result.stderr


def test_a_regression_is_exit_code_3(suites, tmp_path, no_torch):
    slower = suite_records("compare", compare_programs(ddp=60.0), name="0002")
    store(tmp_path / "after", slower)
    result = bench("diff", suites, tmp_path / "after", "--bound", "5", env=no_torch)
    assert result.code == 3, result.stdout + result.stderr
    assert bench("diff", suites, tmp_path / "after", env=no_torch).code == 0  # nobody gave a bound


# --- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_says_what_each_mode_can_do_here(fresh):
    result = bench("doctor")
    assert not result.stderr
    for word in ("machine ", "GPUs ", "torch ", "horovod ", *(f"MODE={mode}" for mode in MODES)):
        assert any(line.startswith(word) for line in result.stdout.splitlines()), result.stdout
    assert result.code == (1 if "fix: " in result.stdout else 0)


def test_doctor_on_a_machine_whose_torch_is_broken(no_torch, fresh):
    result = bench("doctor", env=no_torch)
    assert result.code == 1 and not result.stderr
    assert "fix: torch does not import" in result.stdout
    assert "no: torch is missing" in result.stdout


def test_a_busy_machine_is_nothing_to_fix(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "others_now", lambda: 0.9)
    monkeypatch.setattr(doctor, "find_problems", lambda *_: [])
    monkeypatch.setattr(doctor, "shared_memory", lambda **_: [])
    assert doctor.run(None) == 0
    assert "90 % of the CPU now: what is measured now is disturbed" in in_one_line(capsys.readouterr().out)


def test_doctor_counts_the_gpus(nvml_stub, fresh):
    stdout = bench("doctor", env=nvml_stub.environ()).stdout
    assert "Stub GPU 0" in stdout and "Stub GPU 3" in stdout


def test_doctor_says_what_a_run_on_these_gpus_would_say(nvml_stub, fresh):
    stdout = bench("doctor", env=nvml_stub.environ(mig=[0, 1], total_mib=-1)).stdout
    assert "fix: GPU 1 (Stub GPU 1) is in MIG mode" in stdout and "memory not told" in stdout
