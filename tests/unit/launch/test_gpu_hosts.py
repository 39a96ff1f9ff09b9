"""Machines with GPUs that cannot be used as they are: what is said before anything starts, and what is done instead.

Each row of the table in tutorials/manual/where_it_runs.md is one here, by its name, on the made-up NVIDIA driver of
tests/stubs. The installed torch is made up where a row is about it: a folder with its version.py and its library.
"""

import json
import re
from pathlib import Path

import pytest

from bench.launch import devices
from bench.measure import nvml
from tests.runs import ROOT

pytestmark = pytest.mark.slow

# Each machine in a copy of this process, which has loaded no driver yet.
ASK = """
import dataclasses, json, os, pathlib, sys
from bench.cli.actions import doctor
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.launch import devices
from bench.measure import nvml
def ask(folder, given, environment):
    sys.path.insert(0, folder)  # its torch
    folder = pathlib.Path(folder)
    os.environ.update(environment)
    nvml.DEVICE_FILES, devices.AMD, nvml.WSL = folder / "dev", folder / "dev" / "kfd", folder / "wsl"
    asked = RunConfig(model="resnet18", **given)
    try:
        device = devices.choose_device(asked)
        words = devices.device_notes(asked)
        variables = devices.device_variables(dataclasses.replace(asked, device=device))
        said = [device, " ".join([*words, *variables.values()])]
    except UserError as error:
        said = ["refused", str(error)]
    (folder / "said.json").write_text(json.dumps([*said, doctor.find_problems(nvml.visible_gpus(), {"gpus": 0})]))
for machine in MACHINES:
    if not os.fork():
        ask(*machine)
        os._exit(0)
    assert os.wait()[1] == 0, machine
print("null")
"""

