"""bench/config: what a person types becomes a config, and a config a command and a record again. What is refused is in
tests/unit/cli/test_refusals.py."""

import dataclasses
import os
import shlex
from unittest import mock

import pytest

from bench.__main__ import command_of
from bench.cli import COMMANDS
from bench.config import command_line, gpu_defaults, hosts, synonyms
from bench.config import options as table
from bench.config.command_line import from_arguments, make_command
from bench.config.fields import base_type, flag_of
from bench.config.modes import MODES
from bench.config.options import FIELDS, PLAIN, SECTIONS, UNSET, RunConfig, from_dict, names, to_dict, unchecked
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.studies.programs import impossible, in_mode
from tests.added import add_option
from tests.runs import flags

OWN = [f for f in FIELDS.values() if not f.metadata["within"]]  # each an option; the others are parts of their values


def parse(**options) -> RunConfig:
    return config_of(*flags(**options))


def config_of(*words: str, command: str = "run", **environment: str) -> RunConfig:
    found, rest = command_of([*command.split(), *words])
    with mock.patch.dict(os.environ, environment):
        return from_arguments(found.parse(rest))


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


def test_each_type_is_read_from_text():
    config = parse(gpus="4", lr="1e-3", model="resnet50", workers="3", timeout="2.5", image_size="32")
    assert (config.num_devices, config.lr, config.model) == (4, 1e-3, "resnet50")
    assert (config.workers, config.timeout, config.image_size) == (3, 2.5, 32)
    assert parse() == RunConfig() and config_of("--tuned").tuned is True
    assert parse(data="digits", batch=718, gpus=2).global_batch == 1436  # which just fits
    assert RunConfig(per_device_batch=8, accumulate=3, num_devices=2).global_batch == 48
    assert [RunConfig(mode=m, num_devices=4).num_processes for m in ("dp", "ddp", "horovod")] == [1, 4, 4]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("schedule=step:30,60,80:0.2", {"schedule": "step:30,60,80", "schedule_factor": 0.2}),
        ("schedule=step:every7", {"schedule": "step", "schedule_epochs": 7.0}),
        ("schedule=cyclic:2:0.5", {"schedule": "cyclic", "schedule_epochs": 2.0, "schedule_factor": 0.5}),
        ("lr_warmup=500", {"lr_warmup_steps": 500}),
        ("lr_warmup=0.5e", {"lr_warmup_epochs": 0.5, "epochs": 1}),
        ("optimizer=nesterov", {"nesterov": True}),
        ("freeze=not:fc*,bn1*", {"train_only": "fc*,bn1*"}),
        ("inject=no-exchange", {"sync": False}),
        ("inject=unsynced-init,host-sync", {"init_sync": False, "item_sync": True}),
        ("inject=barrier,many-writers,kill:0:3", {"step_barrier": True, "mistake": "many-writers", "fault": "kill:0:3",
                                                  "num_devices": 2, "epochs": 1}),
        ("compile=reduce-overhead", {"compile": True, "compile_mode": "reduce-overhead"}),
        ("profile=torch", {"profile": True, "profile_kept": True}),
        ("gpus=0,1", {"num_devices": 2, "gpu_ids": "0,1"}),
        ("gpus=3,", {"num_devices": 1, "gpu_ids": "3,"}),
        ("gpus=GPU-3f2a,1", {"num_devices": 2, "gpu_ids": "GPU-3f2a,1"}),
    ],
)  # fmt: skip
def test_an_option_of_several_fields_is_read_and_written_again(text, values):
    option, _, value = text.partition("=")
    others = {"gpus" if name == "num_devices" else name: v for name, v in values.items()
              if name in ("epochs", "num_devices") and option != "gpus"}  # fmt: skip
    config = parse(**{option: value}, **others)
    assert config == RunConfig(**values)
    words = [word for word in shlex.split(make_command(config)) if word.startswith(f"{option.upper()}=")]
    assert words == [f"{option.upper()}={value}"]


