"""A language model, and a model and data of the user's, under every mode: the same update, and its own units."""

import importlib.util
import re
import textwrap

import numpy as np
import pytest

from bench.cli.actions import new_workload
from bench.record.read import load
from tests.runs import ROOT, needs_horovod

GPT = {"model": "gpt", "image_size": None, "layers": 1, "width": 16, "heads": 2, "context": 256, "lr": 0.1}
MODES = {"single": 1, "dp": 2, "ddp": 2, "horovod": 2, "zero1": 2, "fsdp": 2}
MODES = [pytest.param(name, n, marks=[needs_horovod] * (name == "horovod")) for name, n in MODES.items()]
BOUND = 1e-6  # float32 sums in another order


@pytest.fixture(scope="module")
def seen():
    """Mode -> what it has left, of each kind of workload: compared with the first mode's."""
    return {}


def same_update(seen, kind, result):
    """Whether the weights after the last step are those of the first mode of this kind, and moved."""
    first, last = (np.load(result.run_dir / f"rank0-step{step}.npz") for step in (1, 3))
    assert any(np.abs(first[name] - last[name]).max() > 100 * BOUND for name in first.files)
    reference = seen.setdefault(kind, dict(last))
    assert max(np.abs(last[name] - reference[name]).max() for name in last.files) < BOUND


