"""The command line as a person meets it: names, helps, exit codes, and what needs no torch. What it refuses is in
test_refusals.py."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from unittest import mock

import pytest
import yaml

from bench.__main__ import command_of, main
from bench.cli import ALIASES, COMMANDS, GONE, OF_MAKE, RENAMED, all_commands
from bench.cli.actions import doctor
from bench.cli.base import DEVELOP, GROUPS
from bench.config.fields import flag_of
from bench.config.modes import MODES
from bench.config.options import FIELDS
from bench.errors import ExitCode
from bench.install import packages
from bench.studies.registry import STUDIES
from tests.forked_programs import copied_chapters
from tests.records import compare_programs, record, store, suite_records
from tests.runs import ROOT, bench, finish, start

EVERY = {command.name: command for command in all_commands()}


@pytest.fixture(autouse=True)
def no_variables_of_before(monkeypatch):
    monkeypatch.setenv("BENCH_SEEN", "")


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    folder = tmp_path_factory.mktemp("no_torch")
    for name in ("torch", "torchvision", "horovod"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise AssertionError('{name} was imported')\n")
    (folder / "torch" / "version.py").write_text("__version__ = '2.7.0'\ncuda = None\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def some(tmp_path):
    good, failed = (json.dumps(record(failed=kind).data) for kind in (None, "killed"))
    for name, text in {"good": good, "failed": failed, "truncated": good[:500]}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "record.json").write_text(text)
    return tmp_path


ALL = """
import contextlib, io, json, sys
from bench.__main__ import main
found = []
for words in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    found.append([int(code or 0), out.getvalue(), error.getvalue()])
print(json.dumps(found))
"""


def without_torch(no_torch: dict, *commands: list[str]) -> list[list]:
    """Exit code, output and errors of commands in a process that cannot import torch."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{no_torch['PYTHONPATH']}"}
    process = subprocess.run([sys.executable, "-c", ALL, json.dumps(commands)], env=environment, capture_output=True,
                             text=True, timeout=200)  # fmt: skip
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_helps_and_what_reads_records_need_no_torch(no_torch, tmp_path):
    helps = [["--help"], ["help", "--make"], *([*name.split(), "--help"] for name in [*COMMANDS, *EVERY])]
    usual, make, *others = without_torch(no_torch, *helps)
    assert all(code == 0 and not error for code, _, error in (usual, make, *others))
    assert all(out.startswith("usage: bench") for _, out, _ in others)
    runs = store(tmp_path / "runs", suite_records("compare", compare_programs(), rounds=4))
    after = store(tmp_path / "after", suite_records("compare", compare_programs(ddp=60.0), rounds=4))
    page, pictures, table, *others = without_torch(
        no_torch, ["report", str(runs)], ["report", str(runs), "--format=plots"], ["report", str(runs), "--format=csv"],
        ["report", str(runs), "--by=machine", f"--out={tmp_path / 'pool'}"],
        ["diff", str(runs), str(after), "--bound=5"], ["diff", str(runs), str(after)], ["run", "--mode=telepathy"],
    )  # fmt: skip
    codes = [code for code, *_ in (page, pictures, table, *others)]
    assert codes == [0, 0, 0, 0, ExitCode.FOUND, 0, ExitCode.REFUSED]
    assert page[1].splitlines()[-1] == f"report: {runs / 'report.html'}" and (runs / "report.html").exists()
    made = sorted(path.name for path in runs.rglob("pictures/*"))
    assert made == sorted(f"{name}.svg" for name in ("ratios", "throughput", "memory", "memory-over-time"))
    assert len(table[1].splitlines()) == 21 and list((tmp_path / "pool").rglob("*.svg"))


def test_the_table_has_every_command_that_there_is():
    """What a study is called is in it, too, and no name stands for two. Its files: tests/lint.py."""
    assert len(COMMANDS) <= 20 and {study.command for study in STUDIES.values()} <= set(EVERY)
    lines = [*COMMANDS.values(), *OF_MAKE]
    assert {line.group for line in lines} == set(GROUPS) and all(line.help for line in [*lines, *all_commands()])
    assert all(part.name == f"{name} {word}" for name, line in COMMANDS.items() for word, part in line.parts.items())
    names = [*COMMANDS, *(line.name for line in OF_MAKE), *ALIASES, *RENAMED, *GONE]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("old", [*ALIASES, *RENAMED])
