"""A language model, and a model and data of the user's, under every mode: the same update, and its own units."""

import importlib.util
import re
import textwrap

import pytest

from bench.cli.actions import new_workload
from bench.config.modes import MODES
from tests.multiprocess.broken import one_line
from tests.multiprocess.ranks import Table, apart, largest, weights
from tests.runs import ROOT, needs_horovod

BOUND = 1e-6  # float32 sums in another order
GPT = {"model": "gpt", "image_size": None, "layers": 1, "width": 16, "heads": 2, "context": 256, "lr": 0.1}
# ``nn.LSTM`` keeps a list of its weights beside its parameters: a wrapper that replaces one must replace both.
LSTM = ROOT / "tutorials" / "manual" / "templates" / "char_lstm.py"
PASSES = {"accumulate": 2, "batch": 2, "workers": 2}
EPOCH = {"steps": None, "warmup": None, "snapshots": None, "epochs": 1}
KERAS = """
import keras

def build(classes):
    return keras.Sequential([
        keras.Input((3, 8, 8)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(axis=1),
        keras.layers.Activation("relu"), keras.layers.Flatten(), keras.layers.Dense(classes),
    ])
"""

# Kind -> what is asked, and the modes; the first is what the others are compared with.
FOUR = ("single", "dp", "ddp", "horovod")
KINDS = {
    "gpt": (GPT, {mode: {} for mode in (*FOUR, "fsdp")}),
    # The model of tutorials/manual/own_model.md: several inputs, and an object comes out. A static graph: torch's DDP
    # starts the exchange from the output.
    "own": ({"lr": 0.1}, {"single": {}, "dp": PASSES, "ddp": PASSES, "ddp, static": {"static_graph": 1},
                          "horovod": {}, "fsdp": {}}),
    # A rank that has fewer batches than another calls the model all the same, where a forward pass is a collective.
    "own, validated": ({"lr": 0.1, "val_batch": 10} | EPOCH, {"single": {"val_batch": 20}, "dp": {}, "fsdp": {}}),
    "recurrent": ({"lr": 0.5}, {"single": {}, "dp": {}, "fsdp": {}}),
    "keras": ({"norm": "none", "lr": 0.1}, {mode: {} for mode in FOUR}),
}  # fmt: skip
CASES = [(kind, mode) for kind, (_, modes) in KINDS.items() for mode in modes]


@pytest.fixture(scope="module")
def run(tmp_path_factory, ranks):
    """``run((kind, mode))``: two steps with a global batch of eight."""
    folder = tmp_path_factory.mktemp("files")
    page = (ROOT / "tutorials" / "manual" / "own_model.md").read_text()
    (folder / "mine.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    (folder / "lstm.py").write_text(LSTM.read_text().replace("LENGTH = 64", "LENGTH = 8"))
    (folder / "nets.py").write_text(KERAS)
    files = {kind: {"model": f"{folder}/{name}.py:build", "data": f"{folder}/{name}.py:datasets", "image_size": None}
             for kind, name in (("own", "mine"), ("recurrent", "lstm"))}  # fmt: skip
    files["keras"] = {"model": f"keras:{folder}/nets.py:build"}

    def options(kind: str, mode: str) -> dict:
        name = mode.partition(",")[0]
        gpus = MODES[name].max_devices or 2
        common = {"mode": name, "gpus": gpus, "batch": 8 // gpus, "threads": 2, "steps": 2, "snapshots": "1,3"}
        asked, modes = KINDS[kind]
        return common | files.get(kind.partition(",")[0], {}) | asked | modes[mode]

    rows = {(kind, mode): options(kind, mode) for kind, mode in CASES}
    return Table(rows, lambda name, **options: ranks.run(tmp_path_factory.mktemp("run") / "runs", **options))


def case(kind: str, mode: str):
    marks = [needs_horovod] * (mode == "horovod")
    if kind == "keras":
        absent = importlib.util.find_spec("keras") is None
        marks += [pytest.mark.wide, pytest.mark.skipif(absent, reason="Keras is not installed")]
    return pytest.param(kind, mode, marks=marks, id=f"{kind}, {mode}")


@pytest.mark.parametrize(("kind", "mode"), [case(*pair) for pair in CASES if "validated" not in pair[0]])
def test_every_mode_trains_alike(run, kind, mode):
    """The weights after the last step are those of the first mode of this kind, and moved."""
    result, record = run((kind, mode)), run((kind, mode)).loaded
    first, last = weights(result, 1), weights(result, 3)
    assert largest(apart(first, last)) > 100 * BOUND
    assert largest(apart(last, weights(run((kind, next(iter(KINDS[kind][1])))), 3))) < BOUND
    facts = record.samples[0].facts
    if kind == "gpt":
        steps = record.samples[0].step_time_s
        assert (record.workload.units, record.workload.batched) == ("tokens", "sequences")
        assert record.median_throughput == pytest.approx(8 * 256 / record.step_time["median"], rel=0.5)
        assert record.throughput <= 8 * 256 * len(steps) / sum(steps) * 1.001
        assert len(facts["data_sha256"]) == 64 and facts["norm"] == "LayerNorm × 3" and facts["buffers"] == "none"
    elif kind == "own":
        assert record.config.model == "mine.py:build" and len(facts["model_source_sha256"]) == 64
        assert str(result.out.parent.parent) not in (result.run_dir / "record.json").read_text()
    elif kind == "keras":
        assert facts["norm"] == "BatchNormalization × 1" and record.environment["versions"]["keras"]
    if kind != "keras":
        assert f"{record.workload.units}/s" in result.stdout and "image" not in result.stdout
        assert facts["flops_per_example"] > 0 and "TFLOP/s" in result.stdout


@pytest.mark.parametrize("mode", KINDS["own, validated"][1])
def test_a_validation_counts_every_example_in_every_mode(run, mode):
    (row,), (first,) = (run(("own, validated", name)).loaded.epochs for name in (mode, "single"))
    assert row["images"] == 21 and 0 < row["score"] < 1
    assert row["score"] == first["score"] and row["loss"] == pytest.approx(first["loss"], rel=1e-4)


def test_epochs_of_a_users_model_are_checkpointed_by_its_score_and_resumed(ranks, tmp_path):
    path = tmp_path / "mine.py"
    new_workload.run(type("Args", (), {"file": str(path)}))
    options = {"model": f"{path}:build", "data": f"{path}:datasets", "lr": 0.1, "target": 0.5, "threads": 2,
               "image_size": None} | EPOCH  # fmt: skip
    result = ranks.run(tmp_path / "runs", **options | {"mode": "ddp", "gpus": 2, "batch": 128, "epochs": 2}).ok()
    first = result.loaded
    assert first.epochs[-1]["score"] > 0.5 and first.accuracy["time_to_accuracy_s"] > 0
    assert first.accuracy["best_score"] == max(row["score"] for row in first.epochs)
    assert (result.run_dir / "best.pt").exists()
    more = options | {"mode": "single", "gpus": 1, "batch": 256, "epochs": 3, "resume": result.run_dir}
    again = ranks.run(tmp_path / "more", **more).ok()
    assert len(again.loaded.epochs) == 3 and again.loaded.epochs[0] == first.epochs[0]


def test_ranks_with_different_data_are_refused(ranks, tmp_path):
    (path := tmp_path / "mine.py").write_text(
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
    one_line(result, 2)
    assert "8 examples on rank 0" in result.last_error_line and "9 on rank 1" in result.last_error_line
