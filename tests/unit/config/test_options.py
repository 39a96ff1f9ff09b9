"""bench/config: what a person types becomes a config, or one clear sentence."""

import argparse
import dataclasses
import shlex

import pytest

from bench.config import command_line, synonyms
from bench.config import options as table
from bench.config.command_line import add_arguments, from_arguments, make_command
from bench.config.fields import base_type, fits, flag_of, variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, SECTIONS, RunConfig, from_dict, names, to_dict, unchecked
from bench.config.resolve import resolve
from bench.errors import UserError
from tests.added import add_option
from tests.runs import flags

OWN = [f for f in FIELDS.values() if not f.metadata["within"]]  # each an option; the others are parts of their values
NUMBERS = [f for f in OWN if base_type(f) in (int, float) and f.name != "lr_warmup_steps"]


def parse(**options) -> RunConfig:
    """A config from flags, as the command line makes one."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return from_arguments(parser.parse_args(flags(**options)))


def refused(make, *arguments, **options) -> str:
    """The one line with which something is refused."""
    with pytest.raises(UserError) as caught:
        make(*arguments, **options)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def below(f: dataclasses.Field):
    """A value just outside the range of a field, or None where it has no range."""
    if f.metadata["min"] is not None:
        return f.metadata["min"] - 1
    return f.metadata["above"]


# --- One value --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f.name for f in FIELDS.values() if f.metadata["choices"]])
def test_unknown_choice_is_refused_with_the_choices(name):
    f = FIELDS[name]
    message = refused(RunConfig, **{name: "nonsense"})
    assert f"{variable_of(f)}=nonsense" in message
    assert all(choice in message for choice in f.metadata["choices"])


@pytest.mark.parametrize("name", [f.name for f in NUMBERS])
def test_number_outside_its_range_is_refused(name):
    f = FIELDS[name]
    bad = below(f)
    assert bad is not None, f"{name} has no lower bound"
    assert f"{variable_of(f)}={bad}" in refused(RunConfig, **{name: bad})


@pytest.mark.parametrize("text", ["x", "", "1e", "0x10", "1,x"])
@pytest.mark.parametrize("name", [f.name for f in NUMBERS])
def test_text_that_is_no_number_is_refused(name, text):
    f = FIELDS[name]
    message = refused(parse, **{flag_of(f)[2:]: text})
    assert message.startswith(f"{variable_of(f)}={text} is not a")


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("name", [f.name for f in NUMBERS if base_type(f) is float])
def test_numbers_that_are_not_finite_are_refused(name, text):
    f = FIELDS[name]
    assert variable_of(f) in refused(parse, **{flag_of(f)[2:]: text})


@pytest.mark.parametrize("name", [f.name for f in NUMBERS if base_type(f) is int])
def test_a_fraction_is_no_whole_number(name):
    f = FIELDS[name]
    assert "is not a whole number" in refused(parse, **{flag_of(f)[2:]: "2.5"})


@pytest.mark.parametrize("name", [f.name for f in OWN if base_type(f) is bool])
def test_a_switch_is_read_from_words(name):
    flag = flag_of(FIELDS[name])[2:]
    mode = next((mode for mode, info in MODES.items() if name in info.knobs), "ddp")  # one that has such a thing
    needs = {"evaluate": {"resume": "a-run"}, "checkpoint": {"epochs": "1"}, "replicas": {"epochs": "1"},
             "trust": {"pretrained": "a.pt"}}.get(name, {})  # fmt: skip
    for text in ("1", "true", "YES", "on"):
        assert getattr(parse(mode=mode, **needs, **{flag: text}), name) is True
    for text in ("0", "false", "No", "off", ""):  # RESUME alone would need EPOCHS
        assert getattr(parse(mode=mode, **{flag: text}), name) is False
    assert f"{flag.upper().replace('-', '_')}=maybe" in refused(parse, **{flag: "maybe"})


def test_a_switch_needs_no_value():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert from_arguments(parser.parse_args(["--tuned"])).tuned is True


def test_each_type_is_read_from_text():
    config = parse(gpus="4", lr="1e-3", model="resnet50", workers="3", timeout="2.5", image_size="32")
    assert (config.num_devices, config.lr, config.model) == (4, 1e-3, "resnet50")
    assert (config.workers, config.timeout, config.image_size) == (3, 2.5, 32)


def test_nothing_given_is_the_default():
    assert parse() == RunConfig()


# --- Values that do not go together ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "single", "gpus": 2}, ["MODE=single", "GPUS=2", "GPUS=1"]),
        ({"mode": "horovod", "launcher": "torchrun"}, ["LAUNCHER=torchrun", "MODE=horovod", "horovodrun"]),
        ({"mode": "dp", "launcher": "spawn"}, ["LAUNCHER=spawn", "MODE=dp", "in-process"]),
        ({"mode": "horovod", "dist_url": "tcp://127.0.0.1:29500"}, ["DIST_URL", "MODE=horovod"]),
        ({"mode": "dp", "dist_url": "tcp://127.0.0.1:29500"}, ["DIST_URL", "MODE=dp"]),
        ({"dist_url": "127.0.0.1:29500"}, ["DIST_URL=127.0.0.1:29500", "tcp://HOST:PORT"]),
        ({"dist_url": "tcp://127.0.0.1"}, ["DIST_URL", "tcp://HOST:PORT"]),
        ({"dist_url": "tcp://127.0.0.1:port"}, ["DIST_URL", "tcp://HOST:PORT"]),
        ({"dist_url": "env://"}, ["DIST_URL=env://"]),
        ({"dist_url": "file:///tmp/x", "launcher": "torchrun"}, ["DIST_URL", "LAUNCHER=spawn"]),
        ({"mode": "dp", "share_gpu": 1}, ["SHARE_GPU=1", "MODE=dp"]),
        ({"mode": "single", "share_gpu": 1}, ["SHARE_GPU=1", "MODE=single"]),
        ({"data": "synthetic", "workers": 2}, ["DATA=synthetic", "WORKERS"]),
        ({"data": "digits", "batch": 1000, "gpus": 2}, ["BATCH=1000", "2000", "1437", "BATCH=718"]),
        ({"fault": "explode:0:1"}, ["INJECT=explode:0:1", "raise|kill|hang"]),
        ({"fault": "kill:1:1", "gpus": 1}, ["INJECT=kill:1:1", "GPUS"]),
        ({"fault": "kill:0"}, ["INJECT=kill:0"]),
        ({"snapshots": "1;2"}, ["SNAPSHOTS=1;2"]),
        ({"snapshots": "0"}, ["SNAPSHOTS=0"]),
        ({"snapshots": "1,,2"}, ["SNAPSHOTS=1,,2"]),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_a_combination_that_cannot_run_is_refused(options, words):
    message = refused(parse, **options)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("port", [0, 70_000])
def test_a_port_that_is_none_is_no_meeting_place(port):
    """With port 0 each rank would be given another, and all would wait for each other until TIMEOUT."""
    assert f"DIST_URL=tcp://127.0.0.1:{port}" in refused(parse, dist_url=f"tcp://127.0.0.1:{port}")


def test_a_seed_that_torch_cannot_take_is_refused():
    assert f"SEED={2**64}" in refused(parse, seed=2**64)


def test_a_fault_names_a_rank_that_exists():
    """dp is one process: a fault in its rank 1 would never happen, and the run would end well."""
    assert "INJECT=raise:1:0" in refused(parse, mode="dp", gpus=2, fault="raise:1:0")


def test_a_whole_batch_that_just_fits_is_taken():
    assert parse(data="digits", batch=718, gpus=2).global_batch == 1436


# --- Defaults by device ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "model", "data", "image_size", "batch", "warmup", "steps", "baselines"),
    [("cpu", "resnet18", "digits", 16, 32, 3, 10, True), ("cuda", "resnet50", "synthetic", 224, 64, 20, 100, False)],
)
def test_open_options_are_chosen_by_device(device, model, data, image_size, batch, warmup, steps, baselines):
    config = resolve(RunConfig(), device, usable_cores=6)
    assert (config.model, config.data, config.image_size, config.per_device_batch) == (model, data, image_size, batch)
    assert (config.warmup_steps, config.timed_steps, config.baselines) == (warmup, steps, baselines)
    assert (config.device, config.threads, config.launcher) == (device, 6, "torchrun")
    left_open = {name for name in FIELDS if getattr(config, name) is None}
    engine = {"bucket_cap_mb", "fusion_mb", "cycle_time_ms", "prefetch", "param_dtype", "reduce_dtype", "compile_mode"}
    # None: the engine's own default
    training = {
        "lr_batch",
        "clip_norm",
        "loss_guard",
        "pretrained",
        "freeze",
        "train_only",
        "checkpoint_steps",
        "resume",
        "target",
        "val_batch",
        "val_labels",
        "ema",
        "swa",
        "bn_momentum",
        "keep",
        "copy_to",
    }  # fmt: skip  None: without
    by_size = {"in_memory"}  # the worker looks at the data first
    elsewhere = {"hosts", "remote", "iface"}  # None: this machine
    text = {"layers", "width", "heads", "context", "peak_tflops"}  # None: of MODEL=gpt
    others = {"dist_url", "gpu_ids", "snapshots", "fault", "print_every"}
    assert left_open == others | engine | training | by_size | elsewhere | text


def test_what_is_of_gpus_alone_is_refused_without_one():
    assert resolve(RunConfig(cudnn_benchmark=True), "cuda", 2).cudnn_benchmark
    assert "CUDNN_BENCHMARK=1 needs GPUs" in refused(resolve, RunConfig(cudnn_benchmark=True), "cpu", 2)
    waits = RunConfig(mode="horovod", async_completion=True)
    assert resolve(waits, "cuda", 2).async_completion
    assert "ASYNC_COMPLETION=1 needs GPUs" in refused(resolve, waits, "cpu", 2)


def test_what_was_asked_for_stays():
    asked = parse(model="alexnet", batch=5, threads=3, baselines=0, warmup=0, launcher="spawn")
    config = resolve(asked, "cpu", usable_cores=8)
    assert (config.model, config.per_device_batch, config.threads) == ("alexnet", 5, 3)
    assert (config.baselines, config.warmup_steps, config.launcher) == (False, 0, "spawn")


@pytest.mark.parametrize(("device", "batch"), [("cpu", 256), ("cuda", 256)])
def test_tuned_takes_a_larger_batch_unless_one_is_given(device, batch):
    assert resolve(RunConfig(tuned=True), device, 2).per_device_batch == batch
    assert resolve(RunConfig(tuned=True, per_device_batch=7), device, 2).per_device_batch == 7


def test_the_default_launcher_suits_mode_and_rendezvous():
    launchers = {mode: resolve(RunConfig(mode=mode), "cpu", 2).launcher for mode in MODES}
    known = {"single": "in-process", "dp": "in-process", "ddp": "torchrun", "horovod": "horovodrun",
             "independent": "torchrun"}  # fmt: skip
    assert launchers | known == launchers == {mode: info.launchers[0] for mode, info in MODES.items()}


def test_adasum_is_started_by_mpirun_and_joins_ranks_two_by_two():
    resolved = resolve(RunConfig(mode="horovod", adasum=True, num_devices=4), "cpu", 2)
    assert resolved.launcher == "mpirun"
    assert "ADASUM=1" in refused(resolve, RunConfig(mode="horovod", adasum=True, num_devices=3), "cpu", 2)


def test_a_file_rendezvous_works_without_naming_the_launcher():
    """The option's own help says that spawn serves file:// alone: so LAUNCHER=auto must find it."""
    assert resolve(parse(dist_url="file:///tmp/x"), "cpu", 2).launcher == "spawn"


