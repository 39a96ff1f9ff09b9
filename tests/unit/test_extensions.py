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

pytestmark = pytest.mark.weekly  # that every table is complete: tests/lint.py
SMALL = ("--gpus=2", "--device=cpu", "--threads=2", "--timeout=120")

# Every file that is added, and every line: file -> (the text before which the line goes, the line).
FILES = {
    "modes/sharded.py": "from bench.modes.ddp import Mode",
    "launch/engines/elastic.py": "from bench.launch.engines.torchrun import command",
    "workload/images/squares.py": "from bench.workload.images.digits import load",
    "mistakes/one_example.py": """
from bench.mistakes.base import EPOCHS, Lab, mistake
from bench.mistakes.measures import Measure, of_observed

MEASURE = Measure("examples never seen", of_observed("data", "never_seen"), "up", ".0f")

@mistake(
    "one example, over and over", "nothing else is learnt", "shuffle", needs="data epochs",
    overrides={"order": lambda script, num_images, seed, epoch: 0 * script.right.order(num_images, seed, epoch)},
    requires=(EPOCHS,), lab=Lab("What is learnt of one example?", "Nothing.", (MEASURE,)),
)
def one_example(observed):
    for first in observed.get("data", {}).get("epochs", [])[:1]:
        if 2 * first["most"] > first["draws"]:
            return f"one example was drawn {first['most']} times"
    return None
""",
    "workload/rows.py": """
import torch
from torch import nn
from bench.workload import base

class Rows:
    def __init__(self, count):
        self.inputs = torch.randn(count, 2, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, draws):
        inputs = self.inputs[torch.from_numpy(draws % len(self))]
        return inputs, inputs.sum(1, keepdim=True), []

class Workload(base.Workload):
    num_outputs = 1

    def load(self, mode, say):
        return Rows(64), Rows(5)

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
""",
    "studies/shards/__init__.py": "",
    "studies/shards/study.py": """
import dataclasses
from bench.studies.base import Plan, Study
from bench.studies.programs import even_threads, in_mode, prepare

def plans(console, asked, flags):
    config = even_threads(prepare(console, dataclasses.replace(asked, mode="sharded")))
    yield Plan(SHARDS, {mode: in_mode(config, mode) for mode in ("single", "sharded")})

SHARDS = Study("shards", "shards", "Shards", "Does it run?", "whether the sharded mode runs", plans, group="explain")
STUDIES = (SHARDS,)
""",
    "studies/shards/result.py": """
from bench.analysis import style
from bench.studies.compare.result import answer, compare

@style.styled
def draw(result):
    paper = style.canvas(result.suite, "Shards", 1.0, result.certificate)
    style.axes_on(paper)
    return paper.figure

FIGURES = {"shards": {"shards": draw}}
""",
    "cli/shards.py": """
from bench.cli.base import study_command
from bench.studies.registry import STUDIES

COMMAND = study_command(STUDIES["shards"])
""",
}
LINES = {
    "config/modes.py": [
        ('    "independent": ModeInfo(', '    "sharded": ModeInfo("sharded", PlotStyle("#123456"), ("elastic",)),\n'),
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
    "cli/__init__.py": [('    "install", "help",', '    "shards",\n')],
}  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """``bench(*words, code=0)``: what a command of the copy prints. The copy has everything above in it."""
    folder = tmp_path_factory.mktemp("copy")
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

    def run(*words: str, code: int = 0) -> str:
        variables = {**os.environ, **PATIENT, "PYTHONPATH": str(folder)}
        done = subprocess.run([sys.executable, "-m", "bench", *words], cwd=folder, env=variables, capture_output=True,
                              text=True, timeout=240)  # fmt: skip
        assert done.returncode == code, done.stderr + done.stdout
        return done.stdout

    run.folder = folder
    return run


def test_a_mode_an_engine_a_workload_a_mistake_and_an_option(bench):
    bench("run", "--mode=sharded", "--data=rows", "--batch=2", "--epochs=1", "--warmup=1", "--inject=one-example",
          "--patience=3", "--profile=1", "--memory=1", "--baselines=0", "--out=runs", *SMALL)  # fmt: skip
    (record,) = (json.loads(path.read_text()) for path in (bench.folder / "runs").glob("*/record.json"))
    assert record["status"] == "ok" and record["config"]["launcher"] == "elastic"
    assert record["topology"]["world_size"] == 2
    assert len({part["final_weights_sha256"] for part in record["samples"]}) == 1
    for part in record["samples"]:
        sent = {span["name"] for span in part["timeline"]["spans"] if span["lane"] == "communication"}
        assert "bucket 0" in sent and part["timeline"]["notes"] == []
        assert {"weights", "gradients", "buckets"} <= part["devices"][0]["memory_parts"]["gib"].keys()
    assert record["accuracy"]["epochs"][0]["images"] == 5
    assert record["workload"]["units"] == "rows" and "near" in record["accuracy"]
    assert record["summary"]["throughput_per_s"] > 0
    assert record["config"]["patience"] == 3 and "PATIENCE=3" in record["command"]
    assert any("one example, over and over" in note for note in record["topology"]["notes"])
    assert "one-example" in bench("mistake", "check", "runs", code=3)


def test_a_study_with_its_picture_and_a_data_set_and_every_help_lists_what_there_is(bench):
    said = bench("shards", "--rounds=1", "--data=squares", "--batch=4", "--steps=2", "--warmup=1", "--image-size=16",
                 *flags(**TINY), "--out=suites", *SMALL)  # fmt: skip
    page = said.strip().splitlines()[-1].removeprefix("report: ")
    (suite,) = (bench.folder / "suites").iterdir()
    assert (suite / "pictures" / "shards.svg").exists()
    assert "Does it run?" in (bench.folder / page).read_text()
    assert all("shards" in bench(*words).split() for words in (["help"], ["help", "--make"]))
    assert "one-example" in bench("mistake") and "--patience" in bench("run", "--help")


def test_the_copy_reads_the_records_of_the_project(bench):
    """Older ones: a record of this version names every option, so a new option raises the version."""
    reference = ROOT / "results" / "reference"
    versions = [json.loads(text_of(path))["schema_version"] for path in packed.find_files(reference, "record.json")]
    code = f"from bench.record.read import find_records; print(*map(len, find_records({str(reference)!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=bench.folder, capture_output=True, text=True)
    read, refused = map(int, done.stdout.split())
    assert 0 < read == sum(version < SCHEMA_VERSION for version in versions) and read + refused == len(versions)
