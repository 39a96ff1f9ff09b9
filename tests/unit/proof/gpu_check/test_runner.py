"""`bench doctor gpu`: which checks are begun, how they are ended, what is kept. The checks are made up, the processes
real."""

import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bench.cli import COMMANDS
from bench.cli.actions import gpu_check
from bench.config.options import RunConfig
from bench.measure import environment
from bench.measure.nvml import Gpu
from bench.proof.gpu_check import base, ground, runner
from tests.runs import ROOT, refuses, wait_for

pytestmark = pytest.mark.slow

MODULE = "tests.stubs.gpu_part"
GPU = Gpu(0, "GPU-1", "Test GPU", 80.0, None, "9.0")
OUTCOMES = {  # what was found, and what the reason names
    "right": ("proven", "1.235"),
    "wrong": ("failed", "nan"),
    "breaks": ("failed", "rank 1"),
    "mistaken": ("failed", "no_such_thing"),
    "crashes": ("failed", "code 7"),
    "across": ("not exercised", "2 GPUs"),
    "unable": ("not exercised", "NVML"),
    "hangs": ("failed", "20 s"),
    "long": ("not exercised", "10000 s"),
}


def carry_out(out: Path, budget_s: float = 3000.0, said: list | None = None, **options) -> list[dict]:
    said = [] if said is None else said
    return runner.run_checks([MODULE], RunConfig(out=str(out), **options), [GPU], budget_s, said.append)


