"""`bench time`: what it refuses, in one line, and how it runs a command. What it measures has tests/multiprocess."""

import json
import sys

import pytest

from bench import __main__ as cli
from bench.commands.timed import limit_of, words_of
from bench.errors import RunFailed, UserError
from bench.foreign import command
from bench.foreign.command import Asked
from bench.process.guard import alive


@pytest.mark.parametrize(("words", "said"), [
    ((), "which command?"),
    (("--cmd", "a 'b"), "CMD="),
    (("--cmd", "true", "--", "true"), "given twice"),
    (("--steps", "x", "--", "true"), "STEPS=x"),
    (("--warmup", "0", "--", "true"), "WARMUP=0"),
    (("--batch", "-1", "--", "true"), "BATCH=-1"),
    (("--limit", "nan", "--", "true"), "LIMIT=nan"),
    (("--", "no-such-command"), "no-such-command is no command here"),
    (("--", "train.py"), "begin with python"),
])  # fmt: skip
def test_bad_input_is_one_line(words, said, tmp_path, capsys):
    assert cli.main(["time", "--out", str(tmp_path / "out"), *words]) == 2
    complaint = capsys.readouterr().err
    assert said in complaint and complaint.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("script", "limit_s", "error", "said"), [
    ("raise SystemExit(7)", None, RunFailed, "exit code 7: nothing is recorded"),
    ("pass", None, UserError, "no process of it took a step"),
    ("import time; time.sleep(600)", 1.0, RunFailed, "has not ended after 1 s"),
])  # fmt: skip
def test_a_command_that_leaves_no_times_leaves_no_record(script, limit_s, error, said, tmp_path):
    with pytest.raises(error, match=said):
        command.run([sys.executable, "-c", script], Asked(), tmp_path, limit_s=limit_s)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_has_cleared_its_environment_is_ended_too(tmp_path):
    """It is not found by its mark."""
    pid_file = tmp_path / "pid"
    code = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(RunFailed, match="has not ended after 3 s"):
        command.run(["env", "-i", sys.executable, "-c", code], Asked(), tmp_path / "out", limit_s=3.0)
    assert not alive(int(pid_file.read_text()))


def test_the_commands_own_sitecustomize_and_path_are_kept(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n")
    (parts := tmp_path / "parts").mkdir()
    variables = command.environment(tmp_path, parts, Asked(steps=3), "mark")
    assert json.loads(variables["BENCH_TIME"])["steps"] == 3
    script = "import sys; print(theirs, [p for p in sys.path if 'site' in p and 'bench' in p], 'torch' in sys.modules)"
    variables["PYTHONPATH"] += f":{tmp_path}"
    code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {script!r}]).returncode)"
    assert command.supervise([sys.executable, "-c", code], variables, "mark", lambda: False, 60) == 0


def parts(**changes) -> list[dict]:
    """What two ranks leave, as far as it is looked at."""
    end = {"at": 1.0, "failed": False, "words": "after 30 steps"}
    return [{"rank": r, "world_size": 2, "steps_taken": 30, "step_number": [21, 22], "images": 8, "end": end} | changes
            for r in range(2)]  # fmt: skip


@pytest.mark.parametrize(("left", "said"), [
    ([], "no process of it took a step"),
    (parts()[:1], "of 2 ranks only 0 left times"),
    (parts(rank=0), "2 processes trained and 2 say that they are rank 0"),
    (parts(step_number=[]), "took 30 steps, and the first 20 are the warm-up"),
    (parts(end={"at": 1.0, "failed": True, "words": "OSError: x, after 3 steps"}), r"rank 0 has failed \(OSError: x, "),
])  # fmt: skip
def test_parts_that_are_no_training_are_refused(left, said, tmp_path):
    for number, part in enumerate(left):
        (tmp_path / f"part-{number}.json").write_text(json.dumps(part))
    with pytest.raises(UserError, match=said):
        command.read_parts(tmp_path, "torchrun", Asked())


def test_of_a_command_that_fails_the_rank_is_named_that_ended_first(tmp_path):
    ends = [{"at": 2.0, "failed": True, "words": "RuntimeError: closed, after 7 steps"},
            {"at": 1.0, "failed": False, "words": "after 7 steps"}]  # fmt: skip
    assert command.ended_in(tmp_path) == ""
    for rank, end in enumerate(ends):
        (tmp_path / f"part-{rank}-1.json").write_text(json.dumps({"rank": rank, "end": end}))
    said = "rank 1 (after 7 steps), then rank 0 (RuntimeError: closed, after 7 steps)"
    assert command.ended_in(tmp_path).endswith(said)


def test_examples_are_those_told_or_those_counted_and_never_a_guess():
    assert command.examples_of(parts(), Asked(batch=16), 2) == (32, "BATCH")
    assert command.examples_of(parts(), Asked(), 2) == (16, "Watch")
    assert command.examples_of([*parts()[:1], *parts(images=None)[1:]], Asked(), 2) == (None, None)


def test_a_record_says_nothing_of_who_ran_it():
    words = ["torchrun", "/home/jane/thesis/train.py", "--data=/home/jane/images", "--api-key", "abc", "--token=def"]
    said = command.public(words)
    assert not any(word in said for word in ("jane", "abc", "def")) and "train.py" in said


def test_numbers_and_words_of_the_command_line():
    class Given:
        cmd, rest = "torchrun 'a b.py'", []

    assert words_of(Given) == ["torchrun", "a b.py"] and limit_of("2.5") == 2.5 and limit_of(None) is None