def test_a_default_that_makes_the_run_impossible_is_refused():
    message = refused(resolve, parse(gpus=50), "cpu", 2)  # 50 × 32 images, and there are 1437
    assert "BATCH=32" in message and "1437" in message


def test_processes_and_global_batch():
    assert [RunConfig(mode=m, num_devices=4).num_processes for m in ("dp", "ddp", "horovod", "independent")] == [
        1, 4, 4, 4,
    ]  # fmt: skip
    assert RunConfig(mode="dp", num_devices=4, per_device_batch=8).global_batch == 32


# --- The same names everywhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [RunConfig(), resolve(RunConfig(mode="dp", num_devices=3), "cpu", 2)])
def test_a_config_survives_its_record(config):
    assert from_dict(to_dict(config)) == config


def test_an_unknown_name_in_a_config_is_refused():
    assert "colour" in refused(from_dict, {"mode": "ddp", "colour": "red"})


def test_make_command_names_only_what_differs():
    assert make_command(RunConfig()) == "make bench"
    config = parse(mode="dp", gpus=2, tuned=1, lr=0.1, out="/elsewhere")
    assert make_command(config) == "make bench MODE=dp GPUS=2 LR=0.1 TUNED=1"


def test_make_command_makes_the_same_config_again():
    config = resolve(parse(mode="ddp", gpus=2, batch=8, tuned=1, baselines=0, snapshots="1,5"), "cpu", 2)
    words = dict(word.split("=", 1) for word in make_command(config).split()[2:])
    assert resolve(parse(**{name.lower(): value for name, value in words.items()}), "cpu", 2) == config


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("schedule=step:30,60,80:0.2", {"schedule": "step:30,60,80", "schedule_factor": 0.2}),
        ("schedule=step:30,60,80", {"schedule": "step:30,60,80"}),
        ("schedule=step:every7", {"schedule": "step", "schedule_epochs": 7.0}),
        ("schedule=step:every30:0.5", {"schedule": "step", "schedule_factor": 0.5}),
        ("schedule=cyclic:2:0.5", {"schedule": "cyclic", "schedule_epochs": 2.0, "schedule_factor": 0.5}),
        ("lr_warmup=500", {"lr_warmup_steps": 500}),
        ("lr_warmup=0.5e", {"lr_warmup_epochs": 0.5, "epochs": 1}),
        ("optimizer=nesterov", {"nesterov": True}),
        ("freeze=not:fc*,bn1*", {"train_only": "fc*,bn1*"}),
        ("inject=no-exchange", {"sync": False}),
        ("inject=unsynced-init,host-sync", {"init_sync": False, "item_sync": True}),
        ("inject=barrier,many-writers,kill:0:3", {"step_barrier": True, "mistake": "many-writers", "fault": "kill:0:3",
                                                  "num_devices": 2, "epochs": 1}),
    ],
)  # fmt: skip
def test_an_option_of_several_fields_is_read_and_written_again(text, values):
    option, _, value = text.partition("=")
    others = {name: v for name, v in values.items() if name in ("epochs", "num_devices")}
    others = {"gpus" if name == "num_devices" else name: v for name, v in others.items()}
    config = parse(**{option: value}, **others)
    assert config == RunConfig(**values)
    words = [word for word in shlex.split(make_command(config)) if word.startswith(f"{option.upper()}=")]
    assert words == [f"{option.upper()}={value}"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inject": "nonsense"}, "INJECT=nonsense no-exchange barrier gradient-sum raise|kill|hang"),
        ({"inject": "barrier,barrier"}, "INJECT=barrier,barrier"),
        ({"inject": "kill:0:1,hang:0:2"}, "INJECT=kill:0:1,hang:0:2"),
        ({"lr_warmup": "5x"}, "LR_WARMUP=5x 500 5e"),
        ({"lr_warmup": "-1"}, "LR_WARMUP=-1"),
        ({"schedule": "cyclic:x"}, "SCHEDULE=cyclic:x"),
        ({"schedule": "step:30:0"}, "SCHEDULE=step:30:0"),
        ({"schedule": "cosine:30:0.1"}, "SCHEDULE=cosine:30:0.1"),
    ],
)  # fmt: skip
def test_a_wrong_part_of_a_value_is_refused(given, words):
    message = refused(parse, **given)
    assert all(word in message for word in words.split()), message


