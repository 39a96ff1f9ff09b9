"""The programs of every study: which configs belong together, and that only what is studied differs between them."""

import difflib
import inspect
import re

import pytest

from bench.config.fields import option_value
from bench.config.modes import COMPARED, MODES
from bench.config.options import FIELDS, RunConfig
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.mistakes import MISTAKES
from bench.studies.accuracy import study as accuracy
from bench.studies.base import Study
from bench.studies.breakdown import study as breakdown
from bench.studies.compare import study as compare
from bench.studies.lab import study as lab
from bench.studies.programs import baselines, in_mode, modes_of, own_seed, profiled
from bench.studies.registry import STUDIES
from bench.studies.replay import study as replay
from bench.studies.rounds import order
from bench.studies.scaling import study as scaling
from bench.studies.sweep import study as sweep
from bench.studies.unsynced import study as unsynced
from tests.runs import refuses

TRAINING = ("channels_last", "precision", "compile")
OF_A_MODE = {"mode", "launcher", "num_devices", "per_device_batch", "dist_url"}


def config(device="cpu", cores=2, *gpu, **options) -> RunConfig:
    """gpu: its capability and memory."""
    usual = {"mode": "ddp", "num_devices": 2, "baselines": False}
    return resolve(RunConfig(**(usual | options)), device, cores, *gpu)


def differing(a: RunConfig, b: RunConfig) -> set[str]:
    return {name for name in FIELDS if getattr(a, name) != getattr(b, name)}


def test_a_comparison_gives_every_mode_the_same():
    found = compare.programs(config(per_device_batch=8, workers=2, threads=7), COMPARED)
    assert list(found) == ["single", "dp", "ddp", "horovod", "independent"]
    for label, other in found.items():
        assert differing(found["ddp"], other) <= OF_A_MODE, label
        assert (other.global_batch, other.workers, other.threads) == (16, 2, 6)  # seven cores, shared out evenly
    base = config(per_device_batch=8, accumulate=2)
    assert {in_mode(base, mode).global_batch for mode in MODES} == {32}
    assert "independent" not in compare.programs(config("cuda", num_devices=4), COMPARED)  # no bound on GPUs


def test_options_of_a_backend_go_to_the_modes_that_have_them():
    found = compare.programs(config(bucket_cap_mb=5.0, overlap=False), COMPARED)
    assert [found[mode].bucket_cap_mb for mode in ("single", "ddp", "horovod")] == [None, 5.0, None]
    assert [found[mode].overlap for mode in ("dp", "ddp", "horovod")] == [True, False, False]
    wanted = compare.read_programs("ddp,ddp:COMPRESSION=fp16,horovod,horovod:compression=fp16,independent")
    found = compare.chosen(config(per_device_batch=8), ["ddp", "horovod"], wanted)
    assert list(found) == ["ddp", "ddp compression=fp16", "horovod", "horovod compression=fp16", "independent"]
    assert differing(found["ddp"], found["ddp compression=fp16"]) == {"compression"}
    assert list(compare.chosen(config(), ["ddp"], wanted)) == ["ddp", "ddp compression=fp16", "independent"]


@pytest.mark.parametrize(
    ("text", "named"),
    [("ddp", ["ddp"]), ("ddp,ddp", ["ddp"]), ("ddp,zero", ["zero"]), ("ddp,", ["''"]),
     ("ddp,single:COMPRESSION=fp16", ["MODE=single"]), ("ddp,ddp:BATCH=8", ["BATCH", "BUCKET_CAP_MB"]),
     ("ddp,ddp:BUCKET_CAP_MB=big", ["BUCKET_CAP_MB=big"]),
     ("ddp,horovod:COMPRESSION=powersgd", ["MODE=horovod", "COMPRESSION=powersgd"])],
)  # fmt: skip
def test_programs_that_cannot_be_are_refused_by_name(text, named):
    with refuses(*named):
        compare.chosen(config(), ["ddp", "horovod"], compare.read_programs(text))


