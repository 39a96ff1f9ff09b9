"""What `bench network` refuses before anything runs, and what it measures by: the backends that are there."""

import dataclasses

import pytest

from bench import __main__ as cli
from bench.cli.actions import network
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.measure import nvml
from bench.tasks.network.plan import Plan
from tests.shown import in_one_line


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    """As on a machine without GPUs."""
    monkeypatch.setattr(nvml, "visible_gpus", list)


@pytest.mark.parametrize(("words", "said"), [
    (["--gpus=1"], "GPUS=1: a message needs two ranks: use GPUS=2 or more"),
    (["--backends=mpi"], "unknown BACKENDS=mpi: choose of gloo, nccl, horovod"),
    (["--backends=nccl"], "BACKENDS=nccl is between GPUs"),
    (["--sizes=6"], "SIZES: 6 is 6 bytes: a multiple of 4"),
    (["--sizes=large"], "is no size"),
    (["--repeats=0"], "REPEATS=0: a whole number, at least 1"),
    (["--repeats=9999"], "REPEATS=9999: a whole number, at least 1 and at most 1000"),
    (["--max-minutes=0"], "MAX_MINUTES=0: a number above 0"),
    (["--max-minutes=soon"], "MAX_MINUTES=soon: a number above 0"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_in_one_line(words, said, capsys, tmp_path):
    assert cli.main(["network", f"--out={tmp_path}", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_horovod_is_left_out_with_its_reason_where_it_is_not(monkeypatch, capsys):
    from bench.analysis import tables

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    asked = RunConfig(num_devices=2)
    assert list(network.chosen(tables.terminal(), asked, None)) == ["gloo"]
    assert "left out: horovod needs horovod, which is not installed: run `bench install-horovod`" in in_one_line(
        capsys.readouterr().out
    )
    with pytest.raises(UserError, match="BACKENDS=horovod needs horovod"):
        network.chosen(tables.terminal(), asked, "horovod")


@pytest.mark.parametrize(("share", "backends"), [
    (False, {"gloo": "cpu", "nccl": "cuda", "horovod": "cuda"}), (True, {"gloo": "cuda"}),
])  # fmt: skip
def test_on_gpus_gloo_is_measured_between_cpus_and_nccl_between_gpus(share, backends, monkeypatch):
    """But where ranks share a GPU: there Gloo carries what is on it, and NCCL is none."""
    from bench.analysis import tables

    monkeypatch.setattr(network, "choose_device", lambda config: "cuda")
    monkeypatch.setattr(network, "resolve_here", lambda config: config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    monkeypatch.setattr("bench.launch.engines.horovodrun.lacking", lambda config: "no" if config.share_gpu else "")
    asked = RunConfig(num_devices=2, device="cuda", share_gpu=share)
    found = network.chosen(tables.terminal(), asked, None)
    assert {name: config.device for name, config in found.items()} == backends
    assert found["gloo"].mode == "ddp" and dataclasses.replace(found["gloo"], device="cuda") == asked


def test_what_the_ranks_are_told_is_in_the_config_and_names_the_file_that_they_leave():
    config = RunConfig().labelled(probe=Plan((4096,), 3, 1.0).text())
    assert config.leaves == "network.json" and RunConfig().leaves == "record.json"
