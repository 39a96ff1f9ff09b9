"""What cannot be done is refused in one line: exit code 2, the option or value named, a way on, no path of the machine.

Each line of REQUESTS is a command line and, after the bar, what its refusal must name. PROFILED: a run with a profile.
"""

import contextlib
import functools
import io
import os
import re
import tempfile
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.cli import ALIASES, COMMANDS, GONE, OF_MAKE, RENAMED, all_commands
from bench.config.combined import RENAMED as OLD_OPTIONS
from bench.config.command_line import from_arguments
from bench.config.fields import base_type, flag_of, variable_of
from bench.config.modes import MODES
from bench.config.options import FIELDS
from bench.config.resolve import resolve
from bench.errors import UserError
from bench.measure import cgroup
from tests import profiles
from tests.runs import ROOT, TINY
from tests.unit.config.test_options import OWN

EVERY = {command.name: command for command in all_commands()}
NAMES = {*EVERY, *COMMANDS, *ALIASES, *RENAMED, *GONE, *(line.name for line in OF_MAKE)}
WAY_ON = re.compile(
    r"\b(?:use|give|write|choose|add|name|run|see|set|leave|needs?|take|start|as in|did you mean|or less|or more|one of"
    r"|at least|at most|above|below|from|is not|has no|option of|exclude|only|belongs? to|must|without|with)\b"
    r"|`(?:bench|make) "
)
THIS_MACHINE = [str(ROOT), tempfile.gettempdir(), str(Path.home()) + os.sep, "site-packages", "Traceback", '.py", line']

