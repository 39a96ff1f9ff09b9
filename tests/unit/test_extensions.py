"""The promise of CONTRIBUTING: a mode, a mistake, a study, a picture, an engine, a workload, a data set, an option and
a command are each one file or folder and one line. A copy of the project gets one of each, and is used like it.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from bench.record import SCHEMA_VERSION, packed
from bench.record.read import text_of
from tests.runs import PATIENT, ROOT, TINY, flags

pytestmark = pytest.mark.slow

# Every file that is added, and every line: file -> (the text before which the line goes, the line).
FILES = {
    "modes/sharded.py": '''
"""As a mode with sharded weights is: no forward pass without every rank."""
import torch.distributed as dist

from bench.modes import ddp


class Mode(ddp.Mode):
    """DDP whose model waits for the others in every forward pass."""

    replicated = False
    collective_forward = True

    def wrap_model(self, model):
        model.register_forward_pre_hook(lambda *_: self.wait_for_all())
        return super().wrap_model(model)

    def wait_for_all(self):
        with self.span("communication", "wait for all"):
            dist.barrier()
''',
    "launch/engines/elastic.py": '''
"""torchrun, with a sign of its own."""
from bench.launch.engines import torchrun


def command(config, run_dir, placement):
    """As torchrun's."""
    argv, variables = torchrun.command(config, run_dir, placement)
    return argv, {**variables, "TORCHELASTIC_ENABLE_FILE_TIMER": "0"}
''',
    "mistakes/one_example.py": '''
"""A script that draws one example over and over."""
from bench.mistakes.base import EPOCHS, Lab, mistake
from bench.mistakes.measures import Measure, of_observed


def order(script, num_images, seed, epoch):
    """Always the first."""
    return 0 * script.right.order(num_images, seed, epoch)


MEASURE = Measure("examples never seen", of_observed("data", "never_seen"), "up", ".0f")


@mistake(
    "one example, over and over", "nothing else is learnt", "shuffle", needs="data epochs",
    overrides={"order": order}, requires=(EPOCHS,), lab=Lab("What is learnt of one example?", "Nothing.", (MEASURE,)),
)
def one_example(observed):
    """More than half of an epoch is one example."""
    for first in observed.get("data", {}).get("epochs", [])[:1]:
        if 2 * first["most"] > first["draws"]:
            return f"one example was drawn {first['most']} times"
    return None
''',
    "workload/rows.py": '''
"""Rows of numbers: a workload that has nothing of images."""
import torch
from torch import nn

from bench.workload import base


class Rows:
    """y = x0 + x1."""

    def __init__(self, count):
        self.inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, draws):
        inputs = self.inputs[torch.from_numpy(draws % len(self))]
        return inputs, inputs.sum(1, keepdim=True), []


class Workload(base.Workload):
    """A line through them."""

    num_outputs = 1

    def load(self, mode, say):
        return Rows(64), Rows(5)  # of two ranks one validates a batch more than the other

    def model(self, config, rank, say):
        torch.manual_seed(config.seed + rank)
        return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    def loss(self, outputs, targets):
        return nn.functional.mse_loss(outputs, targets)

    def count(self, outputs, targets):
        near = (outputs - targets).abs() < 0.1
        return torch.stack([nn.functional.mse_loss(outputs, targets, reduction="sum"), near.sum()])

    def blank(self):
        return torch.zeros(1, 2)
''',
    "workload/images/squares.py": '''
"""A data set of its own."""
import torch


class Squares:
    """Grey squares of two kinds."""

    num_classes, mean, std = 2, None, None

    def __len__(self):
        return 64

    def __getitem__(self, draws):
        labels = torch.from_numpy(draws % 2)
        return labels[:, None, None, None].float().expand(-1, 3, 16, 16).contiguous(), labels, []


def load(config, device, kind, folder):
    """Training set, validation set."""
    return Squares(), Squares()
''',
    "studies/shards/__init__.py": "",
    "studies/shards/study.py": '''
"""Does the sharded mode run?"""
import dataclasses

from bench.studies.base import Plan, Study
from bench.studies.programs import even_threads, in_mode, prepare


def plans(console, asked, flags):
    """One suite."""
    config = even_threads(prepare(console, dataclasses.replace(asked, mode="sharded")))
    yield Plan(SHARDS, {mode: in_mode(config, mode) for mode in ("single", "sharded")})


SHARDS = Study("shards", "shards", "Shards", "Does it run?", "whether the sharded mode runs", plans, group="explain")
STUDIES = (SHARDS,)
''',
    "studies/shards/result.py": '''
"""Compared by throughput."""
from bench.analysis import style
from bench.studies.compare.result import answer, compare  # noqa: F401


@style.styled
def draw(result):
    """Nothing but a head and a foot."""
    paper = style.canvas(result.suite, "Shards", 1.0, result.certificate)
    style.axes_on(paper)
    return paper.figure


FIGURES = {"shards": {"shards": draw}}
''',
    "cli/hello.py": '''
"""`bench hello`."""
from bench.cli.base import Command


def run(args):
    """Say it."""
    print("hello")