def kept(out: Path) -> dict[str, dict]:
    return {each["check"]: each for each in json.loads((out / runner.FILE).read_text())["findings"]}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A first call: its folder, findings, and what was said. A check may hang for 20 s."""
    out, said = tmp_path_factory.mktemp("gpu"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.Check, "limit_s", 20.0)
        return out, carry_out(out, said=said), said


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_every_check_is_answered_whatever_the_others_do(first):
    """And the log of what was not proven is kept."""
    out, results, said = first
    assert {each["check"]: each["outcome"] for each in results} == {name: o for name, (o, _) in OUTCOMES.items()}
    for each in results:
        assert OUTCOMES[each["check"]][1] in runner.rests_on(each), each
    assert [line.split(":")[0] for line in said] == [f"A1 {name}" for name in OUTCOMES]  # each at once, in order
    assert runner.counted(results) == "1 proven, 5 failed, 3 not exercised"
    assert kept(out) == {each["check"]: each for each in results}
    assert gone(int((out / "child").read_text()))  # of the check that hangs
    logs = out / runner.LOGS
    assert "said on the way" in (logs / "A1-wrong.log").read_text()
    assert "no_such_thing" in (logs / "A1-mistaken.log").read_text()
    assert not (logs / "A1-right.log").exists()


def test_a_second_call_goes_on_where_the_first_stopped(first, monkeypatch):
    """What was proven or failed is not asked again, but for another code, other options or other GPUs."""
    out, before, _ = first
    again = carry_out(out)
    same = [name for name, (outcome, _) in OUTCOMES.items() if outcome != "not exercised"]
    assert [each for each in again if each["check"] in same] == [each for each in before if each["check"] in same]
    assert (out / "begun").read_text() == "right "
    findings = runner.Findings(out)
    (plan,) = [line for line in runner.plan([MODULE], findings, kept(out)["right"]["key"]) if " right" in line]
    assert "proven" in plan and "Is it so?" in plan
    with monkeypatch.context() as patch:
        patch.setattr(runner, "source_hash", lambda *more, text: "of other code")
        other_code = carry_out(out, budget_s=0.5)
    for results in (other_code, carry_out(out, budget_s=0.5, seed=3)):  # none is begun: it would outrun the budget
        assert {each["outcome"] for each in results} == {"not exercised"}
    assert (out / "begun").read_text() == "right "
    assert kept(out)["right"]["outcome"] == "proven"  # what was not exercised replaces no answer


def test_a_check_that_the_budget_ends_has_not_failed(tmp_path):
    """It was begun with time enough by its estimate, and took longer."""
    (check,) = [each for each in base.part_in(MODULE).checks if each.name == "hangs"]
    found = runner.make(MODULE, check, RunConfig(out=str(tmp_path)), 1, {}, left_s=2.0)
    assert found["outcome"] == "not exercised" and "2 s" in found["reason"]


def test_the_file_is_shared_and_another_one_is_refused(tmp_path):
    """Calls for two parts at once keep what each other found."""
    one, other = runner.Findings(tmp_path), runner.Findings(tmp_path)
    for findings, part in ((one, "A1"), (other, "A2")):
        findings.add({"part": part, "check": "c", "outcome": "proven", "key": "k", "runs": {}})
    assert set(runner.Findings(tmp_path).found) == {("A1", "c"), ("A2", "c")}
    (tmp_path / runner.FILE).write_text('{"version": 99}')
    with refuses(runner.FILE, "version 99"):
        runner.Findings(tmp_path)


def test_ctrl_c_leaves_what_was_found_and_nobody(tmp_path, copied_python):
    code = f"from tests.unit.proof.gpu_check import test_runner as it; it.carry_out({str(tmp_path)!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE)
    wait_for((tmp_path / "child").exists, "the check that hangs")
    process.send_signal(signal.SIGINT)
    assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    found = kept(tmp_path)
    assert found["right"]["outcome"] == "proven" and "hangs" not in found
    assert gone(int((tmp_path / "child").read_text()))


def test_the_parts_and_their_minutes_are_those_of_the_manual():
    """Half an hour on one GPU; no part takes more than ten minutes on two."""
    for name, module in base.PARTS.items():
        part = base.part_in(module)
        assert part.name == name and part.seconds_on(2) <= base.LONGEST_S
        assert len({check.name for check in part.checks}) == len(part.checks)
        assert {need for check in part.checks for need in check.needs} <= ground.NEEDS.keys()
    minutes = {name: base.part_in(module).seconds_on(1) / 60 for name, module in base.PARTS.items()}
    assert sum(minutes.values()) <= base.WHOLE_S / 60
    manual = (ROOT / "tutorials" / "manual" / "gpu_check.md").read_text()
    told = re.findall(r"^\| ([AB]\d) \| .* \| (\d+) minutes \|$", manual, re.MULTILINE)
    assert {name: int(number) for name, number in told} == {name: math.ceil(took) for name, took in minutes.items()}
    assert [name for name, _ in told] == list(base.PARTS)  # the order in which they run
    old = Gpu(0, "GPU-1", "Test GPU", 16.0, None, "7.5")
    assert ground.unmet_need((ground.TWO_GPUS,), [GPU]) == "2 GPUs"
    assert not ground.unmet_need((ground.TWO_GPUS,), [GPU, old])
    assert ground.unmet_need((ground.SHORT,), [old]) == ground.SHORT and not ground.unmet_need((ground.SHORT,), [GPU])


def test_an_answer_is_of_what_the_code_does_and_of_one_kind_of_gpus(tmp_path, monkeypatch):
    """Not of one board: a cluster gives every job of ten minutes another one."""
    other_board = Gpu(1, "GPU-2", "Test GPU", 80.0, None, "9.0")
    other_kind = Gpu(0, "GPU-1", "Other GPU", 80.0, None, "9.0")
    monkeypatch.setattr(environment, "REPOSITORY", tmp_path)
    monkeypatch.setattr(runner, "source_hash", environment.source_hash.__wrapped__)
    code = '"""What it is."""\n\n\ndef double(x):\n    """x twice."""\n    return 2 * x  # two\n'
    for file in ("training/loop.py", "studies/verify.py", "report/page.py"):
        path = tmp_path / "bench" / file
        path.parent.mkdir(parents=True)
        path.write_text(code)
    key = runner.key_of(RunConfig(), [GPU])
    assert runner.key_of(RunConfig(out="elsewhere"), [other_board]) == key
    assert key not in {runner.key_of(RunConfig(), gpus) for gpus in ([other_kind], [GPU, other_board])}
    assert runner.key_of(RunConfig(model="resnet18"), [GPU]) != key
    for file, text, asked_again in (
        ("training/loop.py", code.replace("twice", "times two").replace("# two", "# more"), False),
        ("report/page.py", code.replace("2 *", "3 *"), False),
        ("training/loop.py", code.replace("2 *", "3 *"), True),
        ("studies/verify.py", code.replace("2 *", "3 *"), True),
    ):
        (tmp_path / "bench" / file).write_text(text)
        assert (runner.key_of(RunConfig(), [GPU]) != key) == asked_again, file
        (tmp_path / "bench" / file).write_text(code)


def test_the_plan_needs_no_gpu_and_no_torch():
    words = ["-X", "importtime", "-m", "bench", "doctor", "gpu", "--plan", "--part", "b1,A1"]
    env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, env=env, timeout=120)
    lines = result.stdout.splitlines()
    assert result.returncode == 0 and [line[:2] for line in lines if line[:1] in "AB"] == ["A1", "B1"]
    assert any("horovod-build" in line and "C++" in line for line in lines)
    assert "torch" not in {line.split("|")[-1].strip() for line in result.stderr.splitlines()}


@pytest.mark.parametrize(("words", "values"), [
    ("", ["GPU", "PLAN=1"]), ("--part A1,C3", ["PART=C3", *base.PARTS]), ("--budget 45", ["BUDGET=45"]),
    ("--plan maybe", ["PLAN=maybe"]),
])  # fmt: skip
def test_what_cannot_be_is_one_line(words, values, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with refuses(*values):
        gpu_check.run(COMMANDS["doctor"].parts["gpu"].parse(words.split()))


def test_a_table_of_everything_ends_it(monkeypatch, tmp_path, capsys, copied_python):
    """The command itself, with a GPU that is made up."""
    monkeypatch.setattr(gpu_check, "PARTS", {"A1": MODULE})
    monkeypatch.setattr(gpu_check, "usable_gpus", lambda asked: [GPU])
    monkeypatch.setattr(gpu_check, "require_fit", lambda config, gpus: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    args = COMMANDS["doctor"].parts["gpu"].parse(["--budget", "2s"])
    assert gpu_check.run(args) in (0, 1)  # by how fast this machine is
    said = capsys.readouterr().out.splitlines()
    assert said[-1].endswith("results/reference/1x-test-gpu/gpu-check.json")
    assert sum(line.startswith(" A1") or line.startswith("A1 ") for line in said) >= 2 * len(OUTCOMES)