def test_there_are_no_more_options_than_95():
    assert len(OWN) <= 95 and len({flag_of(f) for f in OWN}) == len(OWN)


def test_every_option_says_what_it_is_and_of_which_section():
    assert all(f.metadata["help"] for f in OWN)
    assert names(*SECTIONS) == list(FIELDS) and all(section.__doc__ for section in SECTIONS)


@pytest.mark.parametrize("section", SECTIONS)
def test_an_option_that_is_added_has_all_that_follows_from_its_section(monkeypatch, section):
    """One field is enough: its flag, its variable, its place in a record and in the keys of its section alone."""
    add_option(monkeypatch, section, command_line)
    assert [each.__name__ for each in table.SECTIONS if "made_up" in names(each)] == [section.__name__]
    given = parse(made_up=3)
    assert given.made_up == 3 and from_dict(to_dict(given)) == given
    assert "MADE_UP=3" in make_command(given)


@pytest.mark.parametrize(
    ("text", "count", "ids", "again"),
    [
        ("2", 2, None, "GPUS=2"),
        ("0,1", 2, "0,1", "GPUS=0,1"),
        ("3, 01", 2, "3,1", "GPUS=3,1"),
        ("3,", 1, "3,", "GPUS=3,"),
        ("GPU-3f2a", 1, "GPU-3f2a", "GPUS=GPU-3f2a"),
        ("GPU-3f2a,1", 2, "GPU-3f2a,1", "GPUS=GPU-3f2a,1"),
    ],
)
def test_gpus_are_a_number_or_named(text, count, ids, again):
    config = parse(gpus=text)
    assert (config.num_devices, config.gpu_ids) == (count, ids)
    assert make_command(config) == f"make bench {again}" and parse(gpus=again.partition("=")[2]) == config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gpus": ","}, "GPUS=, is not a whole number"),
        ({"gpus": "0,,1"}, "GPUS=0,,1 is not a whole number"),
        ({"gpus": "0,-1"}, "GPUS=0,-1 is not a whole number"),
        ({"gpus": "0;1"}, "GPUS=0;1 is not a whole number"),
        ({"gpus": "1,0,01"}, "names 1 twice"),
        ({"gpus": "MIG-1"}, "MIG slice, which is not supported"),
        ({"gpus": "0,1", "device": "cpu"}, "DEVICE=cpu uses none: use GPUS=2"),
        ({"gpus": "0,1", "share_gpu": "1"}, "CUDA_VISIBLE_DEVICES"),
        ({"gpus": "0,1", "mode": "single"}, "but GPUS=0,1"),
    ],
)
def test_a_wrong_list_of_gpus_is_refused(given, words):
    assert words in refused(parse, **given)