REQUESTS = """
--local-rank=1 run | --local-rank=1 torchrun --use-env
 | command help
fly | fly
selfbench | selfbench tests.validation.overhead
clean | clean make
compair --gpus=2 | compair compare
install | install horovod workload imagenet
run 8 | 8
run --gpus | --gpus
run --image-sise=8 | --image-sise IMAGE_SISE= --image-size IMAGE_SIZE=
compare --gpu 2 | --gpu GPU= --gpus GPUS=
diff --bounds=5 | --bounds BOUND=
run --modl=x | --modl --model MODEL= --mode MODE=
run --arch resnet50 | ARCH= MODEL= --model
compare --output_dir=x | OUT= --out
run -b 256 | -b BATCH=
doctor --gpus=2 | --gpus
run --device cpu --gpus all | GPUS=all GPUS=2
run --gpus=, | GPUS=,
run --gpus=MIG-1 | GPUS=MIG-1
run --gpus=0,1 --device=cpu | DEVICE=cpu GPUS=2
run --gpus=0,1 --share-gpu=1 | CUDA_VISIBLE_DEVICES
run --mode single --gpus 2 | MODE=single GPUS=2
run --device cpu --gpus 2 --batch 1000 | BATCH=1000 BATCH=718 1437
run --device cpu --gpus 50 | BATCH=32 1437
run --device cpu --precision tf32 | PRECISION=tf32
run --device cpu --cudnn-benchmark | CUDNN_BENCHMARK=1
run --device cpu --mode horovod --async-completion | ASYNC_COMPLETION=1
run --device cpu --mode ddp --numa-binding | NUMA_BINDING=1
run --mode ddp --numa-binding --launcher spawn | NUMA_BINDING LAUNCHER=torchrun
run --device cpu --replicas 1 | REPLICAS=1 EPOCHS
run --mode=ddp --launcher=mpirun | LAUNCHER=mpirun MODE=ddp torchrun
run --dist-url=tcp://127.0.0.1:port | DIST_URL=tcp://127.0.0.1:port
run --dist-url=tcp://127.0.0.1:0 | DIST_URL=tcp://127.0.0.1:0
run --mode=horovod --dist-url=tcp://127.0.0.1:29500 | DIST_URL MODE=horovod
run --dist-url=file:///x --launcher=torchrun | DIST_URL LAUNCHER=spawn
run --mode=dp --share-gpu=1 | SHARE_GPU=1 MODE=dp
run --data=synthetic --workers=2 | DATA=synthetic WORKERS
run --inject=explode:0:1 | INJECT=explode:0:1
run --inject=kill:1:1 --gpus=1 | INJECT=kill:1:1 GPUS
run --inject=raise:1:0 --mode=dp --gpus=2 | INJECT=raise:1:0
run --inject=kill:0:1,hang:0:2 | INJECT=kill:0:1,hang:0:2
run --snapshots=1;2 | SNAPSHOTS=1;2
run --seed=18446744073709551616 | SEED=18446744073709551616
run --lr-warmup=5x | LR_WARMUP=5x
run --lr-warmup=1e | LR_WARMUP=1e EPOCHS
run --schedule=linear | SCHEDULE=linear cosine
run --schedule=step:30:0 | SCHEDULE=step:30:0
run --compile=fast | COMPILE=fast reduce-overhead
run --data imagenet | DATA=imagenet digits
run --data=digits:/x | DATA=digits:/x DATA_DIR
run --data=synthetic --epochs=1 --target=0.9 | DATA=synthetic TARGET DATA=digits
run --data=synthetic --augment=1 | DATA=synthetic AUGMENT
run --data=digits --skip-bad=1 | DATA=digits SKIP_BAD
run --data=digits --decode=auto | DECODE
run --data=synthetic --decode=cuda | DECODE
run --schedule=constant:3 | SCHEDULE=constant:3
run --schedule=cosine:3:0.5 | SCHEDULE=cosine:3:0.5
run --allow-pickle=1 | ALLOW_PICKLE=1
run --pretrained=torchvision --allow-pickle=1 | ALLOW_PICKLE=1
run --optimizer=adam --momentum=0.5 | MOMENTUM=0.5 OPTIMIZER=adam
run --evaluate=1 | EVALUATE=1 RESUME PRETRAINED
run --evaluate=1 --resume=x --epochs=1 | EVALUATE=1 EPOCHS
run --resume=x | RESUME EPOCHS
run --resume=x --pretrained=y --epochs=1 | RESUME PRETRAINED
run --bn-momentum=0.01 --norm=group | BN_MOMENTUM NORM=group NORM=batch
run --ema=0.9 | EMA EPOCHS
run --ema=1.0 --epochs=1 | EMA=1
run --swa=3 --epochs=2 | SWA=3 EPOCHS=2
run --keep-checkpoints=best --epochs=2 | KEEP_CHECKPOINTS=best all
run --target=0.9 | TARGET EPOCHS
run --target=98 --epochs=1 | TARGET=98 0.98
run --checkpoint=0 --checkpoint-steps=5 --epochs=1 | CHECKPOINT=0 CHECKPOINT_STEPS
run --copy-to=/a/folder | COPY_TO=/a/folder s3://
run --mode=independent --epochs=5 | MODE=independent EPOCHS
run --inject=no-exchange --epochs=1 | INJECT=no-exchange EPOCHS
run --inject=no-exchange --mode=fsdp | INJECT=no-exchange MODE=ddp
run --inject=gradient-sum --mode=ddp --gpus=2 --epochs=1 --resume=x | INJECT=gradient-sum RESUME=x
run --inject=gradient-sum --mode=zero1 --gpus=2 | INJECT=gradient-sum MODE=ddp
run --mode=dp --norm=sync | MODE=dp NORM=sync ddp horovod
run --mode=dp --compile=1 | MODE=dp COMPILE=1 ddp
run --mode=fsdp --param-dtype=bf16 --precision=fp32 | PARAM_DTYPE=bf16 PRECISION=fp32
run --mode=ddp --param-dtype=bf16 | PARAM_DTYPE MODE=fsdp
run --mode=fsdp --epochs=1 --ema=0.9 | MODE=fsdp EMA ddp
run --mode=ddp --reshard-after-forward=0 | RESHARD_AFTER_FORWARD MODE=fsdp
run --mode=local --epochs=2 --swa=1 | MODE=local SWA ddp
run --mode dp --bucket-cap-mb 5 | BUCKET_CAP_MB=5.0 MODE=ddp zero1 dp
run --mode horovod --compression bf16 | MODE=horovod COMPRESSION=bf16
run --mode=ddp --overlap=0 --compression=fp16 | OVERLAP=0 COMPRESSION=fp16
run --precision=fp16 --compression=powersgd | COMPRESSION=powersgd PRECISION=bf16
run --activation-checkpointing=1 --compile=1 | ACTIVATION_CHECKPOINTING COMPILE
run --gradient-checkpointing=1 | ACTIVATION_CHECKPOINTING
run --mode=horovod --adasum=1 --gpus=3 --device=cpu | ADASUM=1
run --mode=horovod --adasum=1 --gpus=2 --clip-norm=1 | ADASUM=1 CLIP_NORM
run --mode=horovod --adasum=1 --launcher=horovodrun | ADASUM=1 LAUNCHER=mpirun
run --probe={"predcit":{}} | PROBE=
run --hosts=node1:2,node1:2 | node1
run --hosts=node1:0 | HOSTS=node1:0
run --hosts=node1,,node2 | HOSTS=node1,,node2
run --hosts=no/such/file | HOSTS=no/such/file
run --hosts=node1:2,node2:2 --gpus=0,1 | HOSTS=node1:2,node2:2 GPUS=0,1
run --hosts=-oProxyCommand=touch:1 | HOSTS=-oProxyCommand=touch:1
run --hosts=slurm | HOSTS=slurm SLURM_JOB_NODELIST
run --hosts=node1:2,node2:2 --gpus=3 | GPUS=1, 2, 4
run --hosts=node1:2,node2:2 --mode=dp --gpus=4 | GPUS=2 node1
run --hosts=node1:2,node2:2 --launcher=spawn | LAUNCHER=spawn torchrun
run --hosts=node1:2,node2:2 --share-gpu=1 | SHARE_GPU=1
run --hosts=node1:2,node2:2 --dist-url=tcp://node2:29500 | DIST_URL=tcp://node2:29500 tcp://node1:PORT
run --hosts=node1:2,node2:2 --remote=ssh_node1 | REMOTE=ssh_node1 {host}
run --iface=eth0 | IFACE HOSTS
run --batch=maximum | BATCH=maximum
run --batch=max --steps=0 --memory-gib=1 | STEPS=0
run --batch=max --device=cpu | MEMORY_GIB=1
run --batch=max --device=cpu --memory-gib=900000 | MEMORY_GIB=900000
run --batch=max --device=cpu --memory-gib=1 --epochs=1 --ema=0.9 | EMA
compare --rounds many | ROUNDS=many
compare --replay magic | REPLAY=magic dp-workers
compare --strict perhaps | STRICT=perhaps
compare --device cpu --epochs 2 | EPOCHS
compare --mode horovod --device cpu | MODE
compare --rounds=auto --quick | ROUNDS=auto QUICK=1
compare --max-minutes=5 | MAX_MINUTES ROUNDS=auto
compare scaling --rounds=auto | ROUNDS=auto compare sweep
compare scaling --gpus 2 | GPUS
compare scaling --batch=max --device=cpu --memory-gib=1 --max-gpus=3 | divisible [1, 2, 3]
compare accuracy --seeds=auto | SEEDS=auto
compare accuracy --batch=max --memory-gib=1 | compare accuracy
sweep --device cpu --mode independent | MODE=independent MODE=single
sweep --device cpu --mode single --warmup 0 | WARMUP=0
sweep --device cpu --batch 8,many | BATCH=many
sweep --device cpu --batch 8,0 | BATCH=0
sweep --device cpu --modes ddp,dpp | MODE=dpp
sweep --mode ddp --modes horovod | MODE=ddp MODES=horovod
sweep --device cpu --modes ddp,zero1 --prefetch-blocks 1,2 | PREFETCH_BLOCKS=1 MODE=fsdp
sweep --device cpu --gpus 0,1 | GPUS=0,1 CUDA_VISIBLE_DEVICES=0,1
sweep --device cpu --epochs 1,2 | EPOCHS
sweep --device cpu --model resnet18,gpt | images tokens DATA
sweep --batch 1,2,3,4,5,6,7,8,9 --lr 1,2,3,4,5,6,7,8 --quick | BATCH LR 72 64 144
run --batch 8,16 | BATCH=8,16
mistake demo | NAME=
mistake unsynced-init --gpus 1 | GPUS=1
mistake unsynced-init --device cpu --replicas 0 | REPLICAS=0
predict mode --price=free | PRICE=free
predict mode --link=fast,1ms | LINK=fast,1ms
predict mode --link=1gbit,1ms --devices=1 | DEVICES=1
predict mode --devices=8 | DEVICES=8 LINK
predict mode --records=/nowhere | /nowhere
predict mode --records=. --model=resnet18 | MODEL RECORDS=.
predict mode --gpus=1 --rounds=2 | GPUS=1
predict memory --batch=max | BATCH=max
predict memory --model=resnet19 --memory-gib=16 | MODEL=resnet19 resnet18
predict memory --model=TINY --mode=ddp --device=cuda | DEVICE=cuda
predict memory --model=shufflenet_v2_x0_5 --image-size=32 --device=cpu --gpus=2 --modes=single,dp --batch=1 | BATCH=2
predict step PROFILED | LINK
predict step PROFILED --link=100mbit,1ms --network=. | LINK
predict step PROFILED --link=100mbit | LINK=100mbit
predict step PROFILED --link=100mbit,1ms --per-node=8 | LINK_INSIDE
predict step PROFILED --link=100mbit,1ms --link-inside=1gbit,1us | PER_NODE
predict step PROFILED --link=100mbit,1ms --per-node=8 --link-inside=1gbit | LINK_INSIDE=1gbit
predict step PROFILED --network=/nowhere | NETWORK=/nowhere
predict step PROFILED --link=100mbit,1ms --devices=0 | DEVICES=0
predict step PROFILED --link=100mbit,1ms --devices=2,many | DEVICES=many
predict step PROFILED --link=100mbit,1ms --modes=dp | MODES=dp
predict step PROFILED --link=100mbit,1ms --modes=ddp --cycle-time-ms=5 | CYCLE_TIME_MS
predict step PROFILED --link=100mbit,1ms --compression=powersgd | COMPRESSION=powersgd
predict step PROFILED --link=100mbit,1ms --points=. | OUT
predict step PROFILED --link=100mbit,1ms --points=/nowhere --out=out | /nowhere
predict step nowhere --link=100mbit,1ms | nowhere
cluster emulate --mode=ddp | COMPUTE=
cluster emulate --mode=single --compute=PROFILED | MODE=single
cluster emulate --mode=ddp --compute=/nowhere | /nowhere
cluster emulate --mode=ddp --compute=PROFILED --link=fast | LINK=fast
cluster emulate --mode=ddp --compute=PROFILED --link=25gbit | 25000 Mbit/s
cluster emulate --mode=ddp --compute=PROFILED --dilate=0.5 | DILATE=0.5
cluster emulate --mode=ddp --compute=PROFILED --nodes=1 | NODES=1
cluster emulate --mode=ddp --compute=PROFILED --cycle-time-ms=5 | CYCLE_TIME_MS=5.0
report nowhere --format=plots | nowhere
report --format=xls | FORMAT=xls
report --format=plots --out=pictures | FORMAT=plots OUT=pictures
report --by=country | BY=country
report --by=machine --format=csv | BY FORMAT
diff | A=
diff nowhere nowhere | nowhere
notebooks open --port=65536 | 65535
install horovod --jobs 0 | JOBS=0
""".strip().splitlines()