def test_accuracy_and_replicas_train_every_way_there_is_from_one_seed_a_round():
    found = accuracy.programs(config(epochs=2, seed=7), COMPARED)
    assert list(found) == ["single", "dp", "ddp", "horovod"]  # and not the bound, which trains no model
    for each in found.values():
        assert differing(found["ddp"], each) <= OF_A_MODE and each.epochs == 2
        assert [own_seed(each, n).seed for n in range(3)] == [7, 8, 9]
    found = unsynced.programs(config(epochs=2, replicas=True), COMPARED)
    assert list(found) == ["ddp", "ddp unsynced", "ddp unsynced own buffers", "horovod", "horovod unsynced", "dp"]
    assert all(each.replicas and each.epochs == 2 for each in found.values())
    for mode in ("ddp", "horovod"):
        assert differing(found[mode], found[f"{mode} unsynced"]) == {"init_sync"}
    assert differing(found["ddp unsynced"], found["ddp unsynced own buffers"]) == {"broadcast_buffers"}


def test_tuned_gives_each_backend_its_own_settings_by_device():
    """Horovod's last reduction waits for the cycle's end: 25 ms, which suits a CPU, are half of a GPU's step."""
    cpu, gpu = (compare.programs(config(device, tuned=True), COMPARED) for device in ("cpu", "cuda"))
    for mode, each in cpu.items():
        for name, value in MODES[mode].tuned.get("cpu", {}).items():
            assert getattr(each, name) == value
    assert cpu["horovod"].cycle_time_ms == 25 and gpu["horovod"].cycle_time_ms is None
    assert cpu["ddp"].cycle_time_ms is None and gpu["ddp"].gradient_as_bucket_view and gpu["ddp"].static_graph
    for device, cycles in {"cpu": {1, 5, 25}, "cuda": {0.5, 1, 2, 5, 25}}.items():
        swept = sweep.one_at_a_time(in_mode(config(device), "horovod"))
        assert {each.cycle_time_ms for each in swept.values()} - {None} == cycles


@pytest.mark.parametrize("mode", [mode for mode, info in MODES.items() if info.sweep])
def test_a_sweep_changes_one_backends_settings_which_its_labels_name(mode):
    base = in_mode(config(), mode)
    found = sweep.one_at_a_time(base)
    assert found.pop(mode) == base
    for label, c in found.items():
        named = dict(word.split("=") for word in label.split()[1:])
        assert differing(base, c) <= set(named) <= {*MODES[mode].knobs, *TRAINING}, label
        assert {name: option_value(getattr(c, name)) for name in named} == named


def test_a_sweep_tries_what_the_device_has_and_the_run_has_not():
    """On a GPU the defaults are tried without each of them, and with TORCH_DEFAULTS=1 the reverse; PowerSGD does
    not go with fp16, which is the default of a T4."""
    on_gpu, on_plain = (config("cuda", 2, (9, 0), 80.0, mode="single", num_devices=1, plain=p) for p in (False, True))
    default, plain = sweep.one_at_a_time(on_gpu), sweep.one_at_a_time(on_plain)
    switches = {"channels_last", "cudnn_benchmark", "fused"}
    assert {f"single {name}=0" for name in switches} < default.keys() and "single precision=bf16" not in default
    assert {f"single {name}=1" for name in switches} | {"single precision=bf16"} < plain.keys()
    assert not [label for label, each in default.items() if each == on_gpu and label != "single"]
    on_cpu = " ".join(label for mode in ("single", "horovod") for label in sweep.one_at_a_time(in_mode(config(), mode)))
    assert "cudnn" not in on_cpu and "async_completion" not in on_cpu
    assert "async_completion=1" in " ".join(sweep.one_at_a_time(in_mode(config("cuda"), "horovod")))
    found = sweep.one_at_a_time(config("cuda", 2, (7, 5), 15.0))  # a T4
    refused = [label for label, each in found.items() if isinstance(each, UserError)]
    assert refused == ["ddp compression=powersgd"] and "ddp compression=fp16" in found


