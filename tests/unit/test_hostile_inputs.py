"""Hostile and clumsy inputs over all commands, by kind: each is answered in a line within its limit, nothing that
was there is lost, and nothing is left running. In this process, so nothing that starts ranks: tests/multiprocess."""

import json
import os
import shlex
import signal

import psutil
import pytest
import torch  # noqa: F401  before the limit: it may take as long
import torchvision  # noqa: F401

from bench import __main__ as cli

LIMIT_S = 60  # each takes a fraction of a second, where the machine is not busy
ODD = "\x1b]0;owned\x07a\nb\udcff"  # a title of the terminal, a line of its own, a byte that is no UTF-8
NO_FILES = ("./pipe", "./zero", "./loop", "./folder", "./gone", "./binary", "./empty", "./deep")

# What a command reads as a file: {} is one of NO_FILES.
READERS = (
    "run --gpus 2 --device cpu --hosts {}",
    "infer images --resume {} --device cpu",
    "install imagenet --out out --train {}",
    "install imagenet --out out --val tar --labels {}",
    "predict step {} --devices 2 --link 1gbit,10us",
    "cluster emulate --compute {} --device cpu",
    "mistake check {}",
    "diff {} folder",
    "predict mode --records {} --device cpu",
    "status {} --once 1",
    "course grade {}",
    "course release --sets {}",
    "report {}",
)
# What a folder of records may hold as a record.json.
RECORDS = {
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "folder": os.mkdir,
    "null": "null",
    "list": "[[]]",
    "brackets": "[" * 100_000,
    "no number": '{"schema_version": 7, "x": NaN}',
    "a large number": '{"schema_version": 7, "x": ' + "9" * 5_000 + "}",
    "version": '{"schema_version": {}, "kind": []}',
    "half a letter": '{"schema_version": 7, "run_id": "\\ud800"}',
    "binary": b"\xff\xfe\0{}",
}
OF_RECORDS = (
    "report",
    "report --format=md",
    "report --format=plots",
    "report --by=machine",
    "report --by=student",
    "mistake check",
    "predict mode --device cpu --records",
    "diff records",
)
NAMED = (
    ["report"], ["report", "--format"], ["report", "--by"], ["report", "--by=machine"], ["report", "--format=plots"],
    ["mistake", "check"], ["mistake", "show"], ["status"], ["diff", "folder"], ["course", "grade"],
    ["install", "workload"], ["predict", "step"], ["help"], ["site", "slides", "--name"], ["notebooks", "--name"],
    ["course", "release", "--name"], ["course", "export", "--platform"], ["course", "check", "--sets"],
    ["time", "--cmd"], ["time", "--label"], ["time", "--limit"], ["cluster", "--link"], ["network", "--backends"],
    ["network", "--sizes"], ["doctor", "gpu", "--part"], ["doctor", "gpu", "--budget"],
    ["predict", "memory", "--memory-gib"], ["install", "horovod", "--jobs"], ["infer", "images", "--resume"],
    ["install", "imagenet", "--out", "out", "--train"], ["verify", "--modes"], ["compare", "--modes"],
    ["predict", "mode", "--link"], ["cluster", "emulate", "--link"], ["mistake"], ["predict"], ["course"], ["install"],
    [],
)  # fmt: skip
OPTIONS = ("model", "data", "out", "resume", "pretrained", "hosts", "remote", "freeze", "schedule", "precision", "gpus",
           "batch", "lr", "dist-url", "copy-to", "snapshots", "inject", "lr-warmup", "val-labels", "keep")  # fmt: skip
# Where nothing can be written: below a file.
WRITERS = (
    "run --mode single --device cpu --out binary/x",
    "time --out binary/x -- true",
    "report records --by=machine --out binary/x",
    "report records --out binary/x.csv",
    "report records --format=csv --out folder",
    "report records --out binary/x.html",
    "report records --out folder",
    "infer images --resume binary --out binary/x.csv",
    "install workload binary/x.py",
    "install workload folder",
    "install imagenet --train tar --out binary/x",
    "predict step records --devices 2 --link 1gbit,10us --out binary/x",
    "course export --platform gradescope --sets binary --out binary/x",
)
WITHOUT_EFFECT = (
    "--schedule constant:3", "--schedule cosine:3:0.5", "--allow-pickle 1",
    "--pretrained torchvision --allow-pickle 1", "--optimizer adam --momentum 0.5", "--data digits --decode auto",
    "--data synthetic --decode cuda",
)  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what is no file, and some that are; the working folder."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("/dev/zero", "zero")
    os.symlink("loop", "loop")
    for name in ("folder", "images", "records"):
        os.mkdir(name)
    contents = {
        "binary": b"\0\xff\xfe\x1b]0;owned\x07\n" * 9,
        "empty": b"",
        "deep": b"[" * 100_000,
        "tar": bytes(10_240),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "images" / "a.png").write_bytes(b"x")
    return tmp_path