TORCH = ("2.14.1+cu130", "13.0", "sm_75 sm_90 sm_120")
CPU, GPU, REFUSED = "cpu", "cuda", "refused"
OLD = {"driver": "old", "cuda": 11040}  # R470
AMD = {"driver": "none", "file": False, "amd": True}
NONE = {"driver": "none", "file": False}
WSL = NONE | {"wsl": True}
ONE, SLICE = {"mode": "single", "num_devices": 1}, "MIG-000000e1-0000-0000-0000-000000000000"
BF16 = {"precision": "bf16"}
A40 = {"name": ["A40", "H100"]}
# The first words of a row of the table -> what the machine is (as in ``made``), what comes of it, and what is named
# then; "" where nothing is said and no variable is set.
HOSTS = {
    "no NVIDIA driver": [(NONE, CPU, "")],
    "an AMD GPU": [
        (AMD | {"rocm": "7.0.1"}, REFUSED, "AMD .*ROCm 7.0.1.*DEVICE=cpu"),
        (AMD, CPU, "AMD"),
        (AMD | {"given": {"device": "cuda"}}, REFUSED, "AMD .*DEVICE=cpu"),
        ({"amd": True}, GPU, ""),  # beside one of NVIDIA: the processor's graphics
    ],
    "the driver is not loaded": [({"init_error": 9, "file": False}, CPU, "driver")],
    "a container without the driver's libraries": [
        ({"driver": "none"}, REFUSED, "nvidia0.*DRIVER_CAPABILITIES=compute,utility.*DEVICE=cpu"),
    ],
    "WSL2": [
        (WSL, REFUSED, "WSL2 .*LD_LIBRARY_PATH=.*wsl.*DEVICE=cpu"),
        (WSL | {"visible": ""}, CPU, ""),
        ({"unsupported": ["list", "utilization", "links"]}, GPU, ""),  # its NVML gives less
    ],
    "the driver was updated while in use": [({"init_error": 18}, REFUSED, "restart.*DEVICE=cpu")],
    "`CUDA_VISIBLE_DEVICES` is empty or `-1`": [({"visible": ""}, CPU, "4 GPUs"), ({"visible": "-1"}, CPU, "4 GPUs")],
    "`CUDA_VISIBLE_DEVICES` or `GPUS=0,7` names a GPU that does not exist, or one GPU twice": [
        ({"visible": "9"}, REFUSED, "CUDA_VISIBLE_DEVICES=9.*DEVICE=cpu"),
        ({"visible": "GPU-ff"}, REFUSED, "GPU-ff"),
    ],
    "MIG": [
        ({"mig": [0, 1]}, REFUSED, r"GPU 1 \(H100\).*nvidia-smi mig -cgi.*DEVICE=cpu"),
        ({"mig": 1, "slices": 2}, REFUSED, "GPU 0 .*GPUS=1"),
        ({"mig": 1, "slices": 2, "given": ONE}, GPU, "^MIG-000000e0[-0-9]*$"),
        ({"mig": [0, 1], "slices": 2, "given": ONE | {"gpu_ids": "1,"}}, GPU, r"^MIG-000000e0-\S*1$"),
        ({"mig": 1, "slices": 2, "visible": SLICE, "given": ONE}, GPU, f"^{SLICE}$"),
        ({"visible": "MIG-1"}, REFUSED, "CUDA_VISIBLE_DEVICES=MIG-1"),
        ({"mig": [0, 1, 0], "given": {"gpu_ids": "0,2"}}, GPU, r"^GPU-a0000000\S*,GPU-c2222222"),
    ],
    "torch without CUDA": [
        ({"torch": ("2.14.1+cpu", None, "")}, REFUSED, r"2.14.1\+cpu.*make setup TORCH=cu130`.*DEVICE=cpu"),
    ],
    "a driver that is too old for torch": [
        (OLD, REFUSED, r"^((?!make setup).)*11.4 ((?!make setup).)*13.0((?!make setup).)*$"),  # none is for CUDA 11
        ({"cuda": 12020, "capability": 80}, REFUSED, "12.2.*the driver.*`make setup TORCH=cu126`"),
        (OLD | {"torch": ("2.7.1+cu118", "11.8", "sm_90")}, GPU, ""),  # of one major version: NVIDIA promises it
        ({"unsupported": "cuda"}, GPU, ""),  # not known: torch will say
    ],
    "a GPU that torch has no code for": [
        ({"capability": [90, 61]}, REFUSED, r"GPU 1 \(H100\).* 6.1.*sm_75 sm_90 sm_120"),
        ({"capability": 70}, REFUSED, "7.0.*`make setup TORCH=cu126`"),
        ({"capability": 100, "torch": ("2.7.1", "12.6", "sm_90 compute_90")}, GPU, ""),
        ({"capability": 61, "torch": ("2.7.1", "12.6", "")}, GPU, ""),  # not known
    ],
    "a GPU older than Ampere": [
        ({"capability": 75, "given": {"precision": "tf32"}}, REFUSED, "PRECISION=tf32: GPU 0 .*fp32"),
        ({"capability": 75, "given": BF16}, REFUSED, "PRECISION=bf16.*fp16.*ALLOW_SLOW=1"),
        ({"capability": 75, "given": BF16 | {"allow_slow": True}}, GPU, ""),
    ],
    "GPUs of several kinds": [
        (A40, GPU, r"^GPU-a0000000\S*,GPU-b1111111[-0-9]*$"),
        (A40 | {"visible": "3,1,0"}, GPU, r" GPU-d3333333\S*,GPU-b1111111[-0-9]*$"),
    ],
    "a GPU that is full": [
        ({"used_mib": [100, 81300]}, REFUSED, r"GPU 1 \(H100\).* 0.12 GiB.*GPUS=0,2"),
        ({"used_mib": [100, 100, 81300]}, GPU, ""),  # it is not used
    ],
    "GPUs of several kinds, one named by its number": [(A40 | {"visible": "1", "given": ONE}, GPU, "1: H100")],
    "a GPU that the driver has lost": [({"lost": [0, 1], "given": {"gpu_ids": "0,1"}}, REFUSED, "GPUS=0,1: 1")],
    "a GPU that does not report its memory": [({"total_mib": [-1, 81920]}, GPU, "")],
    "fewer GPUs than `GPUS`": [({"given": {"num_devices": 8}}, REFUSED, "GPUS=8.*4.*DEVICE=cpu")],
    # No rows of the manual.
    "GPUs by number or UUID": [
        ({"given": {"gpu_ids": "GPU-d3333333,GPU-b1"}}, GPU, r"^GPU-d3333333\S*,GPU-b1111111[-0-9]*$"),
        # nvidia-smi's numbers, also where others are hidden
        ({"given": {"gpu_ids": "3,2"}, "visible": "2,3"}, GPU, r"^GPU-d3333333\S*,GPU-c2222222[-0-9]*$"),
        ({"given": {"gpu_ids": "0,7"}}, REFUSED, r"GPUS=0,7: 7.*0 \(GPU-a0000000…\), 1 \(GPU-b1111111…\)"),
        ({"given": {"gpu_ids": "0,2"}, "visible": "2,3"}, REFUSED, r"GPUS=0,2: 0.*CUDA_VISIBLE_DEVICES.*2 \(GPU-"),
        ({"given": {"gpu_ids": "1,GPU-b1"}}, REFUSED, "GPUS=1,GPU-b1"),
        ({"given": {"gpu_ids": "1,"}}, REFUSED, "GPUS=1,"),
        ({"given": {"gpu_ids": "0,1"}, "visible": ""}, REFUSED, "GPUS=0,1.*GPUS=2"),
    ],
    "an old torch": [  # with and without a GPU
        (machine | {"torch": ("2.6.0+cu124", "12.4", "sm_90")}, REFUSED, r"2.6.0\+cu124.*2.7") for machine in ({}, NONE)
    ],
}
# Rows whose tests are elsewhere, below tests/unit.
ELSEWHERE = {
    "other processes use a part of a GPU's memory": "cli/test_run_on_gpus.py",
    "a container that hides process ids": "measure/test_memory.py",
    "peer to peer between GPUs is broken": "cli/test_doctor.py",
    "processes of other users": "measure/test_memory.py",
    "NVML does not report the memory of processes": "measure/test_memory.py",
    "Horovod without NCCL": "launch/test_launch_commands.py",
    "two ranks on one GPU (`SHARE_GPU=1`)": "launch/test_launch_commands.py",
}


