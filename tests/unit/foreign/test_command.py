"""`bench time`: what it refuses, in one line, and how it runs a command. What it measures has tests/multiprocess."""

import json
import shlex
import sys

import pytest

from bench import __main__ as cli
from bench.cli.actions.time_script import words_of
from bench.errors import RunFailed, UserError
from bench.foreign import command
from bench.foreign.command import Options
from bench.process.guard import alive
from tests.runs import refuses


@pytest.mark.parametrize(("words", "value"), [
    ((), "bench time"),
    (("--cmd", "a 'b"), "CMD="),
    (("--cmd", "true", "--", "true"), "CMD="),  # given twice
    (("--steps", "x", "--", "true"), "STEPS=x"),
    (("--warmup", "0", "--", "true"), "WARMUP=0"),
    (("--batch", "-1", "--", "true"), "BATCH=-1"),
    (("--limit", "nan", "--", "true"), "LIMIT=nan"),
    (("--", "no-such-command"), "no-such-command"),
    (("--", "train.py"), "python"),
    (("--", ""), "''"),
    (("--", "/"), "/"),
])  # fmt: skip
def test_bad_input_is_one_line(words, value, tmp_path, capsys):
    assert cli.main(["time", "--out", str(tmp_path / "out"), *words]) == 2
    complaint = capsys.readouterr().err
    assert value in complaint and complaint.count("\n") == 1 and not (tmp_path / "out").exists()


BROKEN_PART = "import json, os; open(json.loads(os.environ['BENCH_TIME'])['folder'] + '/part-0-1.json', 'w').write({})"


@pytest.mark.parametrize(("script", "error", "value"), [
    ("raise SystemExit(7)", RunFailed, "7"),
    ("pass", UserError, None),  # no process of it took a step
    ("import os; os.kill(os.getpid(), 11)", RunFailed, "SIGSEGV"),
    *((BROKEN_PART.format(text), UserError, "part-0-1.json") for text in ("'[' * 100_000", "'[]'", "'{}'")),
])  # fmt: skip
def test_a_command_that_leaves_no_times_leaves_no_record(script, error, value, tmp_path):
    with pytest.raises(error, match=value):
        command.run([sys.executable, "-c", script], Options(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_after_the_limit_a_command_is_ended_even_if_it_has_cleared_its_environment(tmp_path):
    """It is not found by its mark."""
    (out := tmp_path / "out").mkdir()
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with refuses("LIMIT", "3 s", error=RunFailed):
        command.run(["env", "-i", sys.executable, "-c", code], Options(), out, limit_s=3.0)
    assert not alive(int((tmp_path / "pid").read_text())) and list(out.iterdir()) == []


def test_the_commands_own_sitecustomize_and_path_are_kept(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n")
    (parts := tmp_path / "parts").mkdir()
    variables = command.environment(tmp_path, parts, Options(steps=3))
    assert json.loads(variables["BENCH_TIME"])["steps"] == 3
    script = "import sys; print(theirs, [p for p in sys.path if 'site' in p and 'bench' in p], 'torch' in sys.modules)"
    variables["PYTHONPATH"] += f":{tmp_path}"
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {script!r}]).returncode)"
    assert command.supervise([sys.executable, "-c", code], variables, lambda: False, 60) == 0


def parts(**changes) -> list[dict]:
    """What two ranks leave, as far as it is looked at."""
    end = {"at": 1.0, "failed": False, "words": "after 30 steps"}
    return [{"rank": r, "world_size": 2, "steps_taken": 30, "step_number": [21, 22], "images": 8, "end": end} | changes
            for r in range(2)]  # fmt: skip


@pytest.mark.parametrize(("left", "value"), [
    ([], None),
    (parts()[:1], "2"),
    (parts(rank=0), "rank 0"),
    (parts(step_number=[]), "30 .*20"),
    (parts(end={"at": 1.0, "failed": True, "words": "OSError: x, after 3 steps"}), "rank 0 .*OSError: x, after 3"),
])  # fmt: skip
def test_parts_that_are_no_training_are_refused(left, value, tmp_path):
    for number, part in enumerate(left):
        (tmp_path / f"part-{number}.json").write_text(json.dumps(part))
    with pytest.raises(UserError, match=value):
        command.read_parts(tmp_path, "torchrun", Options())


