"""bench/studies/programs.py: which configs belong together, and that only what is studied differs between them."""

import dataclasses

import pytest

from bench.config.modes import MODES
from bench.config.options import RunConfig, resolve
from bench.errors import UserError
from bench.studies import programs as suites

TRAINING = ("channels_last", "precision", "compile")
LABELS = {"mode", "launcher", "num_devices", "per_device_batch", "dist_url"}


def config(device="cpu", cores=2, **options) -> RunConfig:
    """A resolved config."""
    return resolve(RunConfig(**({"mode": "ddp", "num_devices": 2, "baselines": False} | options)), device, cores)


def differing(a: RunConfig, b: RunConfig) -> set[str]:
    """The options in which two configs differ."""
    return {f.name for f in dataclasses.fields(a) if getattr(a, f.name) != getattr(b, f.name)}


def test_a_comparison_gives_every_mode_the_same():
    roles = suites.comparison(config(per_device_batch=8, workers=2), suites.WAYS)
    assert list(roles) == ["single", "dp", "ddp", "horovod", "independent"]
    for role, other in roles.items():
        assert differing(roles["ddp"], other) <= LABELS, role
        assert other.global_batch == 16 and other.workers == 2


def test_accuracy_trains_every_way_there_is_from_one_seed_a_round():
    roles = suites.accuracy(config(epochs=2, seed=7), suites.WAYS)
    assert list(roles) == ["single", "dp", "ddp", "horovod"]  # and not the bound, which trains no model
    for role in roles.values():
        assert differing(roles["ddp"], role) <= LABELS and role.epochs == 2
        assert [suites.own_seed(role, n).seed for n in range(3)] == [7, 8, 9]
        assert differing(role, suites.own_seed(role, 1)) == {"seed"}


def test_replicas_that_start_apart_stand_beside_those_that_do_not():
    roles = suites.unsynced(config(epochs=2, replicas=True), suites.WAYS)
    assert list(roles) == ["ddp", "ddp unsynced", "ddp unsynced own buffers", "horovod", "horovod unsynced", "dp"]
    assert all(role.replicas and role.epochs == 2 for role in roles.values())
    for mode in ("ddp", "horovod"):
        assert differing(roles[mode], roles[f"{mode} unsynced"]) == {"init_sync"}
    assert differing(roles["ddp unsynced"], roles["ddp unsynced own buffers"]) == {"broadcast_buffers"}
    without = suites.unsynced(config(epochs=2), [mode for mode in suites.WAYS if mode != "horovod"])
    assert list(without) == ["ddp", "ddp unsynced", "ddp unsynced own buffers", "dp"]


def test_on_gpus_the_bound_is_left_out():
    assert "independent" not in suites.comparison(config("cuda", num_devices=4), suites.WAYS)


def test_options_of_an_engine_go_to_the_modes_that_have_them():
    roles = suites.comparison(config(bucket_cap_mb=5.0, overlap=False), suites.WAYS)
    assert [roles[mode].bucket_cap_mb for mode in ("single", "ddp", "horovod")] == [None, 5.0, None]
    assert [roles[mode].overlap for mode in ("dp", "ddp", "horovod")] == [True, False, False]


def test_tuned_gives_each_engine_its_own_settings():
    roles = suites.comparison(config(tuned=True), suites.WAYS)
    for mode, role in roles.items():
        for name, value in MODES[mode].tuned.items():
            assert getattr(role, name) == value
    assert roles["horovod"].gradient_as_bucket_view is False and roles["ddp"].cycle_time_ms is None


def test_weak_scaling_keeps_the_batch_of_a_device_and_strong_the_global_batch():
    base = config(num_devices=4, per_device_batch=8, cores=2)
    weak, strong = (suites.scaling(base, suites.WAYS, 4, strong=kind) for kind in (False, True))
    assert next(iter(weak)) == "single 1"
    expected = {f"{mode} {n}" for n in (1, 2, 4) for mode in ("dp", "ddp", "horovod")}
    assert set(weak) == set(strong) == expected | {"single 1", "independent 2", "independent 4"}
    for roles, batch in ((weak, lambda n: 8 * n), (strong, lambda n: 32)):
        for role, c in roles.items():
            n = int(role.split()[1])
            assert (c.num_devices, c.global_batch, c.threads) == (n, batch(n), n), role


def test_a_breakdown_has_each_mode_with_and_without_its_exchange():
    roles = suites.breakdown(config(), suites.WAYS)
    assert list(roles) == ["single", "dp", "ddp", "horovod", "ddp no_sync", "horovod no_sync"]
    assert differing(roles["ddp"], roles["ddp no_sync"]) == {"sync"}
    assert all(c.profile for c in suites.profiled(config(), suites.WAYS).values())


@pytest.mark.parametrize("mode", suites.SWEEPS)
def test_a_sweep_changes_one_engines_settings_and_says_so_in_the_role(mode):
    base = suites.in_mode(config(), mode)
    roles = suites.knobs(base)
    assert roles.pop(mode) == base
    for role, c in roles.items():
        named = dict(word.split("=") for word in role.split()[1:])
        assert differing(base, c) <= set(named) <= {*MODES[mode].knobs, *TRAINING}, role
        assert {name: suites.shown(getattr(c, name)) for name in named} == named


def test_a_mode_without_settings_has_no_sweep():
    with pytest.raises(UserError, match="MODE=independent has no settings to sweep: use MODE=single, dp, ddp, horovod"):
        suites.knobs(config(mode="independent"))


def test_without_an_engine_options_of_training_are_swept():
    roles = suites.knobs(config(mode="single", num_devices=1))
    assert [role.partition(" ")[2] for role in roles] == [
        "", "channels_last=1", "precision=bf16", "channels_last=1 precision=bf16", "compile=1",
        "compile=1 precision=bf16",
    ]  # fmt: skip
    assert not any(c.compile for c in suites.knobs(config(mode="dp")).values())


@pytest.mark.parametrize("name", suites.REPLAYS)
def test_a_replay_is_fair_once_and_unfair_once(name):
    base, fair, unfair = suites.replay(config(data="digits", per_device_batch=8), name).values()
    assert differing(base, fair) <= LABELS and base.global_batch == fair.global_batch
    assert len(differing(fair, unfair)) == (0 if name == "nothing" else 1)
    assert (base.mode, fair.mode) == (suites.REPLAYS[name].base, suites.REPLAYS[name].program)


def test_a_replay_that_would_change_nothing_is_refused():
    with pytest.raises(UserError, match="changes nothing with GPUS=1: use GPUS=2 or more"):
        suites.replay(config(num_devices=1), "batch-grows")
    with pytest.raises(UserError, match="synthetic data have none"):
        suites.replay(config(data="synthetic"), "dp-workers")


def test_threads_are_shared_out_evenly_or_the_modes_would_not_get_the_same():
    """Seven cores and two processes: three threads each, so single and dp get six."""
    roles = suites.comparison(config(threads=7), suites.WAYS)
    assert {c.threads for c in roles.values()} == {6}


def test_a_global_batch_that_cannot_be_shared_out_is_refused():
    with pytest.raises(UserError, match="cannot be shared out to 4 devices"):
        suites.scaling(config(num_devices=6, per_device_batch=5), suites.WAYS, 6, strong=True)


def test_every_program_stands_in_every_place_of_a_round():
    names = ["a", "b", "c", "d"]
    rounds = [suites.order(names, n) for n in range(8)]
    assert all(sorted(r) == names for r in rounds)
    for name in names:
        assert {r.index(name) for r in rounds} == {0, 1, 2, 3}
