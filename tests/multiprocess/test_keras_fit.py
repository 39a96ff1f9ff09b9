"""tutorials/scripts/keras_fit.py: with its callbacks two ranks of ``fit`` train as one process on the joined batch."""

import importlib.util
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.runs import ROOT, environment, needs_horovod

ABSENT = [name for name in ("keras", "tensorboard") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=f"not installed: {', '.join(ABSENT)}")

SCRIPT = """
import json
import os
import sys
from pathlib import Path

os.environ |= {"KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu"}
import keras
import numpy as np

import keras_fit

ranks = keras_fit.ranks()
folder = Path(sys.argv[1])
draw = np.random.default_rng(0)
x, y = draw.normal(size=(64, 6)).astype("float32"), draw.integers(0, 3, 64)
keras.utils.set_random_seed(ranks.rank)  # each rank has other weights, until fit begins
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
lr = 0.05 * 2 / ranks.size  # scaled, it is 0.1 on one rank and on two
model.compile(keras.optimizers.SGD(lr, momentum=0.9), loss, metrics=["accuracy"])
history = model.fit(
    x[ranks.rank :: ranks.size], y[ranks.rank :: ranks.size], batch_size=16 // ranks.size, epochs=3, shuffle=False,
    verbose=0, validation_data=(x, y), callbacks=[
        keras_fit.SameStart(ranks), keras_fit.MeanMetrics(ranks), keras_fit.WarmUp(ranks),
        *keras_fit.on_rank_0(ranks, keras.callbacks.ModelCheckpoint(str(folder / "last.keras")),
                             keras_fit.TensorBoard(folder / "logs")),
    ],
)
assert "tensorflow" not in sys.modules
said = {"history": history.history, "lr": float(model.optimizer.learning_rate), "own": "apply" in vars(model.optimizer),
        "weights": [weight.tolist() for weight in model.get_weights()]}
(folder / f"rank{ranks.rank}.json").write_text(json.dumps(said))
"""
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2")
HOROVODRUN = ("horovod.runner.launch", "--gloo", "-np", "2", "-H", "localhost:2", "--disable-cache", sys.executable)


def trained(folder, *launcher) -> list[dict]:
    """What each rank reports about itself."""
    folder.mkdir()
    (script := folder / "train.py").write_text(SCRIPT)
    shutil.copy(ROOT / "tutorials" / "scripts" / "keras_fit.py", folder)
    env = {name: value for name, value in environment().items() if not name.startswith("KERAS")}
    words = [sys.executable, *(["-m", *launcher] if launcher else []), script, folder]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=240, env=env)
    assert done.returncode == 0, done.stderr
    assert (folder / "last.keras").is_file()
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


@pytest.mark.wide
@pytest.mark.parametrize("launcher", [TORCHRUN, pytest.param(HOROVODRUN, marks=needs_horovod)])
def test_two_ranks_train_as_one_process(tmp_path, launcher):
    (one,), (first, second) = trained(tmp_path / "one"), trained(tmp_path / "two", *launcher)
    assert first["weights"] == second["weights"] and first["history"] == second["history"]
    for mine, theirs in zip(one["weights"], first["weights"], strict=True):
        assert np.abs(np.subtract(mine, theirs)).max() <= 1e-5
    for name, values in one["history"].items():
        assert first["history"][name] == pytest.approx(values, abs=1e-5), name
    assert first["lr"] == pytest.approx(0.1) and not first["own"]


def test_the_curves_of_a_fit_are_written_for_tensorboard_without_tensorflow(tmp_path):
    said = trained(tmp_path / "one")[0]
    assert {part: sorted(curves(tmp_path / "one" / "logs" / part)) for part in ("train", "validation")} == {
        "train": ["epoch_accuracy", "epoch_learning_rate", "epoch_loss"],
        "validation": ["epoch_accuracy", "epoch_loss"],
    }
    for part, name in (("train", "loss"), ("validation", "val_loss")):
        written = curves(tmp_path / "one" / "logs" / part)["epoch_loss"]
        assert written == [(epoch, pytest.approx(value)) for epoch, value in enumerate(said["history"][name])]


def curves(folder) -> dict[str, list]:
    """Name -> (step, value), of the event files in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