@pytest.mark.parametrize(
    ("device", "model", "data", "image_size", "batch", "warmup", "steps", "baselines"),
    [("cpu", "resnet18", "digits", 16, 32, 3, 10, True), ("cuda", "resnet50", "synthetic", 224, 64, 20, 100, False)],
)
def test_open_options_are_chosen_by_device(device, model, data, image_size, batch, warmup, steps, baselines):
    config = resolve(RunConfig(), device, usable_cores=6)
    assert (config.model, config.data, config.image_size, config.per_device_batch) == (model, data, image_size, batch)
    assert (config.warmup_steps, config.timed_steps, config.baselines) == (warmup, steps, baselines)
    assert (config.device, config.threads, config.launcher) == (device, 6, "torchrun")
    assert resolve(RunConfig(tuned=True), device, 2).per_device_batch == 256
    assert resolve(RunConfig(tuned=True, per_device_batch=7), device, 2).per_device_batch == 7
    asked = parse(model="alexnet", batch=5, threads=3, baselines=0, warmup=0, launcher="spawn")
    config = resolve(asked, device, usable_cores=8)
    assert (config.model, config.per_device_batch, config.threads) == ("alexnet", 5, 3)
    assert (config.baselines, config.warmup_steps, config.launcher) == (False, 0, "spawn")


def test_the_default_launcher_suits_mode_and_rendezvous():
    launchers = {mode: resolve(RunConfig(mode=mode), "cpu", 2).launcher for mode in MODES}
    known = {"single": "in-process", "dp": "in-process", "ddp": "torchrun", "horovod": "horovodrun",
             "independent": "torchrun"}  # fmt: skip
    assert launchers | known == launchers == {mode: info.launchers[0] for mode, info in MODES.items()}
    assert resolve(RunConfig(mode="horovod", adasum=True, num_devices=4), "cpu", 2).launcher == "mpirun"
    assert resolve(parse(dist_url="file:///tmp/x"), "cpu", 2).launcher == "spawn"


@pytest.mark.parametrize(
    ("data", "device", "size", "workers", "augment"),
    [("digits", "cpu", 16, 0, False), ("synthetic", "cuda", 224, 0, False), ("cifar10", "cpu", 32, 0, True),
     ("fashionmnist", "cuda", 28, 0, True), ("imagefolder:/x", "cpu", 64, 2, True), ("tar:/x", "cuda", 224, 6, True),
     ("s3://bucket/x", "cpu", 64, 2, True)],
)  # fmt: skip
def test_sizes_workers_and_augmentation_follow_from_the_data(data, device, size, workers, augment):
    config = resolve(RunConfig(data=data, num_devices=2), device, usable_cores=6)
    assert (config.image_size, config.workers, config.augment) == (size, workers, augment)


def test_a_config_survives_its_record():
    for config in (RunConfig(), resolve(RunConfig(mode="dp", num_devices=3), "cpu", 2)):
        assert from_dict(to_dict(config)) == config
    with pytest.raises(UserError, match="colour"):
        from_dict({"mode": "ddp", "colour": "red"})
    config = unchecked({"mode": "single", "num_devices": 4, "colour": "red"})  # whatever can be run today
    assert (config.mode, config.num_devices, config.lr) == ("single", 4, RunConfig().lr)


def test_make_command_names_only_what_differs():
    """That it makes the same config again: tests/unit/fuzz/test_options.py."""
    assert make_command(RunConfig()) == "make bench"
    config = parse(mode="dp", gpus=2, tuned=1, lr=0.1, snapshots="1,5", out="/elsewhere")
    assert make_command(config) == "make bench MODE=dp GPUS=2 LR=0.1 TUNED=1 SNAPSHOTS=1,5"


def test_every_option_has_a_help_a_section_and_a_name_of_its_own():
    assert len(OWN) <= 101 and len({flag_of(f) for f in OWN}) == len(OWN)
    assert all(f.metadata["help"] for f in OWN)
    assert names(*SECTIONS) == list(FIELDS) and all(section.__doc__ for section in SECTIONS)
    options = {flag_of(f)[2:] for f in FIELDS.values()}
    others = [
        name for table in (synonyms.WRITE, synonyms.NO_OPTION) for each in table.values() for name in each.split()
    ]
    assert len(others) == len(set(others)) and not options & set(others)  # names of other scripts
    assert {synonyms.option_of(text) for text in synonyms.WRITE} <= options