def test_another_name_of_a_command_is_that_command(old, capsys):
    """With what it adds to it; a name that goes is answered with its successor, in a line."""
    new, _, added = (ALIASES | RENAMED)[old].partition(" -")
    found, words = command_of([old, "--x"])
    assert found is EVERY[new] and words == [*([f"-{added}"] if added else []), "--x"]
    found.parse(words[:-1])
    said = capsys.readouterr().err
    assert said.count("\n") == (old in RENAMED) and (f"`bench {RENAMED[old]}`" in said if old in RENAMED else not said)


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)) - {"--help"}


@pytest.mark.parametrize("mode", ["", *MODES])
def test_the_help_of_a_run_is_short_and_has_the_options_of_the_mode_that_is_given(mode):
    text = EVERY["run"].parser().help_of([*(["--mode", mode] if mode else []), "--help"])
    assert len(flags_in(text)) <= 45 and text.count("\n") <= 100
    of_modes = {flag_of(FIELDS[name]) for info in MODES.values() for name in info.knobs} - {"--inject"}
    mine = {flag_of(FIELDS[name]) for name in (MODES[mode].knobs if mode else ())} - {"--inject"}
    assert flags_in(text) & of_modes == mine
    whole = flags_in(EVERY["run"].parser().help_of(["--help-all"]))
    assert whole == {"--config", *(flag_of(field) for field in FIELDS.values())}


@pytest.mark.parametrize(("form", "entry"), [([], r"^  bench ([a-z-]+)"), (["--make"], r"^  make ([a-z-]+)")])
def test_every_help_lists_every_command_in_its_group(form, entry, capsys):
    """One table, in two forms; make has some targets that are not commands, and a group of these."""
    of_make = bool(form)
    assert main(["help", *form]) == 0
    shown = [group for group in GROUPS if of_make or group != DEVELOP]
    _, *sections = re.split("|".join(f"^{group}$" for group in shown), capsys.readouterr().out, flags=re.MULTILINE)
    for group, section in zip(shown, sections, strict=True):
        lines = [*COMMANDS.values(), *(OF_MAKE if of_make else ())]
        lines = [line for line in lines if line.group == group]
        assert re.findall(entry, section, re.MULTILINE) == [line.make if of_make else line.name for line in lines]
        assert all(line.help in section for line in lines)
        assert all(f"{line.make if of_make else line.name} {part}" in section for line in lines for part in line.parts)


def test_help_has_the_exit_codes_of_every_command(capsys):
    codes, shown = zip(*((main([word]), capsys.readouterr().out) for word in ("help", "-h")), strict=True)
    assert codes == (0, 0) and len({*shown}) == 1
    found = dict(re.findall(r"^  (\d+) +(.+)$", shown[0].partition("\nexit codes\n")[2], re.MULTILINE))
    assert {int(code): meaning for code, meaning in found.items()} == {code: code.meaning for code in ExitCode}
    assert list(ExitCode) == [0, 1, 2, 3, 130]  # which scripts and workflows know