def made(folder: Path, torch=TORCH, file=True, rocm=None, amd=False, wsl=False, **_) -> Path:
    """A folder with what a machine has but for its driver. torch: (version, CUDA's, architectures). rocm: what it says
    of ROCm. file, amd: device files of NVIDIA's and AMD's GPUs. wsl: the driver's libraries from Windows."""
    (folder / "dev").mkdir(parents=True)
    for name in ["nvidiactl", "nvidia0"] * file + ["kfd"] * amd:
        (folder / "dev" / name).touch()
    if wsl:
        (folder / "wsl").mkdir()
        (folder / "wsl" / "libnvidia-ml.so.1").touch()
    version, cuda, compiled = torch
    (folder / "torch" / "lib").mkdir(parents=True)
    (folder / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    text = f"__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {rocm!r}\n"
    (folder / "torch" / "version.py").write_text(text)
    library = folder / "torch" / "lib" / "libtorch_python.so"
    library.write_bytes(b"\x7fELF sm_1 is no list\0" + compiled.encode() + b"\0more")
    return folder


NOT_OF_THE_DRIVER = {"torch", "file", "rocm", "amd", "wsl", "given", "driver"}


@pytest.fixture(scope="module")
def said(nvml_stub, tmp_path_factory) -> dict:
    """By row: of each machine the device that a run gets, or "refused"; what is said; the doctor's problems."""
    folders, machines = {}, {}
    for row, rows in HOSTS.items():
        for machine, *_ in rows:
            folder = made(tmp_path_factory.mktemp("machine") / "root", **machine)
            folders.setdefault(row, []).append(folder)
            settings = {name: value for name, value in machine.items() if name not in NOT_OF_THE_DRIVER}
            environment = nvml_stub.environ(**{"name": "H100"} | settings)
            of_stub = {name: value for name, value in environment.items() if name.startswith(("STUB_", "CUDA_"))}
            given = {"mode": "ddp", "num_devices": 2} | machine.get("given", {})
            machines.setdefault(machine.get("driver", "new"), []).append((str(folder), given, of_stub))
    for driver, asked in machines.items():
        nvml_stub.run(f"MACHINES = {asked!r}\n{ASK}", driver=driver)
    return {row: [json.loads((each / "said.json").read_text().replace(str(each / "wsl"), str(nvml.WSL)))
                  for each in its] for row, its in folders.items()}  # fmt: skip


def manual() -> dict[str, str]:
    """The rows of the manual's table: a machine -> what is done there, as the last column says it."""
    text = (ROOT / "tutorials" / "manual" / "where_it_runs.md").read_text()
    table = re.search(r"\| problem \| .*?\n\n", text, re.DOTALL)[0].splitlines()[2:]
    rows = [line.removeprefix("| ").removesuffix("|").split(" | ") for line in table if line]
    return {row[0]: row[-1] for row in rows}


@pytest.mark.parametrize("row", HOSTS)
def test_what_is_said_and_done(said, row):
    """And what the manual names as a remedy is in what is said."""
    for (machine, device, expected), (got, words, problems) in zip(HOSTS[row], said[row], strict=True):
        assert got == device, (machine, words)
        assert re.search(expected or "^$", words) and "\n" not in words, (machine, words)
        if device == REFUSED and "given" not in machine and "GPUS=" not in words.split(":")[0]:
            assert any(each in words for each in problems), (machine, problems)  # the doctor says it, too
        if device == CPU and "given" not in machine:  # and has no other problem
            assert all(each in words or "Horovod" in each for each in problems), (machine, problems)
    told = " ".join(words for _, words, _ in said[row])
    for remedy in re.findall("`([^`]*)`", manual().get(row, "")):
        assert all(word in told for word in remedy.split()), (remedy, told)


def test_the_manuals_table_has_these_rows():
    assert sorted([*manual(), "GPUs by number or UUID", "an old torch"]) == sorted([*HOSTS, *ELSEWHERE])
    assert all((ROOT / "tests" / "unit" / file).exists() for file in ELSEWHERE.values())


def test_what_torch_was_compiled_for_is_what_torch_says():
    import torch

    said = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
    assert devices.architectures() == tuple(said.split())
