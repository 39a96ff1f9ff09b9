"""`bench doctor gpu`: which checks are begun, how they are ended, what is kept. The checks are made up, the processes
real."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.cli.actions import gpu_check
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.measure import environment
from bench.measure.nvml import Gpu
from bench.proof.gpu_check import base, ground, runner
from tests.runs import ROOT

pytestmark = pytest.mark.slow

MODULE = "tests.stubs.gpu_part"
GPU = Gpu(0, "GPU-1", "Test GPU", 80.0, None, "9.0")
OUTCOMES = {
    "right": "proven", "wrong": "failed", "breaks": "failed", "mistaken": "failed", "crashes": "failed",
    "across": "not exercised", "unable": "not exercised", "hangs": "failed", "long": "not exercised",
}  # fmt: skip
REASONS = {
    "right": "width m 1.235",
    "wrong": "not a number nan, earlier its options",
    "breaks": "rank 1 was killed; see rank1.log",
    "mistaken": "AttributeError: 'Ground' object has no attribute 'no_such_thing'",
    "crashes": "its process ended with code 7: Segmentation fault, say",
    "across": "needs 2 GPUs",
    "unable": "NVML does not tell it here",
    "hangs": "it hung: ended after 20 s",
}


def carry_out(out: Path, budget_s: float = 3000.0, said: list | None = None, **options) -> list[dict]:
    """The findings of the made-up part."""
    said = [] if said is None else said
    return runner.carry_out([MODULE], RunConfig(out=str(out), **options), [GPU], budget_s, said.append)


def kept(out: Path) -> dict[str, dict]:
    """What the file has."""
    return {each["check"]: each for each in json.loads((out / runner.FILE).read_text())["findings"]}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A first call: its folder, findings, and what was said. A check may hang for 20 s."""
    out, said = tmp_path_factory.mktemp("gpu"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.Check, "limit_s", 20.0)
        return out, carry_out(out, said=said), said


def test_every_check_is_answered_whatever_the_others_do(first):
    out, results, said = first
    assert {each["check"]: each["outcome"] for each in results} == OUTCOMES
    words = {each["check"]: runner.rests_on(each) for each in results}
    assert words.pop("long").startswith("budget: it takes 10000 s, and 29")
    assert words == REASONS
    assert [line.split(":")[0] for line in said] == [f"A1 {name}" for name in OUTCOMES]  # each at once, in order
    assert runner.counted(results) == "1 proven, 5 failed, 3 not exercised"
    assert kept(out) == {each["check"]: each for each in results}


def test_a_check_that_hangs_leaves_nobody_behind(first):
    out = first[0]
    pid = int((out / "child").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_log_of_what_was_not_proven_is_kept(first):
    logs = first[0] / runner.LOGS
    assert "said on the way" in (logs / "A1-wrong.log").read_text()
    assert "no_such_thing" in (logs / "A1-mistaken.log").read_text()
    assert not (logs / "A1-right.log").exists()


def test_a_second_call_goes_on_where_the_first_stopped(first, monkeypatch):
    """What was proven or failed is not asked again, but for another code, other options or other GPUs."""
    out, before, _ = first
    said = []
    again = carry_out(out, said=said)
    same = [name for name, outcome in OUTCOMES.items() if outcome != "not exercised"]
    assert [line.split(":")[0][3:] for line in said if "answered before, and not asked again" in line] == same
    assert [each for each in again if each["check"] in same] == [each for each in before if each["check"] in same]
    assert (out / "begun").read_text() == "right "
    said.clear()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "source_hash", lambda *more, text: "of other code")
        carry_out(out, budget_s=0.5, said=said)
    carry_out(out, budget_s=0.5, said=said, seed=3)
    assert len(said) == 2 * len(OUTCOMES) and not any("answered before" in line for line in said)
    assert kept(out)["right"]["outcome"] == "proven"  # what was not exercised replaces no answer
    findings = runner.Findings(out)
    (plan,) = [line for line in runner.plan([MODULE], findings, kept(out)["right"]["key"]) if " right" in line]
    assert "right (proven before): Is it so?" in plan