def test_the_names_of_other_scripts_lead_to_options_and_are_none():
    options = {flag_of(f)[2:] for f in FIELDS.values()}
    names = [name for table in (synonyms.WRITE, synonyms.NO_OPTION) for each in table.values() for name in each.split()]
    assert len(names) == len(set(names)) and not options & set(names)
    assert {synonyms.option_of(text) for text in synonyms.WRITE} <= options


def test_a_value_is_of_its_options_type():
    """What a record may hold."""
    assert all(fits(f, value) for f in FIELDS.values() for value in [getattr(RunConfig(), f.name)])
    assert fits(FIELDS["lr"], 1) and not fits(FIELDS["lr"], True) and not fits(FIELDS["lr"], "1")
    assert not fits(FIELDS["num_devices"], 1.0) and not fits(FIELDS["num_devices"], None)
    assert fits(FIELDS["target"], None) and not fits(FIELDS["sync"], 1)


@pytest.mark.parametrize(
    "probe",
    ["network", "{}", "[]", "null", '"network"', '{"sizes": [4]}', '{"predcit": {}}', '{"network": {}, "predict": {}}'],
)
def test_what_names_no_task_is_refused_and_never_taken_for_one(probe):
    with pytest.raises(UserError, match="PROBE="):
        RunConfig().labelled(probe=probe)