def test_of_a_command_that_fails_the_rank_is_named_that_ended_first(tmp_path):
    ends = [{"at": 2.0, "failed": True, "words": "RuntimeError: closed"}, {"at": 1.0, "failed": False, "words": "OK"}]
    assert command.ended_in(tmp_path) == ""
    for rank, end in enumerate(ends):
        (tmp_path / f"part-{rank}-1.json").write_text(json.dumps({"rank": rank, "world_size": 2, "end": end}))
    said = command.ended_in(tmp_path)
    assert said.index("rank 1") < said.index("OK") < said.index("rank 0") < said.index("RuntimeError: closed")


def test_examples_are_those_told_or_those_counted_and_never_a_guess():
    assert command.global_batch(parts(), Options(batch=16), 2) == (32, "BATCH")
    assert command.global_batch(parts(), Options(), 2) == (16, "Watch")
    assert command.global_batch([*parts()[:1], *parts(images=None)[1:]], Options(), 2) == (None, None)


SECRET = [
    ["env", "WANDB_API_KEY=SEKRET1", "python", "train.py"],
    ["python", "train.py", "token=SEKRET1 SEKRET2"],
    ["python", "train.py", "+wandb.key=SEKRET1"],
    ["python", "train.py", "~hub.auth=SEKRET1", "++a.passwd: SEKRET2"],
    ["curl", "--header", "Authorization: Bearer SEKRET1"],
    ["curl", "-H", "Authorization:", "Bearer", "SEKRET1"],
    ["curl", "--header=X-Api-Key: SEKRET1"],
    ["bash", "-c", "WANDB_API_KEY=SEKRET1 python train.py --token SEKRET2 && echo 'SECRET=SEKRET3 SEKRET4'"],
    ["bash", "-lc", 'export HF_TOKEN="SEKRET1 SEKRET2"; python train.py'],
    ["python", "-c", "import wandb; wandb.login(key='SEKRET1'); os.environ['MY_SECRET'] = 'SEKRET2'"],
    ["python", "-c", "os.putenv('API_KEY', 'SEKRET1')"],
    ["python", "train.py", '{"api_key": "SEKRET1", "password": "SEKRET2 SEKRET3"}'],
    ["python", "train.py", "--password", "SEKRET1 SEKRET2", "--credentials=SEKRET3 SEKRET4"],
    ["wandb", "login", "deadbeef" * 5, "hf_SEKRET1abcdef"],
    ["python", "train.py", "--data=https://SEKRET1:SEKRET2@host/x?sig=SEKRET3"],
    ["python", "train.py", "s3://KEY:SEKRET1/SEKRET2@bucket/x", "/home/SEKRET1/x.py", "~SEKRET1/x", "../../SEKRET1/x"],
    ["bash", "-c", "python /home/SEKRET1/train.py --out=/home/SEKRET2/runs ~SEKRET3/y"],
    ["torchrun", "/home/SEKRET1/thesis/train.py", "--api-key", "SEKRET2", "--token=SEKRET3"],
]


@pytest.mark.parametrize("words", SECRET, ids=lambda words: " ".join(words)[:30])
def test_a_secret_of_any_form_is_not_recorded(words):
    said = command.public(words)
    assert "SEKRET" not in said and "deadbeef" not in said and words[0] in said
    assert ("train.py" in said) == ("train.py" in " ".join(words))


def test_what_is_no_secret_is_recorded():
    words = shlex.split("torchrun --nproc-per-node=2 train.py --lr=0.1 model.width=64 --name 'run: 1' 'a=b c' -c x=1")
    assert command.public(words) == shlex.join(words)
    long = command.public(["python", "train.py", "x" * 25_000, "\udcff"])
    assert long.startswith("python train.py xxx") and len(long) <= 20_000
    words = ["bash", "-c", f"{'true; ' * 100} python train.py"]  # a long line of the shell names no script
    assert command.script_of(words) is None and command.name_of(words) == "bash"


def test_the_words_of_a_command_in_one_option():
    class Given:
        cmd, rest = "torchrun 'a b.py'", []

    assert words_of(Given) == ["torchrun", "a b.py"]
