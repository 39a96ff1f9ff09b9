"""``bench verify`` proves what it says, and would notice if it were not so."""

import math
import re
from unittest import mock

import pytest

from bench.cli.actions import verify
from tests.runs import TINY, flags, needs_horovod


@needs_horovod
def test_all_modes_agree_and_what_batch_norm_does_is_shown(ranks):
    """On the smallest workload, of fewer steps than a person's. (Sharded modes: test_modes.py.) dp has one set of
    statistics; ddp's ranks differ by one step; horovod's drift apart."""
    options = {"device": "cpu", "image_size": 8, "batch": 4, "modes": "single,dp,ddp,horovod"} | TINY
    with mock.patch.object(verify, "STEPS", (1, 4)):
        done = ranks.bench("verify", *flags(**options)).ok()
    found = re.fullmatch(r"verify: ok: largest difference (\S+), bound 1e-05", done.stdout.strip().splitlines()[-1])
    assert found and 0 < float(found[1]) <= verify.BOUND
    for mode in ("dp", "ddp", "horovod"):
        pairs = [line for line in done.stdout.splitlines() if line.strip().startswith(f"single – {mode} ")]
        assert len(pairs) == 2 and pairs[0].split().count("yes") == 3  # without batch norm, and with it
    between = dict(re.findall(r"(?m)^  (\w+): between ranks (\S+),", done.stdout))
    assert float(between["dp"]) == 0 < float(between["ddp"]) < float(between["horovod"])


def test_where_no_mode_can_run_nothing_was_shown(ranks, tmp_path):
    done = ranks.bench("verify", "--device=cpu", f"--model={tmp_path}/absent.py:build", "--modes=single,dp")
    assert done.code == 2 and "verify: ok" not in done.stdout and "absent.py" in done.stderr


ON_GPUS = """
import contextlib, io, json, pathlib, types
import numpy as np
from math import nan
from bench.cli import COMMANDS
from bench.cli.actions import verify
from bench.errors import UserError
differences, ran = {differences!r}, {{}}
def launch(config):
    name = verify.PASSES if config.mode == "single" and config.accumulate > 1 else config.mode
    if config.num_devices > 1 and config.mode in ("dp", "horovod") or config.norm != "none":
        raise UserError("cannot be run so")
    ran[name] = [config.global_batch, config.accumulate, config.num_devices, config.share_gpu]
    folder = pathlib.Path({out!r}, name)
    folder.mkdir(exist_ok=True)
    for step in verify.STEPS:
        np.savez(folder / f"rank0-step{{step}}.npz", w=np.array([step / 100 + differences.get(name, 0.0)]))
    return folder / "record.json"
part = types.SimpleNamespace(initial_weights_sha256="a", final_weights_sha256="b", first_indices=[0])
verify.launch, verify.load = launch, lambda path: types.SimpleNamespace(samples=[part], world_size=1)
with contextlib.redirect_stdout(io.StringIO()) as said:
    code = verify.run(COMMANDS["verify"].parse(["--device=cuda", "--model=resnet18", *{flags!r}]))
print(json.dumps([said.getvalue(), ran, code]))
"""


@pytest.mark.parametrize(
    ("gpus", "control", "ddp", "code", "bound"),
    [(4, 0.0, 9e-6, 0, "1e-05"), (4, 8e-6, 3e-5, 0, "3e-05"), (4, 2e-6, 3e-5, 1, "1e-05"), (1, 1e-3, 3e-4, 1, "1e-04"),
     (4, 0.0, math.nan, 1, "1e-05")],
)  # fmt: skip
def test_on_gpus_the_bound_is_what_single_differs_by_in_passes(nvml_stub, tmp_path, gpus, control, ddp, code, bound):
    """GPUs that are not there, and no rank: by its name each program ends with one weight, so far from single's. One
    GPU is shared by two ranks. Weights of nan never agree, though a maximum passes over them."""
    differences, words = {verify.PASSES: control, "ddp": ddp}, ["--gpus=2"] * (gpus > 1)
    program = ON_GPUS.format(differences=differences, flags=words, out=str(tmp_path))
    said, ran, found = nvml_stub.run(program, name="H100", count=gpus)
    assert found == code and f"bound {bound} " in said and f"{control:.1e}" in said, said
    assert ran["single"] == [128, 1, 1, False] and ran[verify.PASSES] == [128, 2, 1, False]
    assert ran["ddp"] == [128, 1, 2, gpus == 1]