def test_a_record_is_read_whatever_can_be_run_today():
    config = unchecked({"mode": "single", "num_devices": 4, "colour": "red"})
    assert (config.mode, config.num_devices, config.lr) == ("single", 4, RunConfig().lr)


# --- Training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "imagenet"}, "DATA=imagenet digits cifar10"),
        ({"data": "imagefolder"}, "DATA=imagefolder:PATH"),
        ({"data": "digits:/x"}, "DATA=digits:/x DATA_DIR"),
        ({"data": "synthetic", "epochs": 1, "target": 0.9}, "DATA=synthetic TARGET DATA=digits"),
        ({"data": "synthetic", "augment": True}, "DATA=synthetic AUGMENT"),
        ({"nesterov": True, "optimizer": "adamw"}, "OPTIMIZER=nesterov OPTIMIZER=sgd"),
        ({"lr_warmup_steps": 3, "lr_warmup_epochs": 1.0, "epochs": 2}, "LR_WARMUP=3 LR_WARMUP=1e"),
        ({"lr_warmup_epochs": 1.0}, "LR_WARMUP=1e EPOCHS"),
        ({"freeze": "a*", "train_only": "b*"}, "FREEZE=a* FREEZE=not:b*"),
        ({"evaluate": True}, "EVALUATE=1 RESUME PRETRAINED"),
        ({"evaluate": True, "resume": "x", "epochs": 1}, "EVALUATE=1 EPOCHS"),
        ({"resume": "x"}, "RESUME EPOCHS"),
        ({"resume": "x", "pretrained": "y", "epochs": 1}, "RESUME PRETRAINED"),
        ({"bn_momentum": 1.5}, "BN_MOMENTUM=1.5 at most 1"),
        ({"bn_momentum": 0.01, "norm": "group"}, "BN_MOMENTUM NORM=group NORM=batch"),
        ({"ema": 0.9}, "EMA EPOCHS"),
        ({"ema": 1.0, "epochs": 1}, "EMA=1 below 1"),
        ({"swa": 3, "epochs": 2}, "SWA=3 EPOCHS=2"),
        ({"data": "digits", "val_labels": "x.csv"}, "DATA=digits VAL_LABELS imagefolder:PATH"),
        ({"keep": "all"}, "KEEP_CHECKPOINTS=all EPOCHS"),
        ({"keep": "2", "epochs": 2, "checkpoint": False}, "KEEP_CHECKPOINTS=2 CHECKPOINT=0"),
        ({"keep": "0", "epochs": 2}, "KEEP_CHECKPOINTS=0 all as in 3"),
        ({"keep": "best", "epochs": 2}, "KEEP_CHECKPOINTS=best all as in 3"),
        ({"schedule": "linear"}, "SCHEDULE=linear constant step cosine cyclic step:30,60,80"),
        ({"schedule": "cosine:30"}, "SCHEDULE=cosine:30 only step"),
        ({"schedule": "step:"}, "SCHEDULE=step: whole epochs"),
        ({"schedule": "step:30,x"}, "SCHEDULE=step:30,x whole epochs"),
        ({"schedule": "step:0,30"}, "SCHEDULE=step:0,30 from 1 on"),
        ({"schedule": "step:60,30"}, "SCHEDULE=step:60,30 earliest first"),
        ({"schedule": "step:30,30"}, "SCHEDULE=step:30,30 once"),
        ({"schedule": "step:30,60", "schedule_epochs": 10.0}, "SCHEDULE=step:30,60 epochs"),
        ({"val_batch": 8}, "VAL_BATCH EPOCHS EVALUATE=1"),
        ({"target": 0.9}, "TARGET EPOCHS"),
        ({"target": 98, "epochs": 1}, "TARGET=98 0.98"),
        ({"checkpoint": False, "checkpoint_steps": 5, "epochs": 1}, "CHECKPOINT=0 CHECKPOINT_STEPS"),
        ({"mode": "independent", "epochs": 5}, "MODE=independent EPOCHS"),
        ({"copy_to": "/a/folder"}, "COPY_TO=/a/folder s3://"),
        ({"checkpoint": True}, "CHECKPOINT EPOCHS"),
        ({"evaluate": True, "resume": "x", "track": "wandb"}, "EVALUATE=1 TRACK"),
        ({"sync": False, "epochs": 1}, "INJECT=no-exchange EPOCHS"),
        ({"data": "digits", "skip_bad": True}, "DATA=digits SKIP_BAD"),
        ({"mode": "dp", "norm": "sync"}, "MODE=dp NORM=sync ddp horovod"),
        ({"mode": "dp", "compile": True}, "MODE=dp COMPILE=1 ddp horovod"),
        ({"norm": "sync", "sync": False}, "INJECT=no-exchange NORM=sync"),
        ({"mode": "fsdp", "compile": True}, "MODE=fsdp COMPILE=1 ddp"),
        ({"mode": "fsdp", "param_dtype": "bf16", "precision": "fp32"}, "PARAM_DTYPE=bf16 PRECISION=fp32 =bf16"),
        ({"mode": "ddp", "param_dtype": "bf16"}, "PARAM_DTYPE MODE=fsdp"),
        ({"mode": "fsdp", "epochs": 1, "ema": 0.9}, "MODE=fsdp EMA ddp"),
        ({"mode": "fsdp", "epochs": 1, "replicas": True}, "MODE=fsdp REPLICAS ddp"),
        ({"mode": "fsdp", "sync": False}, "INJECT=no-exchange MODE=ddp"),
        ({"mode": "ddp", "reshard": False}, "RESHARD MODE=fsdp"),
        ({"mode": "zero1", "init_sync": False}, "INJECT=unsynced-init MODE=ddp"),
        ({"mode": "local", "epochs": 2, "swa": 1}, "MODE=local SWA ddp"),
        ({"mode": "zero1", "num_devices": 2, "mistake": "gradient-sum"}, "INJECT=gradient-sum MODE=ddp"),
        ({"mode": "ddp", "local_steps": 2}, "LOCAL_STEPS MODE=local"),
        ({"precision": "fp16", "compression": "powersgd"}, "COMPRESSION=powersgd PRECISION=bf16"),
        ({"mode": "horovod", "adasum": True, "clip_norm": 1.0}, "ADASUM=1 CLIP_NORM"),
        ({"mode": "horovod", "adasum": True, "launcher": "horovodrun"}, "ADASUM=1 MPI LAUNCHER=mpirun"),
        ({"mode": "horovod", "adasum": True, "hosts": "a:1,b:1", "num_devices": 2}, "ADASUM=1 mpirun HOSTS=a:1,b:1"),
        ({"mode": "horovod", "launcher": "mpirun", "hosts": "a:1,b:1", "num_devices": 2}, "LAUNCHER=mpirun bench run"),
        ({"mode": "ddp", "launcher": "mpirun"}, "LAUNCHER=mpirun MODE=ddp torchrun"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_training_cannot_do_is_refused(options, words):
    """The option and the way out are named."""
    said = refused(RunConfig, **options)
    assert all(word in said for word in words.split()), said


@pytest.mark.parametrize(
    ("data", "device", "size", "workers", "augment"),
    [("digits", "cpu", 16, 0, False), ("synthetic", "cuda", 224, 0, False), ("cifar10", "cpu", 32, 0, True),
     ("fashionmnist", "cuda", 28, 0, True), ("imagefolder:/x", "cpu", 64, 2, True), ("tar:/x", "cuda", 224, 6, True),
     ("s3://bucket/x", "cpu", 64, 2, True)],
)  # fmt: skip
def test_sizes_workers_and_augmentation_follow_from_the_data(data, device, size, workers, augment):
    config = resolve(RunConfig(data=data, num_devices=2), device, usable_cores=6)
    assert (config.image_size, config.workers, config.augment) == (size, workers, augment)


def test_compile_takes_the_modes_of_torchs_compiler():
    config = parse(compile="reduce-overhead")
    assert config == RunConfig(compile=True, compile_mode="reduce-overhead")
    assert make_command(config) == "make bench COMPILE=reduce-overhead"
    assert parse(compile="1") == RunConfig(compile=True) and parse(compile="0") == RunConfig()
    assert "COMPILE=fast: write 1, reduce-overhead, max-autotune or 0" in refused(parse, compile="fast")


def test_a_global_batch_counts_every_pass():
    assert RunConfig(per_device_batch=8, accumulate=3, num_devices=2).global_batch == 48
