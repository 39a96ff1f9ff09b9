"""tutorials/scripts, one script in four forms, and tutorials/train.py, a script to copy. They use nothing of bench."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from bench.foreign.record import find
from tests import runs
from tests.forked_programs import copied_chapters
from tests.runs import ROOT, needs_horovod

TEMPLATE = ROOT / "tutorials" / "train.py"
CPU = torch.device("cpu")

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = ("-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache")
LAUNCHERS = {"single.py": (), "dp.py": (), "ddp.py": TORCHRUN, "hvd.py": (*HOROVODRUN, "python")}


PLACE = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def run(folder, *words) -> subprocess.CompletedProcess:
    command, env = [sys.executable, *map(str, words)], runs.environment(PLACE)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, env=env)


def trained(folder, name: str) -> dict:
    """Run a script in a folder; the weights that it has saved. It said the accuracy of all validation images, once."""
    shutil.copy(ROOT / "tutorials" / "scripts" / name, folder)
    done = run(folder, *(sys.executable if word == "python" else word for word in LAUNCHERS[name]), name)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"epoch (\d): top-1 (0\.\d+) of (\d+) images", done.stdout)
    assert [(epoch, images) for epoch, _, images in said] == [(str(number), "261") for number in (1, 2, 3)]
    assert float(said[-1][1]) > 0.8
    return torch.load(folder / "model.pt")


@pytest.mark.parametrize(("one", "other"), [("single.py", "dp.py"),
                                            pytest.param("ddp.py", "hvd.py", marks=needs_horovod)])  # fmt: skip
def test_two_forms_end_with_the_same_weights_but_for_rounding(one, other, tmp_path):
    with copied_chapters():  # which has scikit-learn
        first, second = trained(tmp_path, one), trained(tmp_path, other)
    assert list(first) == list(second) == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert all(torch.allclose(first[key], second[key], atol=1e-4) for key in first)


# The template, in which the second checkpoint's writer is killed between its write and its rename.
KILLED = """
import os, runpy, signal, sys
replace, calls = os.replace, []

def replace_once(*arguments):
    calls.append(arguments)
    replace(*arguments) if len(calls) == 1 else os.kill(os.getpid(), signal.SIGKILL)

os.replace = replace_once
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def template():
    spec = importlib.util.spec_from_file_location("template", TEMPLATE)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def training(folder, *words, script=(TEMPLATE,)) -> tuple:
    return *TORCHRUN, *script, "--cpu", "--epochs=3", "--precision=fp32", f"--checkpoint={folder}/checkpoint.pt", *words


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.wide)])
def test_a_killed_template_keeps_its_checkpoint_and_resumes_bit_for_bit(workers, tmp_path, template, copied_python):
    """As it is under `bench time`, which finds no mistake in it and changes nothing."""
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    loaders = f"--workers={workers}"
    words = (sys.executable, *training(tmp_path / "straight", loaders))
    straight = runs.bench("time", "--out", tmp_path / "out", "--warmup=3", "--", *words, env=PLACE).ok()
    (record,), refused = find(tmp_path / "out")
    assert refused == [] and record.findings == [] and record.world_size == 2
    assert {"no-exchange", "no-reshuffle", "same-random", "unsynced-accumulation"}.isdisjoint(record["unheard"])

    (wrapper := tmp_path / "killed.py").write_text(KILLED)
    killed = run(tmp_path, *training(tmp_path / "killed", loaders, script=(wrapper, TEMPLATE)))
    assert killed.returncode != 0 and epochs(killed) == epochs(straight)[:2]
    assert torch.load(tmp_path / "killed" / "checkpoint.pt")["epoch"] == 1  # complete, although a newer one was written
    resumed = run(tmp_path, *training(tmp_path / "killed", loaders, "--resume"))
    assert resumed.returncode == 0, resumed.stderr
    assert epochs(resumed) == epochs(straight)[1:]
    expected, found = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("straight", "killed"))
    assert plain(found) == plain(expected)
    first, second = expected["generators"]
    assert not torch.equal(first["torch"], second["torch"]) and first["random"] != second["random"]

    # One process on all validation images has the accuracy and loss that two ranks printed.
    model = template.make_model()
    model.load_state_dict(expected["model"])
    loader = DataLoader(template.Digits(517, 2, augment=False), 64)
    loss, right, count = template.evaluate(model, loader, torch.float32, CPU).tolist()
    said = re.search(r"validation loss (\S+), accuracy (\S+) of (\d+) images", epochs(straight)[-1])
    assert float(said[1]) == pytest.approx(loss / count, abs=2e-6)
    assert said.groups()[1:] == (f"{right / count:.4f}", "517") and right / count > 0.9


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


def epochs(done) -> list[str]:
    return [line for line in done.stdout.splitlines() if line.startswith("epoch ")]


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-6), ("bf16", 5e-3), ("fp16", 5e-3)])
def test_the_templates_accumulated_steps_are_those_of_the_joined_batches(precision, tolerance, template, group):
    """Ten batches, the last one smaller, in windows of four: the last window has two. Gradients are clipped."""
    images, labels = torch.randn(76, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(76) % 10
    batches = list(zip(images.split(8), labels.split(8), strict=True))
    networks = []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    (ddp, plain), exchanges = networks, []
    ddp = DistributedDataParallel(ddp)
    ddp.register_comm_hook(exchanges, counted)
    optimizer = torch.optim.SGD(ddp.parameters(), 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    totals = template.train_epoch(ddp, batches, optimizer, scheduler, scaler, 4, dtype, CPU)

    optimizer, norms = torch.optim.SGD(plain.parameters(), 1.0), []
    for x, y in zip(images.split(32), labels.split(32), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(plain.parameters(), 1.0)))
        optimizer.step()
    assert min(norms) > 1  # clipping changes each step
    assert len(exchanges) == 3 and totals[1] == 76
    for ours, theirs in zip(ddp.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=tolerance)


def counted(exchanges: list, bucket):
    exchanges.append(bucket.index())
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda future: future.value()[0])


@pytest.mark.parametrize(("variables", "named"), [({}, "LOCAL_RANK"), ({"LOCAL_RANK": "1"}, "LOCAL_RANK=1.* 1 GPU")])
def test_the_template_never_falls_back_to_the_cpu(variables, named, template, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=named):
        template.start(cpu=False)
    assert not dist.is_initialized()