def test_an_answer_is_of_one_kind_of_gpus_and_not_of_one_board():
    """A cluster gives every job of ten minutes another one."""
    other_board = Gpu(1, "GPU-2", "Test GPU", 80.0, None, "9.0")
    other_kind = Gpu(0, "GPU-1", "Other GPU", 80.0, None, "9.0")
    key = runner.key_of(RunConfig(), [GPU])
    assert runner.key_of(RunConfig(out="elsewhere"), [other_board]) == key
    assert key not in {runner.key_of(RunConfig(), gpus) for gpus in ([other_kind], [GPU, other_board])}
    assert runner.key_of(RunConfig(model="resnet18"), [GPU]) != key


def test_calls_for_two_parts_at_once_keep_what_each_other_found(tmp_path):
    one, other = runner.Findings(tmp_path), runner.Findings(tmp_path)
    for findings, part in ((one, "A1"), (other, "A2")):
        findings.add({"part": part, "check": "c", "outcome": "proven", "key": "k", "runs": {}})
    assert set(runner.Findings(tmp_path).found) == {("A1", "c"), ("A2", "c")}


def test_no_check_is_begun_that_would_outrun_the_budget(tmp_path):
    results = carry_out(tmp_path, budget_s=0.5)
    assert {each["outcome"] for each in results} == {"not exercised"}
    assert results[0]["reason"] == "budget: it takes 1 s, and 0 s are left"
    assert not (tmp_path / "begun").exists()


def test_a_check_that_the_budget_ends_has_not_failed(tmp_path):
    """It was begun with time enough by its estimate, and took longer."""
    (check,) = [each for each in base.part_in(MODULE).checks if each.name == "hangs"]
    found = runner.make(MODULE, check, RunConfig(out=str(tmp_path)), 1, {}, left_s=4.0)
    assert found["outcome"] == "not exercised" and found["reason"] == "the budget was over after 4 s of it"


CALL = """
from bench.config.options import RunConfig
from bench.proof.gpu_check import runner
from bench.measure import environment
from bench.measure.nvml import Gpu
gpu = Gpu(0, "GPU-1", "Test GPU", 80.0, None, "9.0")
runner.carry_out([{module!r}], RunConfig(out={out!r}), [gpu], 3000.0, print)
"""