@pytest.mark.parametrize("section", SECTIONS)
def test_an_option_that_is_added_has_all_that_follows_from_its_section(monkeypatch, section):
    """One field is enough: its flag, its variable, its place in a record and in the keys of its section."""
    add_option(monkeypatch, section, command_line)
    assert [each.__name__ for each in table.SECTIONS if "made_up" in names(each)] == [section.__name__]
    given = parse(made_up=3)
    assert given.made_up == 3 and from_dict(to_dict(given)) == given
    assert "MADE_UP=3" in make_command(given)


@pytest.mark.parametrize("probe", ["network", "{}", "[]", "null", '"network"', '{"sizes": [4]}', '{"predcit": {}}'])
def test_what_names_no_task_is_refused_and_never_taken_for_one(probe):
    with pytest.raises(UserError, match="PROBE="):
        RunConfig().labelled(probe=probe)


def test_what_is_typed_counts_before_the_file_and_the_file_before_defaults(tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('gpus = 2\nlr = 1\naugment = true\n[training]\nbatch = 16\noptimizer = "nesterov"\n[ddp]\n'
                    'overlap = 0\nbucket_cap_mb = 5.5\n[mode]\nmode = "ddp"\n')  # fmt: skip
    found = config_of(f"--config={file}", "--batch=8")
    assert (found.per_device_batch, found.num_devices, found.lr, found.augment) == (8, 2, 1.0, True)
    assert found.nesterov and not found.overlap and found.bucket_cap_mb == 5.5 and found.warmup_steps is None
    assert found.label.config_file == "my.toml"
    assert config_of(f"--config={file}", command="mistake demo").per_device_batch == 16  # not the command's own default


@pytest.mark.parametrize(
    ("text", "named"),
    [("gpus = 2\nbacth = 8\n", "line 2: bacth .*batch"), ("\n[training]\nbatch = true\n", "line 3: batch .*whole"),
     ("batch = [8, 16]\n", "line 1: batch .*sweep"), ("batch = 'many'\n", "line 1: BATCH=many"),
     ("lr = -1\n", "line 1: LR=-1"), ("[trainign]\nlr = 1\n", "line 1: .*trainign.*training"), ("batch = \n", "line 1"),
     ("lr = 1979-05-27\n", "line 1: lr .*a number"), ("[ddp.x]\n", "line 1: .*x"),
     ("lr = 1\n[training]\nlr = 2\n", "line 1: lr .*twice"), ('out = "a\\u0000b"\n', "line 1: out .*null"),
     ("\udcff", "TOML")],
)  # fmt: skip
def test_a_mistake_in_a_file_is_one_line_with_its_place(tmp_path, text, named):
    file = tmp_path / "my.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=named) as error:
        config_of(f"--config={file}")
    assert "\n" not in str(error.value) and "my.toml" in str(error.value) and len(str(error.value)) < 400


def test_a_file_that_is_not_there_or_is_for_another_command_is_refused_and_a_sweep_takes_lists(tmp_path):
    file = tmp_path / "my.toml"
    for place in (file, tmp_path):
        with pytest.raises(UserError, match=r"CONFIG=.*file"):
            config_of(f"--config={place}")
    file.write_text("weight_decay = 0.1\n")
    with pytest.raises(UserError, match="WEIGHT_DECAY"):
        COMMANDS["network"].parse([f"--config={file}"])
    file.write_text("batch = [8, 16]\nprecision = 'fp32,bf16'\n")
    cells = COMMANDS["sweep"].run.args[0].read(COMMANDS["sweep"].parse([f"--config={file}", "--mode=single"]))
    assert [(c.per_device_batch, c.precision) for c in cells.values()] == [
        (8, "fp32"), (8, "bf16"), (16, "fp32"), (16, "bf16")
    ]  # fmt: skip


TWO = "node1:2,node2:2"


def test_hosts_of_a_list_of_a_file_and_of_slurm(tmp_path):
    assert hosts.written_out("a, b:4", {}) == "a:1,b:4"
    file = tmp_path / "hosts"
    file.write_text("# two machines\nnode1:4\n\nnode2 slots=4  # as mpirun writes it\n")
    assert hosts.written_out(str(file), {}) == "node1:4,node2:4"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$1 $2 $3" = "show hostnames gpu[01-02]" ] && printf "gpu01\\ngpu02\\n"\n')
    scontrol.chmod(0o755)
    allocation = {"SLURM_JOB_NODELIST": "gpu[01-02]", "SLURM_TASKS_PER_NODE": "3(x2)"}
    with mock.patch.dict(os.environ, {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}):
        assert hosts.written_out("slurm", allocation) == "gpu01:3,gpu02:3"
    with mock.patch.dict(os.environ, {"PATH": str(tmp_path / "empty")}), pytest.raises(UserError, match="scontrol"):
        hosts.written_out("slurm", allocation)


def test_gpus_of_hosts_are_all_that_the_mode_can_take_of_them():
    assert config_of("--hosts", TWO).num_devices == 4
    assert config_of("--hosts", TWO, "--mode", "single").num_devices == 1
    assert config_of("--hosts", TWO, "--mode", "dp").num_devices == 2
    assert config_of("--hosts", TWO, command="mistake unsynced-init").num_devices == 4  # and not that command's own 2
    one = config_of("--hosts", TWO, "--gpus", "2")
    assert [(host.name, host.slots) for host in one.machines] == [("node1", 2)]


def test_the_environment_says_what_was_not_given():
    site = {"BENCH_HOSTS": "n1,n2", "BENCH_REMOTE": "enter {host}", "BENCH_IFACE": "eth0"}
    found = config_of(**site)
    assert (found.hosts, found.remote, found.iface, found.num_devices) == ("n1:1,n2:1", "enter {host}", "eth0", 2)
    assert config_of("--iface", "ib0", **site).iface == "ib0"
    assert config_of(BENCH_REMOTE="enter {host}") == config_of()  # of no use without hosts


def test_a_mode_of_one_process_has_the_cores_of_one_machine_and_the_same_global_batch():
    two = resolve(RunConfig(hosts="node1:1,node2:1", num_devices=2), "cpu", 8)
    single = in_mode(two, "single")
    assert (single.threads, two.threads) == (4, 8) and single.global_batch == two.global_batch
    assert in_mode(two, "horovod").threads == 8
    first = dataclasses.replace(two, hosts="node1:2,node2:2")  # both devices on the first machine
    assert in_mode(first, "single").threads == 8 and not impossible(first, "dp")


OFF = {"channels_last": False, "cudnn_benchmark": False, "fused": False}
SEARCHED = OFF | {"cudnn_benchmark": True, "fused": True}
ON = SEARCHED | {"channels_last": True}
# Compute capability and memory in GiB, as NVML tells them; the precision, the switches and the batch that are chosen.
GPUS = {
    "GTX 1080": ((6, 1), 8.0, "fp32", SEARCHED, 32), "V100": ((7, 0), 15.8, "fp16", ON, 128),
    "T4": ((7, 5), 14.7, "fp16", ON, 128), "RTX 2080": ((7, 5), 7.8, "fp16", ON, 64),
    "A100": ((8, 0), 39.5, "bf16", ON, 256), "L4": ((8, 9), 22.5, "bf16", ON, 256),
    "H100": ((9, 0), 79.6, "bf16", ON, 256), "silent": (None, None, "fp32", SEARCHED, 64),
}  # fmt: skip


def on(gpu: str, **given) -> RunConfig:
    return resolve(RunConfig(**given), "cuda", 16, *GPUS[gpu][:2])


def chosen(config: RunConfig) -> dict:
    return {name: getattr(config, name) for name in (*PLAIN, "per_device_batch") if name != "memory"}


@pytest.mark.parametrize("gpu", GPUS)
def test_the_defaults_follow_from_the_gpu_and_are_the_same_for_every_mode(gpu):
    """But for fsdp: torch has no fused sgd for what it shards."""
    _, _, precision, switches, batch = GPUS[gpu]
    for mode in MODES:
        config, fused = on(gpu, mode=mode), {"fused": mode != "fsdp"}
        assert chosen(config) == {"precision": precision, "per_device_batch": batch} | switches | fused
        assert on(gpu, mode=mode, optimizer="adamw").fused
        assert f"precision={precision}" in config.label.gpu_defaults and f"batch={batch}" in config.label.gpu_defaults


def test_plain_is_what_pytorch_does_by_itself_and_on_a_cpu_every_run_is():
    for gpu in GPUS:
        config = on(gpu, plain=True)
        assert chosen(config) == {"precision": "fp32", "per_device_batch": 64} | OFF
        assert config.plain and config.label.gpu_defaults is None and gpu_defaults.sentence(config) == ""
    for plain in (False, True):
        config = resolve(RunConfig(plain=plain), "cpu", 2)
        assert chosen(config) | {"memory": config.memory} == PLAIN | {"per_device_batch": 32}
        named = {word.split("=")[0] for word in make_command(config).split()}
        assert not config.plain and not {"PRECISION", "FUSED", "TORCH_DEFAULTS"} & named
    assert {name: UNSET[name] for name in PLAIN} == {"precision": "fp32", "memory": False} | OFF  # of older records


def test_what_was_given_stays_and_the_other_defaults_suit_it():
    given = {"precision": "tf32", "per_device_batch": 7} | OFF
    for plain in (False, True):
        config = on("H100", plain=plain, **given)
        assert chosen(config) == given and config.label.gpu_defaults is None
    assert on("H100", plain=True, fused=True).fused
    assert not on("H100", precision="fp32").channels_last and on("H100", precision="tf32").channels_last
    assert on("A100", precision="fp32", image_size=448).per_device_batch == 64  # 4 times the pixels, and twice as long
    assert on("H100", model="vgg16").per_device_batch == 64  # not in the table
    assert on("H100", num_devices=4, mode="ddp", share_gpu=True).per_device_batch == 256  # 20 GiB each
    assert on("L4", num_devices=4, mode="ddp", share_gpu=True).per_device_batch == 32
    assert on("H100", num_devices=8, data="digits").per_device_batch == 128  # 8 × 256 are more than the 1437 digits
    for training in ({"epochs": 2}, {"epochs": 2, "mode": "dp"}, {"tuned": True}):  # has its own batch
        config = on("V100", data="digits", **training)
        assert config.per_device_batch == (256 if config.tuned else 64) and "batch" not in config.label.gpu_defaults
    for mode, given in (("ddp", {"compression": "powersgd"}), ("horovod", {"adasum": True})):  # no scaled loss
        config = on("T4", mode=mode, **given)
        assert config.precision == "fp32" and config.fused is (mode == "ddp")


@pytest.mark.parametrize("given", [{}, {"precision": "fp32"}, {"fused": False, "plain": True}])
def test_the_command_of_a_record_repeats_it_on_any_gpu(given):
    """What the GPU has chosen is named: the command means the same on another one."""
    config = on("A100", mode="single", **given)
    words = dict(word.split("=", 1) for word in make_command(config).split()[2:])
    again = resolve(parse(**{name.lower(): value for name, value in words.items()}), "cuda", 16, *GPUS["T4"][:2])
    assert to_dict(again) | {"gpu_defaults": None} == to_dict(config) | {"gpu_defaults": None}
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize(("given", "modes", "fused"), [
    ({}, ["single", "ddp"], True),
    ({}, ["single", "ddp", "fsdp"], False),
    ({"optimizer": "adamw"}, ["ddp", "fsdp"], True),
    ({"fused": True}, ["ddp", "fsdp"], True),  # it was asked for: the run says that it cannot be
])  # fmt: skip
def test_modes_that_are_compared_have_the_same_optimizer(given, modes, fused):
    """One that cannot have the default takes it from all, and the label says so."""
    config = gpu_defaults.without_fused(on("H100", num_devices=2, mode="ddp", **given), modes)
    found = [in_mode(config, mode) for mode in modes]
    assert {each.fused for each in found} == {fused}
    assert ("fused=0" in config.label.gpu_defaults) == (not fused)
