"""``bench verify`` proves what it says, and would notice if it were not so."""

import re
from unittest import mock

import numpy as np
import pytest

from bench.cli.actions import verify
from tests.runs import NARROW, flags, needs_horovod


@pytest.fixture(scope="module")
def verified(ranks):
    """One verification on the smallest workload, of fewer steps than a person's; sharded modes, which it has too, are
    compared with one process in test_modes.py."""
    with mock.patch.object(verify, "STEPS", (1, 4)):
        return ranks.bench(
            "verify", "--device=cpu", "--image-size=8", "--batch=4", *flags(**NARROW), "--modes=single,dp,ddp,horovod"
        )


@needs_horovod
def test_all_modes_agree(verified):
    assert verified.code == 0, verified.stdout + verified.stderr
    (last,) = verified.stdout.strip().splitlines()[-1:]
    found = re.fullmatch(r"verify: ok: largest difference (\S+), bound 1e-05", last)
    assert found and 0 < float(found[1]) <= verify.BOUND


@needs_horovod
def test_every_pair_is_shown(verified):
    for mode in ("dp", "ddp", "horovod"):
        rows = [line for line in verified.stdout.splitlines() if line.strip().startswith(f"single – {mode} ")]
        assert len(rows) == 2, verified.stdout  # without batch norm, and with it
        assert rows[0].split().count("yes") == 3


@needs_horovod
def test_what_batch_norm_does_is_as_the_text_says(verified):
    """dp has one set of statistics; ddp's ranks differ by one step; horovod's drift apart."""
    between = {
        mode: float(number) for mode, number in re.findall(r"^  (\w+): between ranks (\S+),", verified.stdout, re.M)
    }
    assert between["dp"] == 0 < between["ddp"]
    assert between["ddp"] < between["horovod"]


def test_where_no_mode_can_run_nothing_was_shown(ranks, tmp_path):
    done = ranks.bench("verify", "--device=cpu", f"--model={tmp_path}/absent.py:build", "--modes=single,dp")
    assert done.code == 2 and "verify: ok" not in done.stdout
    assert "nothing to compare" in done.stderr and "absent.py is not there" in done.stderr


@pytest.fixture
def on_gpus(nvml_stub, tmp_path):
    """``on_gpus(differences, **stub)``: a verification on GPUs that are not there. No rank is started: by its name each
    program ends with one weight, so far from single's. Its output, and the programs' configs."""

    def verify_with(differences: dict, *flags: str, **stub) -> tuple[str, dict]:
        code = ON_GPUS.format(differences=differences, flags=list(flags), out=str(tmp_path))
        return nvml_stub.run(code, **{"name": "H100"} | stub)

    return verify_with


ON_GPUS = """
import contextlib, io, json, pathlib, types
import numpy as np
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
    ("control", "ddp", "code", "bound"),
    [(0.0, 9e-6, 0, "1e-05"), (8e-6, 3e-5, 0, "3e-05"), (2e-6, 3e-5, 1, "1e-05"), (1e-3, 3e-4, 1, "1e-04")],
)
def test_on_gpus_the_bound_is_what_single_does_to_itself_in_passes(on_gpus, control, ddp, code, bound):
    said, ran, found = on_gpus({verify.PASSES: control, "ddp": ddp}, "--gpus=2")
    assert found == code and f", bound {bound} (single in 2 passes differs by {control:.1e})" in said, said
    assert ran["single"] == [128, 1, 1, False] and ran[verify.PASSES] == [128, 2, 1, False]
    assert ran["ddp"] == [128, 1, 2, False]


def test_one_gpu_is_shared_by_two_ranks(on_gpus):
    said, ran, code = on_gpus({}, count=1)
    assert code == 0 and "One GPU: two ranks share it" in said and ran["ddp"] == [128, 1, 2, True]
    assert on_gpus({}, count=2)[1]["ddp"] == [128, 1, 2, False]


def test_weights_that_are_no_numbers_never_agree():
    """nan compares as false with everything, and a maximum passes over it."""
    broken = {"w": np.array([np.nan, 1.0])}

    class Snapshot(dict):
        files = ("w",)

    difference = verify.largest(Snapshot(broken), Snapshot(broken))
    assert not max(0.0, difference) <= verify.BOUND