@pytest.fixture(autouse=True)
def no_variables_of_before(monkeypatch):
    monkeypatch.setenv("BENCH_SEEN", "")
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)


@functools.cache
def flags() -> set[str]:
    return {name for command in EVERY.values() for name in command.parser().names()}


def is_clear(line: str) -> str:
    """A refusal without its newline; it is an error where a person could do nothing with it."""
    assert line.startswith("bench: ") and line.count("\n") == 1 and line.endswith("\n"), line
    text = line.removeprefix("bench: ").removesuffix("\n")
    assert text.isprintable() and len(text) < 1000 and not [word for word in THIS_MACHINE if word in text], text
    words = {*re.findall(r"[A-Za-z][\w-]*", text)}
    options = {name.replace("-", "_").upper() for name in flags()}
    named = words & (options | NAMES) or flags() & {*re.findall(r"--([a-z][\w-]*)", text)}
    assert named, f"names no option and no command: {text}"
    assert WAY_ON.search(text), f"says no way on: {text}"
    return text


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    return str(profiles.record(tmp_path_factory.mktemp("profiled")))


@pytest.mark.parametrize("row", REQUESTS)
def test_a_request_that_cannot_be_met_is_refused_in_a_line_that_names_it(row, profiled, tmp_path, monkeypatch, capsys):
    line, _, named = row.replace("PROFILED", profiled).replace("TINY", TINY["model"]).partition(" | ")
    monkeypatch.setattr(cgroup, "memory_limit", lambda: None)
    monkeypatch.chdir(tmp_path)
    try:
        code = main(line.split())
    except SystemExit as end:
        code = end.code
    said = is_clear(capsys.readouterr().err)
    missing = [word for word in named.split() if word not in said]
    assert code == 2 and named and not missing and not list(tmp_path.iterdir()), said


