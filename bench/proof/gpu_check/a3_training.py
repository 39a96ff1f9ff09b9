"""Part A3: every mode on the GPUs of this machine, its options, its timeline, and whole trainings."""

import tempfile
from pathlib import Path

from bench.config.modes import MODES
from bench.proof.gpu_check import answers
from bench.proof.gpu_check.base import Answer, Part
from bench.proof.gpu_check.needs import HOROVOD, TWO_GPUS
from bench.studies.programs import shown

PART = Part("A3", "modes and training: every mode on all GPUs, options of the engines, whole trainings")
RUN_S = 15
IMAGES, SIDE = 400, 256  # of the photographs that are made up, over two classes
PHOTOGRAPHS = {"epochs": 2, "image_size": 128, "workers": 16, "warmup_steps": 1, "model": "resnet18"}


def run_of(mode: str, **options):
    """A check: a run of a mode on all GPUs, with its clocks, its memory and, where they should be equal, its
    replicas."""

    def run(ground):
        record = ground.run(mode, 1 if MODES[mode].max_devices == 1 else ground.num_gpus, **options)
        info, alike = MODES[mode], record.config.sync
        alike = alike and not info.baseline and info.same_update
        return answers.both(answers.speed(record), answers.equal_replicas(record) if alike else Answer(True))

    return run


def add(part: Part, mode: str, **options) -> None:
    """A run as a check of a part; its name is the mode and what is not at its default."""
    name = " ".join([mode, *(f"{option}={shown(value)}" for option, value in options.items())])
    needs = [HOROVOD] if MODES[mode].needs else []
    part.add(name, f"Does {name} run on all GPUs, with equal replicas and the right clocks and memory?",
             run_of(mode, **options), RUN_S, *needs)  # fmt: skip


OWN = [mode for mode in MODES if not MODES[mode].on_request]  # the others are part A4
for each in OWN:
    if not MODES[each].max_devices:  # one of a single device is part A2
        add(PART, each)
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


def profile_of(mode: str, *lanes: str):
    """A check: the timeline of a step of a mode on all GPUs."""
    return lambda ground: answers.lanes(
        ground.run(mode, 1 if MODES[mode].max_devices == 1 else ground.num_gpus, profile=True), "phase", *lanes
    )


def explain(part: Part, mode: str) -> None:
    """The timeline of a mode, where it trains, and its settings that are others on GPUs, as checks of a part."""
    info = MODES[mode]
    if not info.baseline:
        part.add(f"profile of {mode}", f"Has the timeline of a step of {mode} a compute lane?",
                 profile_of(mode, "compute"), RUN_S, *([HOROVOD] if info.needs else []))  # fmt: skip
    for knobs in info.on_gpu:
        add(part, mode, **knobs)


for each in OWN:
    explain(PART, each)
add(PART, "ddp", precision="fp16", accumulate=2)
add(PART, "ddp", loss_guard=10.0, watch=True)


@PART.check(60)
def photographs(ground):
    """Does a training on JPEGs with 16 loader workers validate, keep checkpoints, and resume for a third epoch?"""
    with tempfile.TemporaryDirectory(prefix="bench-gpu-check-") as folder:
        write_photographs(Path(folder))
        options = PHOTOGRAPHS | {"data": f"imagefolder:{folder}", "per_device_batch": 32}
        options |= {"data_dir": f"{folder}/cache"}
        first = ground.run("ddp", **options)
        again = ground.run("ddp", **options | {"epochs": 3, "resume": first.folder})
    for checkpoint in (path for record in (first, again) for path in Path(record.folder).glob("*.pt")):
        checkpoint.unlink()  # what is kept is committed
    found = [row["epoch"] for record in (first, again) for row in record.epochs]
    figures = {"epochs": str(found), "top1": again.top1, "examples/s": first.throughput}
    return Answer(again.epochs[-1]["epoch"] == 3 and again.epochs[-1]["images"] == 2 * (IMAGES // 10), figures)


def write_photographs(folder: Path) -> None:
    """Two classes of JPEGs, smooth random colours, brighter on the left or on the right; IMAGES to train on in each,
    a tenth of that to validate."""
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
