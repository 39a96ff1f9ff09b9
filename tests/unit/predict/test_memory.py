"""What a step will need, predicted: the arithmetic of modes, what changes it, what does not, and the command."""

import dataclasses

import pytest

from bench import __main__ as cli
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import ExitCode
from bench.predict.memory.plan import of_devices
from bench.predict.memory.step import simulate
from tests.runs import TINY, flags

MIB = 2**20
pytestmark = pytest.mark.slow


def config_of(device: str = "cuda", **options) -> RunConfig:
    small = TINY | {"data": "digits", "image_size": 64, "per_device_batch": 16, "plain": True}
    return resolve(RunConfig(**small | options), device, usable_cores=2)


def parts_of(device: str = "cuda", **options) -> list[dict]:
    return [found.parts for found in of_devices(config_of(device, **options), num_outputs=10)]


def test_what_each_engine_adds_is_a_second_copy_of_the_gradients_or_none():
    (single,) = parts_of(mode="single")
    weights = single["weights"]
    assert weights == 4 * 19_994 and single["optimizer state"] == weights
    ddp, views = parts_of(mode="ddp", num_devices=2)[0], parts_of(mode="ddp", gradient_as_bucket_view=True)[0]
    assert ddp == single | {"buckets": weights}
    assert views["gradients"] == weights and "buckets" not in views
    horovod = parts_of(mode="horovod", num_devices=2, fusion_mb=16.0)[0]
    assert horovod["buckets"] == 16 * MIB and "buckets" not in parts_of(mode="horovod")[0]
    halves = parts_of(mode="ddp", num_devices=2, compression="fp16")[0]
    assert halves["buckets"] == weights + weights // 2
    config = config_of(mode="ddp", num_devices=2)
    assert simulate(config, 10) is simulate(dataclasses.replace(config, mode="independent"), 10)  # of both modes


def test_a_blocks_weights_are_gathered_while_it_computes_and_not_those_of_all():
    """With RESHARD_AFTER_FORWARD=0 all are at the end of the forward pass; one device has nothing to gather."""
    sharded = {"mode": "fsdp", "model": "resnet18", "num_devices": 2}
    freed, kept = (parts_of(**sharded, reshard=reshard)[0] for reshard in (True, False))
    assert freed["weights"] == kept["weights"] and freed["gathered"] < 0.9 * kept["gathered"]
    assert parts_of(mode="fsdp")[0] == parts_of(mode="single")[0]


def test_dataparallels_first_device_has_what_exists_once():
    first, *others = parts_of(mode="dp", num_devices=3, data="synthetic")
    assert others == 2 * [others[0]] and not {"weights", "optimizer state", "data"} & set(others[0])
    assert others[0]["replicas"] == first["weights"] + first["buffers"] and "optimizer state" in first
    assert first["images"] == pytest.approx(3 * others[0]["images"], rel=1e-3)
    assert first["outputs"] == 2 * 3 * 16 * 10 * 4
    assert first["data"] == 512 * (4 * 3 * 64**2 + 8)  # the pool of synthetic images
    (few, _) = of_devices(config_of(mode="dp", num_devices=2, image_size=16, per_device_batch=2), 10)
    assert few.moment == "end of backward" and few.parts["gradients"] == 2 * few.parts["weights"]


def test_what_options_change_and_what_they_leave():
    """What Adam, sharding and ACTIVATION_CHECKPOINTING change is measured in tests/multiprocess/test_memory.py."""
    full, half = parts_of()[0], parts_of(precision="bf16")[0]
    assert "optimizer state" not in parts_of(momentum=0.0)[0]
    head = parts_of(train_only="fc*")[0]
    assert head["optimizer state"] == 4 * (32 * 10 + 10) and head["weights"] == full["weights"]
    assert head["activations"] < full["activations"] / 2
    assert 0.5 < half["activations"] / full["activations"] < 0.75  # the autocast's copies of the weights are in it
    twice = parts_of(accumulate=2, per_device_batch=16)[0]
    assert twice["images"] == pytest.approx(2 * full["images"], rel=1e-3)
    assert twice["gradients"] == full["weights"]  # the first pass's are there already
    assert twice["activations"] < 1.2 * (full["activations"] + max(full["gradients"], 9 * MIB))
    large = parts_of(per_device_batch=32)[0]
    assert large["activations"] == pytest.approx(2 * full["activations"], rel=0.1)
    assert {k: v for k, v in full.items() if k in ("weights", "buffers", "optimizer state")}.items() <= large.items()


SMALL = ("predict", "memory", *flags(**TINY), "--data=digits", "--image-size=32")


def predicted(capsys, *arguments: str, given: tuple = SMALL) -> tuple[int, dict[str, list[str]], str]:
    """Exit code, the table's cells by the name of its row, and all that was printed."""
    code = cli.main([*given, *arguments])
    out = capsys.readouterr().out
    rows = {" ".join(cells[:2]): cells[2:] for line in out.splitlines() if len(cells := line.split()) > 2}
    return code, rows, out


def test_every_mode_has_its_columns_and_the_largest_batch(capsys):
    code, rows, out = predicted(capsys, "--gpus=2", "--memory-gib=1", "--batch=8", "--data=synthetic")
    heads = next(line for line in out.splitlines() if "horovod" in line).split()
    batches = [int(cell) for cell in rows["largest BATCH"]]
    assert code == 0 and heads == ["single", "dp", "dp", "ddp", "horovod", "independent"]
    assert len(batches) == 6 and min(batches) >= 8


def test_a_batch_that_does_not_fit_is_told_the_largest_that_does(capsys):
    given = ("--mode=ddp", "--gpus=2", "--memory-gib=0.6", "--data=synthetic")
    code, rows, out = predicted(capsys, *given, "--batch=5000")
    most = int(rows["largest BATCH"][-1])
    assert code == ExitCode.FOUND and "BATCH=5000" in out.splitlines()[-1] and f"BATCH={most}" in out.splitlines()[-1]
    assert predicted(capsys, *given, f"--batch={most}")[0] == 0


OWN = """
import torch
from torch import nn
class Net(nn.Linear):
    def forward(self, x, scale):
        rows = super().forward(x) * scale[:, None]
        return {"rows": rows, "nothing": None}
def build(outputs):
    return Net(3, outputs)
def datasets():
    return [((torch.ones(3), 1.0), i % 2) for i in range(48)], None, 2
def step(model, inputs, targets):
    out = model(inputs[0], scale=inputs[1])
    return out, nn.functional.cross_entropy(out["rows"], targets)
"""


def test_a_model_of_several_inputs_that_returns_a_dict_is_predicted_in_every_mode(tmp_path, capsys):
    (path := tmp_path / "mine.py").write_text(OWN)
    own = (f"--model={path}:build", f"--data={path}:datasets", "--gpus=2", "--device=cpu", "--batch=4")
    modes = "--modes=single,dp,ddp,horovod,zero1,fsdp,local"
    code, rows, _ = predicted(capsys, *own, modes, given=SMALL[:2])
    assert code == 0 and rows["largest BATCH"] == ["48"] + ["24"] * 6  # as many as the data have
    path.write_text(OWN.replace("return {", "rows = rows if rows.sum().item() else rows\n        return {"))
    other = path.rename(tmp_path / "other.py")  # a file is loaded once in a process
    assert cli.main([*SMALL[:2], *(each.replace(str(path), str(other)) for each in own)]) == 2
    error = capsys.readouterr().err
    assert "(other.py, line 7)" in error and "MEMORY=1" in error and error.count("\n") == 1
