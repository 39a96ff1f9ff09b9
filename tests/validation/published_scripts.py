"""Published training scripts under a Watch.

    python -m tests.validation.published_scripts FOLDER [NAMES] [--json FILE]

FOLDER holds clones of other projects, as `git clone https://github.com/<owner>/<name>` leaves them:

    pytorch/examples, horovod/horovod, huggingface/pytorch-image-models

Each script is run with two ranks on the CPU: as it is, but for the device, and with one mistake planted. A change is a
pattern that must be found once in the script, and what takes its place. Their data sets are made of noise.
"""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.measure.environment import collect_machine
from tests.watched.runner import hear

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
IMPORTED = r"\A((?:#.*\n)*(?:\"\"\"[\s\S]*?\"\"\"\n)?)", r"\1from bench.observe import Watch\n"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = (sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2",
              "--disable-cache", sys.executable)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """One script. folder: below FOLDER, where it is started. device: changes for two ranks on a CPU. watch: the three
    lines of a Watch. mistakes: name -> the change that makes it."""

    name: str
    folder: str
    file: str
    launcher: tuple[str, ...]
    arguments: tuple[str, ...]
    watch: tuple[tuple[str, str], ...]
    device: tuple[tuple[str, str], ...] = ()
    mistakes: dict[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


IMAGENET = Published(
    "PyTorch's ImageNet example",
    "examples/imagenet",
    "main.py",
    TORCHRUN,
    ("{images}", "--arch=resnet18", "--epochs=2", "--batch-size=8", "--workers=1", "--dist-url=env://",
     "--dist-backend=gloo", "--world-size=2"),
    (
        (r"(    for epoch in range\(args\.start_epoch, .*\n)", r"    watch = Watch(model, optimizer)\n\1"),
        (r"\n( +)train\(train_loader, model", r"\n\1train(watch(train_loader), model"),
        (r"(\n +\}, is_best\)\n)", r"\1    watch.report()\n"),
    ),
    (),
)  # fmt: skip
SCRIPTS = (
    Published(
        "PyTorch's DDP tutorial",
        "examples/distributed/ddp-tutorial-series",
        "multigpu_torchrun.py",
        TORCHRUN,
        ("3", "2"),
        (
            (r"(self\.model = DDP\(.*\)\n)", r"\1        self.watch = Watch(self.model, self.optimizer)\n"),
            (r"in self\.train_data:", "in self.watch(self.train_data):"),
            (r"(trainer\.train\(.*\)\n)", r"\1    trainer.watch.report()\n"),
        ),
        (
            (r"torch\.cuda\.set_device\(.*\)", "pass"),
            (r'"nccl"', '"gloo"'),
            (r"(source = source)\.to\(self\.gpu_id\)", r"\1"),
            (r"(targets = targets)\.to\(self\.gpu_id\)", r"\1"),
            (r"model\.to\(self\.gpu_id\)", "model"),
            (r", device_ids=\[self\.gpu_id\]", ""),
        ),
        {"no-reshuffle": ((r"(?m)^.*\.sampler\.set_epoch\(epoch\)\n", ""),)},
    ),
    IMAGENET,  # which wraps its model on GPUs alone: on CPUs its ranks train apart
    replace(
        IMAGENET,
        name="PyTorch's ImageNet example, with DDP on the CPU, too",
        device=(
            (r"(    # define loss function)", r"    model = torch.nn.parallel.DistributedDataParallel(model)\n\1"),
        ),
        mistakes={"whole-data": (
            (r"(?m)^( +)train_sampler = torch\.utils\.data\.distributed.*$", r"\1train_sampler = None"),
            (r"if args\.distributed:(\n +train_sampler\.set_epoch)", r"if train_sampler:\1"),
        )},
    ),
    Published(
        "Horovod's MNIST example",
        "horovod/examples/pytorch",
        "pytorch_mnist.py",
        HOROVODRUN,
        ("--no-cuda", "--epochs=2", "--batch-size=16", "--data-dir={mnist}"),
        (
            (r"(    for epoch in range\(1, args\.epochs)", r"    watch = Watch(model, optimizer)\n\1"),
            (r"(def train_epoch[\s\S]*?enumerate\()train_loader\)", r"\1watch(train_loader))"),
            (r"(        test\(\)\n)", r"\1    watch.report()\n"),
        ),
        (),
        {"gradient-sum": ((r"else hvd\.Average", "else hvd.Sum"),)},
    ),
    Published(
        "timm's train.py",
        "pytorch-image-models",
        "train.py",
        TORCHRUN,
        ("--data-dir={images}", "--model=resnet10t", "--device=cpu", "--epochs=2", "-b=8", "--img-size=32",
         "--num-classes=2", "--workers=1", "--no-prefetcher", "--output={out}", "--model-ema"),
        (
            (r"(    results = \[\]\n)", r"    watch = Watch(model, optimizer)\n\1"),
            (r"(train_metrics = train_one_epoch\(\n +epoch,\n +model,\n +)loader_train,", r"\1watch(loader_train),"),
            (r"(\n    except KeyboardInterrupt:)", r"\n        watch.report()\1"),
        ),
        ((r"device_ids=\[device\], ", ""),),
        {"no-reshuffle": ((r"(?m)^ +_set_loader_epoch\(loader_train, epoch\)\n", ""),)},
    ),
)  # fmt: skip


def main() -> None:
    """Run those asked for; print what their Watch says."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        places = make_data(Path(folder))
        for script in SCRIPTS:
            if not arguments.names or any(name in script.name for name in arguments.names):
                for how, changes in {"": (), **script.mistakes}.items():
                    said = report(script, arguments.clones.resolve(), places, changes)
                    print(f"\n{script.name}, {f'with {how}' if how else 'as it is'}\n{said}", flush=True)
                    rows.append(row(script, arguments.clones, how, said))
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": collect_machine(), "rows": rows}, indent=1) + "\n")


def row(script: Published, clones: Path, mistake: str, said: str) -> dict:
    """One line of the table. mistake: that was planted."""
    command = ["git", "-C", str(clones / script.folder), "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    heard = hear(said)
    return {"script": script.name, "file": f"{script.folder}/{script.file}", "commit": commit, "planted": mistake,
            "found": sorted(heard.found), "asked": sorted(heard.asked)}  # fmt: skip


def report(script: Published, clones: Path, places: dict, changes: tuple) -> str:
    """Run one variant; returns its Watch's report."""
    text = (clones / script.folder / script.file).read_text()
    for pattern, replacement in (*changes, *script.device, *script.watch, IMPORTED):
        text, count = re.subn(pattern, replacement, text)
        if count != 1:
            sys.exit(f"{script.name}: {pattern!r} is there {count} times: the script has changed")
    with tempfile.TemporaryDirectory() as out:
        copy = Path(out) / script.file
        copy.write_text(text)
        arguments = [argument.format(out=out, **places) for argument in script.arguments]
        path = os.pathsep.join([str(ROOT), str(clones / script.folder)])
        environment = {**os.environ, "PYTHONPATH": path, "HOME": out, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([*script.launcher, str(copy), *arguments], cwd=out, env=environment, text=True,
                              capture_output=True, timeout=LIMIT_S)  # fmt: skip
    said = re.sub(r"(?m)^\[?\d*\]?<stdout>:", "", done.stdout)
    begins = re.search(r"(?m)^.*known mistakes found", said)
    if done.returncode or not begins:
        sys.exit(f"{script.name}: exit code {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return re.match(r"(?s).*?\n(looked for|not observed)[^\n]*(\nnot observed[^\n]*)?", said[begins.start() :])[0]


def make_data(folder: Path) -> dict[str, Path]:
    """MNIST's files with 160 and 32 images, and a folder of 48 and 16 photographs in two classes; all are noise."""
    from PIL import Image

    rng = np.random.default_rng(0)
    raw = folder / "mnist" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 160), ("t10k", 32)):
        pixels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        for kind, array in (("images-idx3", pixels), ("labels-idx1", np.arange(count, dtype=np.uint8) % 10)):
            head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + array.tobytes())
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + array.tobytes()))
    for part, count in (("train", 24), ("val", 8)):
        for label in ("a", "b"):
            place = folder / "images" / part / label
            place.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(place / f"{number}.jpg")
    return {"mnist": folder / "mnist", "images": folder / "images"}


if __name__ == "__main__":
    main()