def run(ranks, tmp_path, mode, devices, **options):
    common = {"mode": mode, "gpus": devices, "batch": 8 // devices, "threads": 2, "steps": 2, "snapshots": "1,3"}
    result = ranks.run(tmp_path / "runs", **common | options)
    assert result.code == 0, result.stderr + result.stdout
    return result


@pytest.mark.parametrize(("mode", "devices"), MODES)
def test_every_mode_trains_gpt_alike_and_counts_tokens(ranks, tmp_path, seen, mode, devices):
    result = run(ranks, tmp_path, mode, devices, **GPT)
    same_update(seen, "gpt", result)
    record = result.loaded
    steps = record.samples[0].step_time_s
    assert (record.workload.units, record.workload.batched) == ("tokens", "sequences")
    assert record.median_throughput == pytest.approx(8 * 256 / record.step_time["median"], rel=0.5)
    assert record.throughput <= 8 * 256 * len(steps) / sum(steps) * 1.001
    assert "tokens/s" in result.stdout and "6 N + 12 layers" in result.stdout and "image" not in result.stdout
    facts = record.samples[0].facts
    assert len(facts["data_sha256"]) == 64 and facts["norm"] == "LayerNorm × 3" and facts["buffers"] == "none"


STATIC = {"static_graph": 1}  # where torch's DDP starts the exchange from the output
PASSES = {"accumulate": 2, "batch": 2, "workers": 2}


@pytest.mark.parametrize(
    ("mode", "devices", "options"),
    [
        *(pytest.param(*each.values, STATIC if each.values[0] == "ddp" else {}, marks=each.marks) for each in MODES),
        ("ddp", 2, PASSES),
        ("dp", 2, PASSES),
    ],
)
def test_every_mode_trains_the_manuals_model_of_several_inputs_that_returns_an_object(
    ranks, tmp_path, seen, mode, devices, options
):
    options = example_of_the_manual(tmp_path) | {"lr": 0.1} | options
    result = run(ranks, tmp_path, mode, devices, **options)
    same_update(seen, "own", result)
    record = result.loaded
    assert record.config.model == "mine.py:build" and len(record.samples[0].facts["model_source_sha256"]) == 64
    assert "examples/s" in result.stdout and "image" not in result.stdout
    assert str(tmp_path) not in (result.run_dir / "record.json").read_text()


RECURRENT = ROOT / "tutorials" / "manual" / "templates" / "char_lstm.py"


@pytest.mark.parametrize(("mode", "devices"), MODES)
def test_every_mode_trains_the_recurrent_network_of_the_templates_alike(ranks, tmp_path, seen, mode, devices):
    """``nn.LSTM`` keeps a list of its weights beside its parameters: a wrapper that replaces one must replace both."""
    options = {"model": f"{RECURRENT}:build", "data": f"{RECURRENT}:datasets", "image_size": None, "lr": 0.5}
    same_update(seen, "recurrent", run(ranks, tmp_path, mode, devices, **options))


@pytest.mark.parametrize(("mode", "devices"), [("single", 1), ("dp", 2), ("fsdp", 2)])
def test_a_validation_of_the_manuals_model_counts_every_example_in_every_mode(ranks, tmp_path, seen, mode, devices):
    """A rank that has fewer batches than another calls the model all the same, where a forward pass is a collective."""
    options = example_of_the_manual(tmp_path) | {"lr": 0.1, "steps": None, "warmup": None, "snapshots": None}
    result = run(ranks, tmp_path, mode, devices, epochs=1, val_batch=20 // devices, **options)
    row = result.loaded.epochs[0]
    assert row["images"] == 21 and 0 < row["score"] < 1
    first = seen.setdefault("validated", row)
    assert row["score"] == first["score"] and row["loss"] == pytest.approx(first["loss"], rel=1e-4)


def example_of_the_manual(folder) -> dict:
    """The file in tutorials/manual/own_model.md, as options."""
    page = (ROOT / "tutorials" / "manual" / "own_model.md").read_text()
    (path := folder / "mine.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    return {"model": f"{path}:build", "data": f"{path}:datasets", "image_size": None}


KERAS = """
import keras

def build(classes):
    return keras.Sequential([
        keras.Input((3, 8, 8)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(axis=1),
        keras.layers.Activation("relu"), keras.layers.Flatten(), keras.layers.Dense(classes),
    ])
"""


@pytest.mark.wide
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="Keras is not installed")
@pytest.mark.parametrize(("mode", "devices"), MODES[:4])
def test_every_mode_for_images_trains_a_keras_model_alike(ranks, tmp_path, seen, mode, devices):
    (path := tmp_path / "nets.py").write_text(KERAS)
    result = run(ranks, tmp_path, mode, devices, model=f"keras:{path}:build", norm="none", lr=0.1)
    same_update(seen, "keras", result)
    assert result.loaded.samples[0].facts["norm"] == "BatchNormalization × 1"
    assert result.loaded.environment["versions"]["keras"]


def test_epochs_of_a_users_model_are_checkpointed_by_its_score_and_resumed(ranks, tmp_path):
    path = tmp_path / "mine.py"
    new_workload.run(type("Args", (), {"file": str(path)}))
    options = {"model": f"{path}:build", "data": f"{path}:datasets", "image_size": None, "lr": 0.1, "snapshots": None,
               "batch": 128, "steps": None, "warmup": None, "target": 0.5}  # fmt: skip
    result = run(ranks, tmp_path, "ddp", 2, epochs=2, **options)
    first = result.loaded
    assert first.epochs[-1]["score"] > 0.5 and first.accuracy["time_to_accuracy_s"] > 0
    assert first.accuracy["best_score"] == max(row["score"] for row in first.epochs)
    assert (result.run_dir / "best.pt").exists()
    again = ranks.run(tmp_path / "more", mode="single", gpus=1, threads=2, epochs=3, **options | {"batch": 256},
                      resume=result.run_dir)  # fmt: skip
    assert again.code == 0, again.stderr
    assert len(again.loaded.epochs) == 3 and again.loaded.epochs[0] == first.epochs[0]


def test_what_cannot_be_trained_is_one_line_and_leaves_no_process(ranks, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        textwrap.dedent("""
        import os, torch
        from torch import nn
        def build(outputs):
            return nn.Linear(3, outputs)
        def datasets():
            count = 8 + int(os.environ["RANK"])
            return [(torch.ones(3), i % 2) for i in range(count)], None, 2
        """)
    )
    result = ranks.run(tmp_path / "runs", mode="ddp", gpus=2, model=f"{path}:build", data=f"{path}:datasets", batch=2,
                       threads=2, image_size=None)  # fmt: skip
    assert result.code == 2
    assert "has 8 examples on rank 0 and 9 on rank 1: give every rank the whole set" in result.last_error_line
    assert load(result.run_dir / "record.json").status == "failed" if result.run_dirs else True