COMMAND = Command("hello", "learn", "say hello", run=run)
''',
    "cli/shards.py": """
from bench.cli.base import of_study
from bench.studies.registry import STUDIES

COMMAND = of_study(STUDIES["shards"])
""",
}
LINES = {
    "config/modes.py": [
        ('    "independent": ModeInfo(', '    "sharded": ModeInfo("sharded", Look("#123456"), ("elastic",)),\n'),
    ],
    "config/sections.py": [
        ('"horovodrun")', '"elastic", '),
        ("    momentum: float = option(", '    patience: int = option(0, "steps of patience", minimum=0)\n'),
    ],
    "launch/engines/__init__.py": [
        ('from bench.launch.engines import ', "from bench.launch.engines import elastic\n"),
        ('"horovodrun": horovodrun}', '"elastic": elastic, '),
    ],
    "mistakes/__init__.py": [('    "unsynced_init",', '    "one_example",\n')],
    "config/workloads.py": [
        ('    "images": WorkloadInfo(',
         '    "rows": WorkloadInfo("rows", "row", "rows", (Metric("near", "within 0.1"),)),\n')
    ],
    "config/data_sets.py": [
        ('    "digits": DataSetInfo(',
         '    "rows": DataSetInfo("", augment=False, loader=False, workload="rows"),\n'
         '    "squares": DataSetInfo("squares", image_size=16, augment=False, loader=False),\n')
    ],
    "studies/registry.py": [('"lab")', '"shards", ')],
    "cli/__init__.py": [('    "install", "help",', '    "hello", "shards",\n')],
}  # fmt: skip


class Copy:
    """A copy of the package with everything above in it."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(ROOT / "bench", folder / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in FILES.items():
            path = folder / "bench" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.lstrip())
        for name, lines in LINES.items():
            path = folder / "bench" / name
            text = path.read_text()
            for before, line in lines:
                assert text.count(before) == 1, (name, before)
                text = text.replace(before, line + before)
            path.write_text(text)

    def run(self, *words: str) -> str:
        """A command of the copy; what it printed. It must end well."""
        done = subprocess.run(
            [sys.executable, "-m", "bench", *words], cwd=self.folder, capture_output=True, text=True, timeout=240,
            env={**os.environ, **PATIENT, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def python(self, code: str) -> str:
        """What a program prints that imports the copy."""
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=self.folder, capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return Copy(tmp_path_factory.mktemp("copy"))


SMALL = ("--gpus=2", "--device=cpu", "--threads=2", "--timeout=120")


@pytest.fixture(scope="module")
def trained(copy):
    """Two ranks of the new mode, by the new engine, train the new workload with the new mistake and the new option."""
    copy.run("run", "--mode=sharded", "--data=rows", "--batch=2", "--epochs=1", "--warmup=1", "--inject=one-example",
             "--patience=3", "--profile=1", "--memory=1", "--baselines=0", "--out=runs", *SMALL)  # fmt: skip
    (record,) = (json.loads(path.read_text()) for path in (copy.folder / "runs").glob("*/record.json"))
    return record


def test_a_mode_and_an_engine(trained):
    assert trained["status"] == "ok" and trained["config"]["launcher"] == "elastic"
    assert trained["topology"]["world_size"] == 2
    assert len({part["final_weights_sha256"] for part in trained["samples"]}) == 1


def test_a_modes_spans_and_its_memory_are_its_own_answers(trained):
    for part in trained["samples"]:
        sent = {span["name"] for span in part["timeline"]["spans"] if span["lane"] == "communication"}
        assert {"wait for all", "bucket 0"} <= sent and part["timeline"]["notes"] == []
        assert {"weights", "gradients", "buckets"} <= part["devices"][0]["memory_parts"]["gib"].keys()


def test_a_forward_pass_that_is_a_collective_may_be_shared_out_unevenly(trained):
    assert (
        trained["accuracy"]["epochs"][0]["images"] == 5
    )  # two batches of rank 0, one of rank 1, and none waits for ever


def test_a_workload_brings_its_unit_and_its_metrics(trained):
    assert trained["workload"]["units"] == "rows" and "near" in trained["accuracy"]
    assert trained["summary"]["throughput_per_s"] > 0


def test_an_option_separates_records(copy, trained):
    assert trained["config"]["patience"] == 3 and "PATIENCE=3" in trained["command"]
    code = "from bench.config.options import WORK, names; print(names(*WORK))"
    assert "patience" in copy.python(code)
    assert "--patience" in copy.run("run", "--help")


def test_a_mistake_is_made_found_and_listed(copy, trained):
    assert any("one example, over and over" in note for note in trained["topology"]["notes"])
    command = [sys.executable, "-m", "bench", "mistake", "check", "runs"]
    done = subprocess.run(command, cwd=copy.folder, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(copy.folder)}, timeout=60)  # fmt: skip
    assert done.returncode == 3 and "one-example" in done.stdout
    assert "one-example" in copy.run("mistake")


def test_a_study_with_its_picture_and_a_data_set(copy):
    said = copy.run("shards", "--rounds=1", "--data=squares", "--batch=4", "--steps=2", "--warmup=1", "--image-size=16",
                    *flags(**TINY), "--out=suites", *SMALL)  # fmt: skip
    page = said.strip().splitlines()[-1].removeprefix("report: ")
    (suite,) = (copy.folder / "suites").iterdir()
    assert (suite / "pictures" / "shards.svg").exists()
    assert "Does it run?" in (copy.folder / page).read_text()
    assert {path.name for path in suite.glob("*/record.json")} == {"record.json"}


def test_a_command_and_a_study_are_in_every_help(copy):
    for words in (["help"], ["help", "--make"]):
        listing = copy.run(*words)
        assert "hello" in listing and "shards" in listing
    assert copy.run("hello") == "hello\n"


def test_the_copy_reads_the_records_of_the_project(copy):
    """Of older versions: a record of this version names every option, so with a new one the version rises."""
    paths = packed.find_files(ROOT / "results" / "reference", "record.json")
    older = [path for path in paths if json.loads(text_of(path))["schema_version"] < SCHEMA_VERSION]
    code = "from bench.record.read import find_records; print(*map(len, find_records({!r})))"
    read, refused = map(int, copy.python(code.format(str(ROOT / "results" / "reference"))).split())
    assert 0 < read == len(older) and read + refused == len(paths)
