"""bench/cli.py as a person meets it: real processes, exit codes, and one clear line on stderr."""

import json
import subprocess
import sys

import pytest

from bench.modes import MODES
from tests.runs import ROOT, bench

COMMANDS = ["run", "verify", "gpu-check", "selfbench", "report", "doctor", "install-horovod"]


@pytest.fixture(scope="module")
def no_torch(tmp_path_factory):
    """An environment in which importing torch, torchvision or Horovod is an error."""
    folder = tmp_path_factory.mktemp("no_torch")
    for name in ("torch", "torchvision", "horovod"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(f"raise AssertionError('{name} was imported')\n")
    (folder / "torch" / "version.py").write_text("__version__ = '2.6.0'\ncuda = None\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def records(tmp_path, real_run):
    """A folder with one good record, a failed one and a truncated one."""
    good = real_run.record
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


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)], ids=" ".join)
def test_help_needs_no_torch(arguments, no_torch):
    result = bench(*arguments, env=no_torch)
    assert result.code == 0 and not result.stderr
    assert result.stdout.startswith("usage: bench")


def test_help_lists_every_command():
    stdout = bench("--help").stdout
    assert all(f"  {command}" in stdout for command in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "COMMAND"),
        ("fly", "fly"),
        ("run --colour red", "--colour"),
        ("run --gpus", "--gpus"),
        ("run --mode fsdp", "unknown MODE=fsdp: choose one of single, dp, ddp, horovod"),
        ("run --gpus 0", "GPUS=0 is too small"),
        ("run --gpus -1", "GPUS=-1 is too small"),
        ("run --gpus x", "GPUS=x is not a whole number"),
        ("run --gpus 1.5", "GPUS=1.5 is not a whole number"),
        ("run --gpus=", "GPUS= is not a whole number"),
        ("run --mode single --gpus 2", "MODE=single is one device, but GPUS=2"),
        ("run --data imagenet", "unknown DATA=imagenet"),
        ("run --device cpu --batch 2000", "BATCH=2000"),
        ("run --device cpu --gpus 2 --batch 1000", "use BATCH=718 or less"),
        ("run --device cpu --precision tf32", "PRECISION=tf32"),
        ("run --lr nan", "LR=nan"),
        ("run --steps 0", "STEPS=0"),
        ("run --fault maybe", "FAULT=maybe"),
        ("verify --gpus x", "GPUS=x"),
        ("gpu-check --device cpu --gpus x", "GPUS=x"),
        ("selfbench --rounds 1", "ROUNDS=1"),
    ],
)
def test_a_bad_request_is_one_line_and_exit_code_2(arguments, words, no_torch, tmp_path):
    out = ["--out", tmp_path / "out"] if arguments.startswith("run ") else []
    assert words in refused(bench(*arguments.split(), *out, env=no_torch))
    assert not (tmp_path / "out").exists()


def test_a_shortened_flag_is_not_guessed():
    """--step 3 is not --steps 3: make refuses a misspelt variable, and so does the command."""
    assert "--step" in refused(bench("run", "--step=3", "--gpus=x"))


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
    assert result.code == 1 and result.stderr.startswith("refused: ")


def test_report_into_a_pipe_that_closes(records):
    """`bench report | head -1` ends quietly; rich gives 1 where the shell's own word is 141."""
    command = f"{sys.executable} -m bench report {records / 'good'} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.stdout.strip() in ("0", "1", "141") and not result.stderr


# --- doctor -------------------------------------------------------------------------------------------------------


def test_doctor_says_what_each_mode_can_do_here():
    result = bench("doctor")
    assert not result.stderr
    for word in ("machine ", "GPUs ", "torch ", "horovod ", *(f"MODE={mode}" for mode in MODES)):
        assert any(line.startswith(word) for line in result.stdout.splitlines()), result.stdout
    assert result.code == (1 if "mend: " in result.stdout else 0)


def test_doctor_on_a_machine_whose_torch_is_broken(no_torch):
    result = bench("doctor", env=no_torch)
    assert result.code == 1 and not result.stderr
    assert "mend: torch does not import" in result.stdout
    assert "no: torch is missing" in result.stdout


def test_doctor_counts_the_gpus(nvml_stub):
    stdout = bench("doctor", env=nvml_stub.environ()).stdout
    assert "Stub GPU 0" in stdout and "Stub GPU 3" in stdout
