"""`bench doctor gpu`: the options that its checks ask for go together, on one GPU and on two. Nothing is started."""

import pytest

from bench.cli import COMMANDS
from bench.config.modes import MODES
from bench.config.options import KNOBS, UNSET, RunConfig
from bench.config.resolve import resolve
from bench.proof.gpu_check import a1_truth, a2_single, base
from bench.proof.gpu_check import ground as ground_module
from bench.proof.gpu_check.ground import Ground

NO_RUN = {"A1": {"horovod-build", "machine", "compute-lane", "batches", "data-parallel", "ddp-hooks", "horovod-hooks"},
          "A3": {"verify"}, "B1": {"verify-gloo", "verify-nccl"}, "B2": {"foreign"}}  # fmt: skip
PLAIN = {"B1": {True}, "B2": {False}}


class Asked(Exception):
    """A run that was asked for."""


@pytest.fixture
def asked_of(monkeypatch, tmp_path):
    """``asked_of(check, num_gpus)``: the first config that a check wants to run."""

    def stop(config):
        raise Asked(config)

    monkeypatch.setattr(ground_module, "resolve_here", lambda config: resolve(config, "cuda", 16, (8, 0), 80.0))
    monkeypatch.setattr(ground_module, "launch", stop)
    monkeypatch.setattr(a2_single, "blocks_of", lambda ground, config, pairs: stop(config))
    monkeypatch.setattr(a1_truth, "probes", lambda: pytest.fail("a probe"))

    def ask(check, num_gpus: int) -> RunConfig:
        with pytest.raises(Asked) as asked:
            check.run(Ground(RunConfig(out=str(tmp_path)), num_gpus))
        return asked.value.args[0]

    return ask


@pytest.mark.parametrize("num_gpus", [1, 2])
@pytest.mark.parametrize("part", base.PARTS)
def test_every_run_of_a_part_is_possible(part, num_gpus, asked_of, monkeypatch):
    monkeypatch.setattr("bench.proof.gpu_check.a3_training.IMAGES", 10)
    monkeypatch.setattr("bench.proof.gpu_check.a3_training.SIDE", 16)
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")  # a check may set it, in its own process
    checks = [each for each in base.part_in(base.PARTS[part]).checks if each.name not in NO_RUN.get(part, ())]
    configs = {check.name: asked_of(check, num_gpus) for check in checks}
    assert configs and all(config.device == "cuda" and config.out for config in configs.values())
    assert {config.plain for config in configs.values()} == PLAIN.get(part, {True, False})
    shared = {config.share_gpu for config in configs.values()}
    assert shared == {part == "B1"}
    if part == "A3":
        assert {c.num_devices for c in configs.values() if c.mode == "ddp" and not c.epochs} == {num_gpus}


def test_every_setting_that_a_mode_wants_tried_on_gpus_is(asked_of):
    """And all modes, in fp32 and in bf16. The command takes the options that a user chooses: its own file names them,
    for the table of commands is read before anything is installed."""
    assert set(COMMANDS["doctor"].parts["gpu"].takes) == {*ground_module.CHOSEN, "num_devices", "gpu_ids"}
    checks = [check for part in ("A3", "A4") for check in base.part_in(base.PARTS[part]).checks]
    configs = [asked_of(check, 1) for check in checks if check.name not in {"verify", "photographs"}]
    tried = [(c.mode, {name: getattr(c, name) for name in KNOBS if getattr(c, name) != UNSET[name]}) for c in configs]
    wanted = [(mode, {name: value for name, value in knobs.items() if name in KNOBS})
              for mode, info in MODES.items() for knobs in info.on_gpu]  # fmt: skip
    assert all(each in tried for each in wanted)
    assert {c.mode for c in configs} == {c.mode for c in configs if c.profile} | {"independent"} == set(MODES)