def files_below(folder) -> dict:
    """What is there, and what is in it."""
    found = {}
    for path in folder.rglob("*"):
        plain = path.is_file() and not path.is_symlink()
        found[path] = path.read_bytes() if plain else os.readlink(path) if path.is_symlink() else path.lstat().st_mode
    return found


def answered(words: list[str], folder, capsys, codes=(1, 2)) -> str:
    """What a command says, after the checks that are the same for all: a line, printable, in time, and nothing lost."""
    before, children = files_below(folder), psutil.Process().children(recursive=True)

    def over(*_):
        raise TimeoutError(f"{words} takes more than {LIMIT_S} s")

    handler = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT_S)
    try:
        code = cli.main([*words])
    except SystemExit as left:
        code = left.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
    said = capsys.readouterr()
    assert code in codes, (code, said)
    assert "Traceback" not in said.err and "TimeoutError" not in said.err
    for line in (said.err + said.out).splitlines():
        assert line.isprintable(), repr(line)
    assert said.err.strip() or said.out.strip()
    after = files_below(folder)
    assert {path: after.get(path) for path in before} == before
    assert psutil.Process().children(recursive=True) == children
    return said.err


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("line", READERS)
def test_what_is_no_file_of_this_kind(line, name, place, capsys):
    said = answered(shlex.split(line.format(name)), place, capsys)
    assert said.count("\n") <= 3


@pytest.mark.parametrize("kind", RECORDS)
@pytest.mark.parametrize("line", OF_RECORDS)
def test_a_record_that_is_none(line, kind, place, capsys):
    folder = place / "records" / "ada" / "run"
    folder.mkdir(parents=True)
    content = RECORDS[kind]
    if callable(content):
        content(folder / "record.json")
    else:
        (folder / "record.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    answered([*shlex.split(line), "records"], place, capsys)


@pytest.mark.parametrize("words", NAMED, ids=" ".join)
def test_a_name_that_no_terminal_should_see(words, place, capsys):
    answered([*words, ODD], place, capsys)


@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_no_record_can_hold(option, length, place, capsys):
    answered(["run", "--device", "cpu", f"--{option}={ODD * length}"], place, capsys)


@pytest.mark.parametrize("line", WRITERS)
def test_a_place_where_nothing_can_be_written(line, place, capsys):
    answered(shlex.split(line), place, capsys)
    assert not (place / "binary").is_dir()


@pytest.mark.parametrize("words", WITHOUT_EFFECT)
def test_an_option_that_would_change_nothing(words, place, capsys):
    said = answered(["run", "--device", "cpu", "--mode", "single", *shlex.split(words)], place, capsys, codes=(2,))
    assert said.count("\n") == 1


@pytest.mark.parametrize("config", ["{}", "null", "[]", '{"model": 7}', '{"data": []}', "[" * 100_000, "\xff"])
@pytest.mark.parametrize("status", [b"", b"\x01" * 88, b"\xff" * 88, b"x" * 9_999, None])
def test_a_run_to_be_watched_that_is_none(config, status, place, capsys):
    (place / "folder" / "config.json").write_bytes(config.encode("latin-1"))
    if status is None:
        os.mkfifo(place / "folder" / ".rank0.status")
    else:
        (place / "folder" / ".rank0.status").write_bytes(status)
    assert "config of a run" in answered(["status", "folder", "--once", "1"], place, capsys, codes=(2,))


NOTEBOOKS = {
    "pipe": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": os.mkdir,
    "brackets": b"[" * 100_000,
    "null": b"null",
    "cells": b'{"cells": {"a": 1}}',
    "a number": b'{"cells": [7]}',
    "source": b'{"cells": [{"cell_type": "code", "source": {"a": 1}}]}',
    "metadata": b'{"cells": [{"cell_type": [], "source": [], "metadata": [], "id": {}}]}',
}


@pytest.mark.parametrize("kind", NOTEBOOKS)
def test_a_notebook_that_is_none(kind, place):
    """Read as `bench course grade` reads it; what it makes of that has tests/exercises."""
    from bench.course.exercises import grade

    path = place / "folder" / "ada" / "00_sample.ipynb"
    path.parent.mkdir()
    content = NOTEBOOKS[kind]
    content(path) if callable(content) else path.write_bytes(content)
    found, said = grade.find(place / "folder", ["00_sample"]) if kind != "zero" else ([], [])
    try:
        cells = [cell for one in found for cell in grade.cells_of(one.path)]
    except grade.Unreadable as why:
        said = [str(why)]
    else:
        assert kind in ("zero", "metadata", "source") and all(isinstance(cell["source"], str) for cell in cells)
    assert json.dumps(said)


@pytest.mark.parametrize("name", ['a"""b.py', "\\N{x}.py", "a'b.py", "{x}%s.py", "\\u12.py", "tab\tand\x1b.py"])
def test_a_file_of_ones_own_runs_whatever_it_is_called(name, place, capsys):
    answered(["install", "workload", name], place, capsys, codes=(0,))
    compile((place / name).read_text(), name, "exec")
