"""`bench run` on GPUs that are not there: what is said before a run, what runs beside it, and the table. The driver is
the made-up one of tests/stubs. Where a run would start, it is a made-up record."""

import pytest

from bench.cli.actions import run as command
from bench.config.options import RunConfig
from bench.config.resolve import resolve
from bench.errors import RunFailed
from tests import records
from tests.shown import in_one_line

SAID = """
from rich.console import Console
from bench.cli.actions.run import announce
from bench.config.options import RunConfig
from bench.launch.launcher import resolve_here
def ask():
    console = Console(width=200)
    config = resolve_here(RunConfig(mode="ddp", **eval(os.environ["STUB_NVML_GIVEN"])))
    with console.capture() as capture:
        announce(console, config)
    return [" ".join(capture.get().split()), config.precision, config.per_device_batch, config.label.gpu_defaults]
"""
# The machine, what is given, and the precision and the batch that are chosen.
CHOSEN = [
    ({"capability": 90}, {}, "bf16", 256),
    ({"capability": 75, "total_mib": 15360}, {}, "fp16", 128),
    ({"capability": [90, 75]}, {"num_devices": 2}, "fp16", 256),  # all ranks compute the same
    ({"total_mib": [81920, 15360]}, {"num_devices": 2}, "bf16", 128),
    ({"capability": [90, 75]}, {"gpu_ids": "0,"}, "bf16", 256),
    ({"capability": 90, "used_mib": 75000}, {}, "bf16", 64),  # others hold the rest of the memory
    ({"capability": 90}, {"plain": True}, "fp32", 64),
]


@pytest.mark.slow
def test_a_run_says_what_was_chosen_for_its_gpus(nvml_stub):
    found = nvml_stub.each(SAID, [machine | {"given": repr(given)} for machine, given, *_ in CHOSEN])
    for (text, *resolved, label), (_, given, precision, batch) in zip(found, CHOSEN, strict=True):
        assert resolved == [precision, batch] and f"{batch} images" in text
        chosen = "plain" not in given
        assert chosen == (label is not None) == ("TORCH_DEFAULTS=1" in text)
        assert f"batch {batch}" in text or not chosen


GIVEN = """
import json
from bench.cli import COMMANDS
from bench.config.command_line import from_arguments
from bench.launch.devices import unused_gpus
from bench.launch.launcher import resolve_here
def of(*words):
    return from_arguments(COMMANDS["run"].parse(list(words)))
unused = [unused_gpus(resolve_here(of(*words))) for words in ([], ["--gpus=all"], ["--mode=single"])]
print(json.dumps([of("--gpus=all").num_devices, of("--gpus=all", "--hosts=a:2,b:2").num_devices, *unused]))
"""


def test_all_gpus_are_taken_by_a_word_and_named_where_one_is(nvml_stub):
    every, hosts, *said = nvml_stub.run(GIVEN, count=3)
    assert (every, hosts) == (3, 4) and "1 of 3 GPUs" in said[0] and said[1:] == ["", ""]


@pytest.fixture
def runs(monkeypatch, tmp_path):
    """``runs(asked, too_large=…)``: run a config on four H100s, each run a made-up record; what was launched, and what
    was printed. too_large: a mode that does not fit into memory with more images per pass than ``most``."""
    launched = []

    def launch(config, watch=None):
        launched.append(config)
        if config.mode == launch.too_large and config.per_device_batch > launch.most:
            error = RunFailed("rank 0 raised OutOfMemoryError: CUDA out of memory")
            error.failure = {"rank": 0, "kind": "raised", "message": str(error), "traceback": ""}
            raise error
        names = ("precision", "channels_last", "fused", "plain", "accumulate")
        options = {name: getattr(config, name) for name in names} | {"program": config.label.program}
        speed = 100.0 if config.plain else 800.0
        made = records.record(config.mode, speed, config.num_devices, "cuda", config.per_device_batch, **options)
        folder = records.store(tmp_path / str(len(list(tmp_path.iterdir()))), [made])
        return next(folder.rglob("record.json"))

    def run(asked: RunConfig, capsys, too_large: str = "", most: int = 0) -> tuple[list[RunConfig], str]:
        launch.too_large, launch.most = too_large, most
        monkeypatch.setattr(command, "from_arguments", lambda args: asked)
        monkeypatch.setattr(command, "resolve_here", lambda each: resolve(each, "cuda", 16, (9, 0), 79.6))
        monkeypatch.setattr(command, "launch", launch)
        monkeypatch.setattr(command, "device_notes", lambda asked: [])
        assert command.run(None) == 0
        return launched, in_one_line(capsys.readouterr().out)

    return run


def test_with_baselines_the_same_mode_runs_plain_too(runs, capsys):
    """Beside the two that a CPU's run has; the label says which it is. What was given is kept in it."""
    asked = RunConfig(mode="ddp", num_devices=4, baselines=True, image_size=64, per_device_batch=32)
    launched, text = runs(asked, capsys)
    assert [each.mode for each in launched] == ["ddp", "single", "independent", "ddp"]
    assert [each.precision for each in launched] == ["bf16", "bf16", "bf16", "fp32"]
    first, last = launched[0], launched[-1]
    assert last.plain and last.per_device_batch == 32 and last.image_size == first.image_size == 64
    assert not (last.channels_last or last.cudnn_benchmark or last.fused or last.baselines)
    assert "ddp plain" in text and "BASELINES=1" in text and "TORCH_DEFAULTS=1" in text
    assert "0.12" in text  # 100 images per second instead of 800


@pytest.mark.parametrize(
    ("asked", "modes"),
    [
        ({"num_devices": 4}, ["ddp"]),
        ({"mode": "single", "baselines": True}, ["single", "single"]),
        ({"num_devices": 4, "plain": True, "baselines": True}, ["ddp", "single", "independent"]),
        ({"num_devices": 2, "baselines": True, "epochs": 1, "data": "digits"}, ["ddp"]),
    ],
)
def test_nothing_more_is_run_than_was_asked_for(runs, capsys, asked, modes):
    launched, _ = runs(RunConfig(**asked), capsys)
    assert [each.mode for each in launched] == modes


def test_a_baseline_that_does_not_fit_takes_its_step_in_passes_or_is_left_out(runs, capsys):
    """single gets the whole global batch on one GPU."""
    launched, text = runs(RunConfig(num_devices=4, baselines=True), capsys, too_large="single")
    assert len(launched) == 5 and [each.per_device_batch for each in launched[1:3]] == [1024, 256]
    assert "left out: single" in text and "1024 images" in text and "ddp plain" in text and "independent" in text
    launched.clear()
    launched, text = runs(RunConfig(num_devices=4, baselines=True), capsys, too_large="single", most=256)
    assert [(each.per_device_batch, each.accumulate) for each in launched[1:3]] == [(1024, 1), (256, 4)]
    assert "in 4 passes of 256" in text and "left out" not in text