def test_ctrl_c_leaves_what_was_found_and_nobody(tmp_path):
    code = CALL.format(module=MODULE, out=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not (tmp_path / "child").exists() and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    found = kept(tmp_path)
    assert found["right"]["outcome"] == "proven" and "hangs" not in found
    pid = int((tmp_path / "child").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_file_that_is_none_of_this_is_refused(tmp_path):
    (tmp_path / runner.FILE).write_text('{"version": 99}')
    with pytest.raises(UserError, match=r"gpu-check.json cannot be read \(version 99\): move it away"):
        runner.Findings(tmp_path)


# --- the parts, and the command line --------------------------------------------------------------------------------


def test_no_part_takes_more_than_ten_minutes_and_every_name_is_there_once():
    for name, module in base.PARTS.items():
        part = base.part_in(module)
        assert part.name == name and part.seconds_on(2) <= base.LONGEST_S
        assert len({check.name for check in part.checks}) == len(part.checks)
        assert all(check.question.endswith(("?", ".)")) for check in part.checks)
        assert {need for check in part.checks for need in check.needs} <= ground.NEEDS.keys()


def test_the_whole_takes_half_an_hour_on_one_gpu_and_the_manual_says_what_of_it_a_part_takes():
    minutes = {name: base.part_in(module).seconds_on(1) / 60 for name, module in base.PARTS.items()}
    assert sum(minutes.values()) <= base.WHOLE_S / 60
    manual = (ROOT / "tutorials" / "manual" / "gpu_check.md").read_text()
    told = re.findall(r"^\| ([AB]\d) \| .* \| (\d+) minutes \|$", manual, re.MULTILINE)
    assert {name: int(number) for name, number in told} == {name: math.ceil(took) for name, took in minutes.items()}
    assert [name for name, _ in told] == list(base.PARTS)  # the order in which they run


@pytest.mark.parametrize(
    ("file", "code", "asked_again"),
    [
        ("training/loop.py", 'def double(x):\n    """Another text."""\n    return 2 * x\n', False),
        ("training/loop.py", "# of it\ndef double(x):\n    return 2 * x\n", False),
        ("training/loop.py", "def double(x):\n    return 3 * x\n", True),
        ("studies/verify.py", "def double(x):\n    return 3 * x\n", True),
        ("report/page.py", "def double(x):\n    return 3 * x\n", False),
    ],
)
def test_an_answer_rests_on_what_the_code_does(file, code, asked_again, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    path = tmp_path / "bench" / file
    path.parent.mkdir(parents=True)
    path.write_text('"""What it is."""\n\n\ndef double(x):\n    """x twice."""\n    return 2 * x  # two\n')
    before = runner.key_of(RunConfig(), [GPU])
    path.write_text(code)
    assert (runner.key_of(RunConfig(), [GPU]) != before) == asked_again


def test_what_a_machine_lacks_is_said():
    old = Gpu(0, "GPU-1", "Test GPU", 16.0, None, "7.5")
    assert ground.lacking((ground.TWO_GPUS,), [GPU]) == "2 GPUs" and not ground.lacking((ground.TWO_GPUS,), [GPU, old])
    assert ground.lacking((ground.SHORT,), [old]) == ground.SHORT and not ground.lacking((ground.SHORT,), [GPU])


def bench(*words: str, **variables) -> subprocess.CompletedProcess:
    """`bench doctor gpu` on a machine without a GPU."""
    command = [sys.executable, "-m", "bench", "doctor", "gpu", *words]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, timeout=120)


def test_the_plan_needs_no_gpu_and_no_torch():
    result = bench("--plan", "--part", "b1,A1")
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert [line[:2] for line in lines if line[:1] in "AB"] == ["A1", "B1"]
    assert any(
        "horovod-build: Does Horovod build" in line and line.endswith("[needs a C++ compiler]") for line in lines
    )
    assert lines[-1].startswith("in all ") and lines[-1].endswith("minutes at most on a recent GPU")
    listing = subprocess.run([sys.executable, "-X", "importtime", "-m", "bench", "doctor", "gpu", "--plan"], cwd=ROOT,
                             capture_output=True, text=True, timeout=120).stderr  # fmt: skip
    assert not any(line.split("|")[-1].strip() == "torch" for line in listing.splitlines())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "needs a GPU, and none is visible here: `bench doctor` says why; PLAN=1 works without"),
        ("--part A1,C3", "unknown PART=C3: choose of A1, B1, A2, A4, A3, B2"),
        ("--budget 45", "BUDGET=45: write a time as 45m, 600s or 1h"),
        ("--budget 0m", "BUDGET=0m"),
        ("--plan maybe", "PLAN=maybe: write 1 or 0"),
        ("--batch 32", "unknown option --batch (BATCH=)"),
        ("--budgets 45m", "did you mean --budget (BUDGET=)?"),
    ],
)
def test_what_cannot_be_is_one_line(words, said):
    result = bench(*words.split())
    assert result.returncode == 2 and said in result.stderr and result.stderr.count("\n") == 1


def test_a_table_of_everything_ends_it(monkeypatch, tmp_path, capsys):
    """The command itself, with a GPU that is made up."""
    monkeypatch.setattr(gpu_check, "PARTS", {"A1": MODULE})
    monkeypatch.setattr(gpu_check, "usable_gpus", lambda asked: [GPU])
    monkeypatch.setattr(gpu_check, "require_fit", lambda config, gpus: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    args = gpu_check_args("--budget", "2s")
    assert gpu_check.run(args) in (0, 1)  # by how fast this machine is
    said = capsys.readouterr().out.splitlines()
    assert said[-1].endswith("results/reference/1x-test-gpu/gpu-check.json") and "not exercised: " in said[-1]
    assert sum(line.startswith(" A1") or line.startswith("A1 ") for line in said) >= 2 * len(OUTCOMES)


def gpu_check_args(*words: str):
    """The command's arguments, parsed."""
    from bench.cli import COMMANDS

    return COMMANDS["doctor"].parts["gpu"].parse(list(words))