def refusal_of(command: str, *words: str) -> str:
    """The clear line with which the options of a command are refused; empty if they are taken."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            args = EVERY[command].parse(list(words))
            if EVERY[command].options:
                resolve(from_arguments(args), "cpu", 2)
    except UserError as error:
        return is_clear(f"bench: {error}\n")
    except SystemExit as end:
        assert end.code == 2
        return is_clear(said.getvalue())
    return ""


NUMBERS = [f for f in OWN if base_type(f) in (int, float) and f.name != "lr_warmup_steps"]


def wrong_values(field) -> list[str]:
    if field.metadata["choices"]:
        return ["nonsense"]
    if base_type(field) is bool:
        return [] if field.name == "compile" else ["maybe"]
    if field not in NUMBERS:
        return []
    low = field.metadata["min"]
    below = low - 1 if low is not None else field.metadata["above"]
    return ["x", "", "0x10", str(below), *(["2.5"] if base_type(field) is int else ["nan", "-inf", "1e999"])]


@pytest.mark.parametrize("field", OWN, ids=flag_of)
def test_a_value_that_is_none_of_its_options_type_is_refused_with_the_option_and_the_value(field):
    mode = next((mode for mode, info in MODES.items() if field.name in info.knobs), "ddp")  # one that has such a thing
    for value in wrong_values(field):
        said = refusal_of("run", *(["--mode", mode] if field.name != "mode" else []), f"{flag_of(field)}={value}")
        assert f"{variable_of(field)}={value}" in said or f"{variable_of(field)}={float(value)}" in said, value
        assert all(choice in said for choice in field.metadata["choices"] or () if choice != "none")


@pytest.mark.parametrize("name", EVERY)
def test_whatever_a_commands_own_options_are_given(name):
    """Taken, or refused in a clear line; and an option of a run that it does not take is unknown to it."""
    command = EVERY[name]
    known = command.parser().names()
    for flag in command.flags:
        for value in ("nonsense", "-1", "", "1e999"):
            refusal_of(name, f"{flag}={value}")
    for flag in {flag_of(field) for field in FIELDS.values()} - {f"--{each}" for each in known}:
        assert flag in refusal_of(name, f"{flag}=1")
    renamed = {f"--{old}": f"--{new}" for old, new in OLD_OPTIONS.items() if name == "run"}
    for flag, successor in (command.gone | renamed).items():
        said, new = refusal_of(name, f"{flag}=1"), successor.partition("=")[0]
        assert flag in said and new in said and new[2:] in known and flag[2:] not in known
