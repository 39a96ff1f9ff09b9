"""Commands from a notebook: live output, errors that fail, limits that hold, and nothing left."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from bench.course.nodes import run_on_nodes
from bench.course.ranks import MOST_LINES
from bench.course.shell import bench, shell
from bench.errors import RunFailed
from tests.notebooks import sleeping
from tests.runs import ROOT, descendants, refuses


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary folders are made; it must be empty at the end."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_run_returns_its_record_and_prints_the_line_for_a_terminal(temporary, capsys, copied_python):
    record = bench(MODE="single", DEVICE="cpu", MODEL="resnet18", IMAGE_SIZE=8, BATCH=6, WARMUP=1, STEPS=2)
    assert record.ok and record.config.mode == "single" and record.config.timed_steps == 2
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("$ make bench BASELINES=0 MODE=single DEVICE=cpu") and rest
    assert str(temporary) not in "".join(rest), "its folder is gone when the cell has ended"
    assert descendants(os.getpid()) == []
    if shutil.which("make"):
        line = [*shlex.split(first.removeprefix("$ ")), "-n", "VENV=none", f"PYTHON={sys.executable}"]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and '--mode="$MODE"' in done.stdout, done.stderr


def test_a_command_in_a_cluster_is_the_line_for_a_terminal_too(temporary, capsys):
    with refuses("NODES=1"):
        bench("compare", cluster={"NODES": 1, "LINK": "10mbit"}, MODES="ddp,horovod", GPUS=2)
    (line,) = capsys.readouterr().out.splitlines()[:1]
    assert line == '$ make cluster NODES=1 LINK=10mbit CMD="make compare MODES=ddp,horovod GPUS=2"'


@pytest.mark.parametrize(("arguments", "variables", "value"), [
    ((), {"MODE": "dpp"}, "MODE=dpp"), ((), {"mode": "ddp"}, "MODE"), (("doctor",), {}, "'doctor'"),
])  # fmt: skip
def test_a_call_that_cannot_work(temporary, arguments, variables, value):
    with refuses(value):
        bench(*arguments, **variables)


DEVICES = [  # CUDA_VISIBLE_DEVICES, variables, what is added
    ("0", {"MODE": "single"}, {"DEVICE": "cpu"}),  # two devices elsewhere in the notebook are CPU workers, too
    ("0", {"GPUS": 2}, {"DEVICE": "cpu"}),
    ("0", {"GPUS": 2, "SHARE_GPU": 1}, {}),
    ("0", {"DEVICE": "cuda"}, {}),
    ("0,1", {"GPUS": 2}, {}),
    ("0,1", {"GPUS": 4}, {"DEVICE": "cpu"}),
    ("", {"GPUS": 2}, {}),  # none is visible: the command says so itself
]


def test_one_gpu_is_not_two_devices(nvml_stub):
    code = f"""
import contextlib, io
from bench.course.shell import one_kind_of_device
asked = iter({[variables for _, variables, _ in DEVICES]})
def ask():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        return one_kind_of_device(next(asked)), bool(said.getvalue())"""
    found = nvml_stub.each(code, [{"visible": visible} for visible, _, _ in DEVICES])
    assert found == [[added, bool(added)] for _, _, added in DEVICES]


def test_lines_come_as_they_are_printed(capfd):
    """Too many are cut. A command that fails, is late, or that there is not, fails its cell, and leaves nobody."""
    shell("python -c 'import sys; print(sys.executable); print(\"to stderr\", file=sys.stderr)'")
    printed = capfd.readouterr().out.splitlines()
    assert printed[0].startswith("$ python -c ") and printed[1:] == [sys.executable, "to stderr"]
    shell("seq 2000")
    printed = capfd.readouterr().out.splitlines()
    assert len(printed) == 1 + MOST_LINES + 1 and str(MOST_LINES) in printed[-1]
    started = time.monotonic()  # a command is over when it has ended itself, not all that it has left
    shell("sh -c 'echo a; (setsid sleep 163; echo late) & sleep 163 & echo b'")
    assert time.monotonic() - started < 100
    assert capfd.readouterr().out.splitlines()[1:] == ["a", "b"]
    with refuses("1 s", "timeout=", error=RunFailed):
        shell("sh -c 'setsid sleep 163 & wait'", timeout=1)
    assert not sleeping("163")
    with refuses("code 3", "the reason", error=RunFailed):
        shell("sh -c 'echo the reason; exit 3'")
    with refuses("no-such-program", error=RunFailed):
        shell("no-such-program")


def sum_over_nodes(factor: int) -> tuple[str, int]:
    import torch
    import torch.distributed as dist

    total = torch.tensor(factor * (dist.get_rank() + 1))
    dist.all_reduce(total)
    return socket.gethostname(), total.item()


def fail_on_one_node() -> None:
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("no more")
    dist.barrier()


def test_ranks_on_nodes(cluster, temporary, capsys, copied_python):
    """One on each node, results by rank; a failure ends the others, and nothing is left."""
    assert run_on_nodes(sum_over_nodes, 2, 10, link="100mbit") == [("node1", 30), ("node2", 30)]
    with refuses("code 1", error=RunFailed):
        run_on_nodes(fail_on_one_node, 2, link="100mbit")
    assert "ValueError: no more" in capsys.readouterr().out
    with refuses("LINK=fast"):
        run_on_nodes(sum_over_nodes, 2, 10, link="fast")
    assert descendants(os.getpid()) == []
