"""Part A3: every mode on the GPUs of this machine, its options and timeline, and trainings.

On one GPU a mode of several processes has one rank, which only shows that its code runs.
"""

import tempfile
from pathlib import Path

from bench.config.fields import option_value
from bench.config.modes import MODES
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import Answer, Part
from bench.proof.gpu_check.ground import HOROVOD, SHORT, TWO_GPUS

PART = Part("A3", "modes and training: every mode on all GPUs, options of the engines, whole trainings")
RUN_S = 15
IMAGES, SIDE = 400, 256  # photographs per class, and their size
PHOTOGRAPHS = {"epochs": 2, "image_size": 128, "workers": 16, "warmup_steps": 1, "model": "resnet18", "decode": "auto"}
ALONE = ("dp", "independent")  # on one device they are single


def run_of(mode: str, *lanes: str, **options):
    """A check of a mode's run on all GPUs: clocks, memory, equal replicas where they should be, and lanes of its
    timeline."""

    def run(ground):
        record = ground.run(mode, 1 if MODES[mode].max_devices == 1 else ground.num_gpus, **options)
        info = MODES[mode]
        alike = record.config.sync and not info.baseline and info.same_update
        logs = "".join(path.read_text(errors="replace") for path in Path(record.folder).glob("rank*.log"))
        return answers.both(
            answers.speed(record),
            answers.equal_replicas(record) if alike else Answer(True),
            answers.strides(logs),
            answers.lanes(record, *lanes) if lanes else Answer(True),
        )

    return run


def needs_of(mode: str, options: dict) -> list[str]:
    of_two = mode in ALONE or (MODES[mode].needs and options.keys() & MODES[mode].knobs.keys())  # Horovod sends nothing
    needs = {HOROVOD: MODES[mode].needs, TWO_GPUS: of_two, SHORT: options.get("precision") in ("tf32", "bf16")}
    return [need for need, needed in needs.items() if needed]


def add(part: Part, mode: str, **options) -> None:
    """A run as a check; its name is the mode and the options."""
    name = " ".join([mode, *(f"{option}={option_value(value)}" for option, value in options.items())])
    part.add(name, f"Does {name} run on all GPUs, with equal replicas and the right clocks and memory?",
             run_of(mode, **options), RUN_S, *needs_of(mode, options))  # fmt: skip


OWN = [mode for mode in MODES if not MODES[mode].on_request]  # the others are part A4
for each in OWN:
    if not MODES[each].max_devices:  # one of a single device is part A2
        add(PART, each, plain=False)


@PART.check(RUN_S, TWO_GPUS)
def fullest(ground):
    """Is device 0 the fullest under dp, without the data that only it has?"""
    return answers.fullest(ground.run("dp", ground.num_gpus))


@PART.check(90, TWO_GPUS)
def verify(ground):
    """Do all modes compute the same update across two GPUs?"""
    code, said = ground.command(["-m", "bench", "verify", "--gpus", "2", "--device", "cuda"], 300)
    return Answer(code == 0, {"verify": said.strip().rpartition("\n")[2]})


def explain(part: Part, mode: str) -> None:
    """Checks of a mode's plain run with the timeline, if it trains, and of its settings that differ on GPUs."""
    info = MODES[mode]
    if not info.baseline:
        part.add(f"profile of {mode}", f"Does {mode} run plain, with a compute lane in the timeline of a step?",
                 run_of(mode, "phase", "compute", profile=True), RUN_S, *needs_of(mode, {}))  # fmt: skip
    for knobs in info.on_gpu:
        add(part, mode, **knobs)


for each in OWN:
    explain(PART, each)
add(PART, "ddp", precision="fp16", accumulate=2)
add(PART, "ddp", loss_guard=10.0, watch=True)


@PART.check(60)
def photographs(ground):
    """Does a training on JPEGs decode on the GPU where it can, validate, keep checkpoints, and resume for an epoch?"""
    import torch

    from bench.workload.images import decode

    with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
        write_photographs(Path(folder))
        options = PHOTOGRAPHS | {"data": f"imagefolder:{folder}", "per_device_batch": 32}
        options |= {"data_dir": f"{folder}/cache"}
        first = ground.run("ddp", **options)
        again = ground.run("ddp", **options | {"epochs": 3, "resume": first.folder})
    for checkpoint in (path for record in (first, again) for path in Path(record.folder).glob("*.pt")):
        checkpoint.unlink()  # records are committed, weights are not
    found = [row["epoch"] for record in (first, again) for row in record.epochs]
    decoder, on_cpu = first.samples[0].facts.get("decoder", ""), ground.device == "cpu"
    why = "no GPU is used" if on_cpu else decode.why_not(torch.device("cuda", 0))
    figures = {"epochs": str(found), "top1": again.top1, "examples/s": first.throughput, "decoder": decoder, "why": why}
    on_gpu = bool(why) or "GPU" in decoder
    whole = again.epochs[-1]["epoch"] == 3 and again.epochs[-1]["images"] == 2 * (IMAGES // 10)
    return Answer(whole and on_gpu, figures)


def write_photographs(folder: Path) -> None:
    """JPEGs of two classes, brighter on the left or on the right: IMAGES of each to train, a tenth to validate."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, count in {"train": IMAGES, "val": IMAGES // 10}.items():
        for label, (left, right) in {"left": (160, 40), "right": (40, 160)}.items():
            (below := folder / part / label).mkdir(parents=True)
            light = np.linspace(left, right, SIDE)[None, :, None]
            for number in range(count):
                noise = np.kron(rng.uniform(-40, 40, (8, 8, 3)), np.ones((SIDE // 8, SIDE // 8, 1)))
                pixels = np.clip(light + noise + 40, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(below / f"{number:04}.jpg", quality=90)