def test_variables_that_nothing_reads_are_named_without_their_values(monkeypatch, capsys):
    """Not those of what was given, nor of other commands' options, nor again by a command that a command runs; and a
    letter that is missing in many a course: CUDA takes all GPUs then, without a word."""
    given = {"GPUS": "s3cret", "BATCH": "64", "SEED": "1", "ROUNDS": "3", "NAME": "laptop", "LR": ""}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--seed=2", "--mode=no"]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert "GPUS, BATCH are" in note and "--gpus=… --batch=…" in note and "s3cret" not in note and "MODE=no" in error
    assert main(["run", "--seed=2", "--mode=no"]) == 2  # as in a chapter
    assert len(capsys.readouterr().err.splitlines()) == 1
    for name in ("CUDA_VISIBLE_DEVICE", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    assert main(["report", "nowhere"]) == 2
    note, _ = capsys.readouterr().err.splitlines()
    assert "CUDA_VISIBLE_DEVICE is" in note and "CUDA_VISIBLE_DEVICES?" in note


@pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="JupyterLab is not installed")
def test_jupyter_opens_the_chinese_notebooks_with_what_a_server_needs_and_the_rest():
    """In the folder of the whole clone, where their links lead. JupyterLab itself tells what it would do."""
    words = ("--edition=zh", "--browser=0", "--ip=127.0.0.1", "--port=8899", "--", "--show-config-json")
    with copied_chapters():
        result = bench("notebooks", "open", *words).ok()
    server = json.loads(result.stdout[result.stdout.index("{") :])["ServerApp"]
    assert (server["open_browser"], server["ip"], server["port"]) == (False, "127.0.0.1", 8899)
    folder = "build/notebooks/zh"
    assert (server["root_dir"], server["default_url"]) == (str(ROOT), f"/lab/tree/{folder}")
    assert (ROOT / folder / "04_ddp.ipynb").exists()


def test_report_shows_what_is_good_and_names_what_is_not(some, capsys):
    assert main(["report", str(some)]) == 0
    out, error = capsys.readouterr()
    assert "torch " in out and "failed: killed" in out
    assert error.count("\n") == 1 and str(some / "truncated" / "record.json") in error
    assert main(["report", str(some), "--format=plots"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{some / 'pictures' / 'runs.svg'}"]
    for nothing in (["report", str(some / "truncated")], ["plots", str(some / "failed")]):
        assert main(nothing) == 2
    (some / "empty").mkdir()
    capsys.readouterr()
    assert main(["report", str(some / "empty")]) == 2 and str(some / "empty") in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [("report {}", "1"), ("help", "141")])
def test_a_pipe_that_closes_ends_a_command_quietly(some, words, code):
    """`bench report | head`. rich, which writes tables, ends with 1 where a shell expects 141."""
    command = f"{sys.executable} -m bench {words.format(some / 'good')} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.stdout.strip(), result.stderr) == (code, "")


def test_workflows_run_targets_that_there_are_on_every_python_that_is_allowed():
    targets = {*COMMANDS, *ALIASES, *(line.name for line in OF_MAKE)}
    found = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    jobs = [job for path in found for job in yaml.safe_load(path.read_text())["jobs"].values()]
    ran = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]
    own = [words for words in ran if words[:2] != ["pip", "install"]]
    started = ((words[0] == "make" and words[1] in targets) or words[:2] == ["npm", "install"] for words in own)
    assert len(found) == 3 and own and all(started)
    assert all(job["timeout-minutes"] for job in jobs)
    of_tests = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"].values()
    given = [step["with"]["python-version"] for job in of_tests for step in job["steps"] if "setup-python" in str(step)]
    given += [version for job in of_tests for version in job.get("strategy", {}).get("matrix", {}).get("python", [])]
    assert {tuple(map(int, version.split("."))) for version in given if "$" not in version} == set(packages.OWN_PYTHONS)


def test_doctor_tells_what_each_mode_can_do_here_and_what_to_fix(no_torch, forked_programs):
    result = finish(start("doctor", copies=forked_programs))
    assert not result.stderr and result.code == (1 if "fix: " in result.stdout else 0)
    for word in ("machine ", "GPUs ", "torch ", "horovod ", *(f"MODE={mode}" for mode in MODES)):
        assert any(line.startswith(word) for line in result.stdout.splitlines()), result.stdout
    broken = bench("doctor", env=no_torch)
    assert broken.code == 1 and not broken.stderr and "fix: torch " in broken.stdout


def test_a_busy_machine_is_nothing_to_fix(monkeypatch, capsys):
    others = {"others_now": 0.9, "find_problems": [], "shared_memory": [], "probe_torch": None}
    for name, value in others.items():
        monkeypatch.setattr(doctor, name, mock.Mock(return_value=value))
    assert doctor.run(None) == 0 and "90 % of the CPU" in capsys.readouterr().out