def test_weak_scaling_keeps_the_batch_of_a_device_and_strong_the_global_batch():
    base = config(num_devices=4, per_device_batch=8, cores=2)
    weak, strong = (scaling.programs(base, COMPARED, 4, strong=kind) for kind in (False, True))
    expected = {f"{mode} {n}" for n in (1, 2, 4) for mode in ("dp", "ddp", "horovod")}
    assert set(weak) == set(strong) == expected | {"single 1", "independent 2", "independent 4"}
    for found, batch in ((weak, lambda n: 8 * n), (strong, lambda n: 32)):
        for label, c in found.items():
            n = int(label.split()[1])
            assert (c.num_devices, c.global_batch, c.threads) == (n, batch(n), n), label
    with refuses("4 devices"):
        scaling.programs(config(num_devices=6, per_device_batch=5), COMPARED, 6, strong=True)


def test_a_breakdown_has_each_mode_with_and_without_its_exchange():
    found = breakdown.programs(config(), COMPARED)
    assert list(found) == ["single", "dp", "ddp", "horovod", "ddp no_sync", "horovod no_sync"]
    assert differing(found["ddp"], found["ddp no_sync"]) == {"sync"}
    assert all(c.profile for c in profiled(config(), COMPARED).values())


@pytest.mark.parametrize("name", replay.REPLAYS)
def test_a_replay_is_fair_once_and_unfair_once(name):
    base, fair, unfair = replay.programs(config(data="digits", per_device_batch=8), name).values()
    assert (base.label.variant, fair.label.variant, unfair.label.variant) == replay.VARIANTS
    assert differing(base, fair) <= OF_A_MODE and base.global_batch == fair.global_batch
    changes = [replay.REPLAYS[name].changes] if name != "nothing" else []
    assert differing(fair, unfair) == {*changes}
    assert (base.mode, fair.mode) == (replay.REPLAYS[name].base, replay.REPLAYS[name].program)


def test_a_replay_that_would_change_nothing_is_refused():
    with refuses("GPUS=2"):
        replay.programs(config(num_devices=1), "batch-grows")
    with refuses("synthetic"):
        replay.programs(config(data="synthetic"), "dp-workers")


@pytest.mark.parametrize("name", MISTAKES)
def test_a_lab_is_right_once_and_wrong_once(name):
    mistake = MISTAKES[name]
    loads = {"pretrained": "weights.pt"} if mistake.lab.pretrains else {}
    right = config(data="digits", **{"epochs": 2} | mistake.lab.workload | loads)
    programs = lab.programs(right, mistake)
    assert [each.label.variant for each in programs.values()] == list(lab.VARIANTS)
    first, second = programs.values()
    assert differing(first, right) == set() and differing(first, second) == {*mistake.wrong}


def test_the_baselines_of_a_run_do_the_same_work_and_train_nothing():
    trained = config(mode="horovod", epochs=3, target=0.9, checkpoint=True, track="tensorboard", fault="kill:1:3")
    one, bound = baselines(trained, "elsewhere")
    assert (one.mode, one.num_devices, one.global_batch) == ("single", 1, trained.global_batch)
    assert (bound.mode, bound.num_devices, bound.out) == ("independent", 2, "elsewhere")
    for each in (one, bound):
        assert (each.epochs, each.target, each.fault, each.baselines) == (0, None, None, False)
    assert [each.mode for each in baselines(config(mode="single", num_devices=1), "x")] == ["independent"]


def test_every_program_stands_in_every_place_of_a_round_and_modes_are_in_the_tables_order():
    names = ["a", "b", "c", "d"]
    rounds = [order(names, n) for n in range(8)]
    assert all(sorted(r) == names for r in rounds)
    assert all({r.index(name) for r in rounds} == {0, 1, 2, 3} for name in names)
    assert modes_of("local,ddp , single") == ["single", "ddp", "local"]  # others join no study by themselves
    assert modes_of(None) == ["single", "dp", "ddp", "horovod"]
    for wrong in ("ddp,nonsense", "independent", ""):
        with refuses(f"MODES={wrong}", "ddp", "zero1"):
            modes_of(wrong)


def test_no_hook_of_a_study_is_misspelt():
    """Each is looked up by its name in the study's result.py: no function there has almost the name of one."""
    hooks = set(re.findall(r'\.call_optional\("(\w+)"', inspect.getsource(Study)))
    for study in STUDIES.values():
        others = {name for name, _ in inspect.getmembers(study.module, inspect.isfunction)} - hooks
        assert not [name for name in others if difflib.get_close_matches(name, hooks, n=1, cutoff=0.72)], study.name
