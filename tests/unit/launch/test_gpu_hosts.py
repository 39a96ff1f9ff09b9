"""Machines with GPUs that cannot be used as they are: what is said before anything starts, and what is done instead.

Each row of the table in tutorials/manual/where_it_runs.md is one here, by its name, on the made-up NVIDIA driver of
tests/stubs. The installed torch is made up where a row is about it: a folder with its version.py and its library.
"""

import re
import tempfile
from pathlib import Path

import pytest

from bench.launch import devices
from bench.measure import nvml
from tests.runs import ROOT

pytestmark = pytest.mark.slow

ASK = """
import dataclasses, json, pathlib, sys
from bench.cli.actions import doctor
from bench.config.options import RunConfig
from bench.errors import UserError
from bench.launch import devices
from bench.measure import nvml
folder = pathlib.Path({folder!r})
sys.path.insert(0, str(folder))  # its torch, where it has one
nvml.DEVICE_FILES = folder / "dev"
devices.AMD = folder / "dev" / "kfd"
nvml.WSL = folder / "wsl"
asked = RunConfig(model="resnet18", **{given!r})
try:
    device = devices.choose_device(asked)
    config = dataclasses.replace(asked, device=device)
    words, variables = devices.remarks(asked), devices.device_variables(config)
    said = [device, " ".join([*words, *([str(variables)] if variables or not words else [])])]
except UserError as error:
    said = ["refused", str(error)]
print(json.dumps([*said, doctor.find_problems(nvml.visible_gpus(), {{"gpus": 0}})]))
"""

TORCH = ("2.14.1+cu130", "13.0", "sm_75 sm_90 sm_120")


@pytest.fixture
def asked(nvml_stub, tmp_path):
    """``asked(given, …)``: the device that these options get, and what is said; "refused" and the line where they get
    none; the doctor's problems. torch: (version, CUDA's, architectures) of the one installed; rocm: what it says of
    ROCm. file, amd: whether there is a GPU's device file, of NVIDIA or of AMD. wsl: whether Windows has put the
    driver's libraries there."""

    def ask(given=None, torch=TORCH, file=True, rocm=None, amd=False, wsl=False, **stub) -> list:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "dev").mkdir()
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
        code = ASK.format(folder=str(folder), given={"mode": "ddp", "num_devices": 2} | (given or {}))
        got, words, problems = nvml_stub.run(code, **{"name": "H100"} | stub)
        words, *problems = (each.replace(str(folder / "wsl"), str(nvml.WSL)) for each in (words, *problems))
        return got, words, problems

    return ask


CPU, GPU, REFUSED = "cpu", "cuda", "refused"
OLD = {"driver": "old", "cuda": 11040}  # R470
AMD = {"driver": "none", "file": False, "amd": True}
ONE, SLICE = {"mode": "single", "num_devices": 1}, "MIG-000000e1-0000-0000-0000-000000000000"
# The first words of a row of the table -> what the machine is, and what comes of it.
HOSTS = {
    "no NVIDIA driver": [
        ({"driver": "none", "file": False}, CPU, r"^{}$"),
        ({"driver": "none", "file": False, "torch": ("2.14.1+cpu", None, "")}, CPU, r"^{}$"),
    ],
    "an AMD GPU": [
        (AMD | {"rocm": "7.0.1"}, REFUSED, r"AMD GPUs \(ROCm\) are not supported, and torch .*ROCm 7.0.1.*DEVICE=cpu"),
        (AMD | {"rocm": "7.0.1", "given": {"device": "cuda"}}, REFUSED, r"AMD GPUs \(ROCm\) are not supported"),
        (AMD | {"rocm": "7.0.1", "given": {"device": "cpu"}}, CPU, r"^{}$"),
        (AMD, CPU, r"AMD GPUs \(ROCm\) are not supported"),
        (AMD | {"given": {"device": "cuda"}}, REFUSED, r"AMD GPUs \(ROCm\) are not supported: use DEVICE=cpu"),
        ({"amd": True}, GPU, r"^{}$"),  # beside one of NVIDIA: the processor's graphics
    ],
    "the driver is not loaded": [({"init_error": 9, "file": False}, CPU, r"installed but not loaded")],
    "a container without the driver's libraries": [
        ({"driver": "none"}, REFUSED, r"There is a GPU \(.*nvidia0\).*DRIVER_CAPABILITIES=compute,utility.*DEVICE=cpu"),
        ({"driver": "none", "visible": ""}, CPU, r"^{}$"),
    ],
    "WSL2": [
        ({"driver": "none", "file": False, "wsl": True}, REFUSED, r"WSL2 has .*LD_LIBRARY_PATH=.*wsl.*DEVICE=cpu"),
        ({"driver": "none", "file": False, "wsl": True, "visible": ""}, CPU, r"^{}$"),
        ({"unsupported": ["list", "utilization", "links"]}, GPU, r"^{}$"),  # its NVML gives less
    ],
    "the driver was updated while in use": [({"init_error": 18}, REFUSED, r"restart the machine.*DEVICE=cpu")],
    "`CUDA_VISIBLE_DEVICES` is empty or `-1`": [
        ({"visible": ""}, CPU, r"hides all 4 GPUs"),
        ({"visible": "-1"}, CPU, r"hides all 4 GPUs"),
    ],
    "`CUDA_VISIBLE_DEVICES` names what is not there": [
        ({"visible": "9"}, REFUSED, r"CUDA_VISIBLE_DEVICES=9: 9 does not match one of the 4 GPUs.*DEVICE=cpu"),
        ({"visible": "GPU-ff"}, REFUSED, r"GPU-ff does not match"),
        ({"visible": "1,1"}, REFUSED, r"names a GPU twice"),
        ({"given": {"gpu_ids": "0,7"}}, REFUSED, r"GPUS=0,7: 7 does not exist"),
    ],
    "MIG": [
        ({"mig": [0, 1]}, REFUSED, r"GPU 1 \(H100\) is in MIG mode and has no slice.*DEVICE=cpu"),
        ({"mig": 1, "slices": 2}, REFUSED, r"GPU 0 .*is in MIG mode, and a run gets one slice.*GPUS=1"),
        ({"mig": 1, "slices": 2, "given": ONE}, GPU, r"'CUDA_VISIBLE_DEVICES': 'MIG-000000e0[-0-9]*'}$"),
        ({"mig": [0, 1], "slices": 2, "given": ONE | {"gpu_ids": "1,"}}, GPU, r"'MIG-000000e0-\S*1'}$"),
        ({"mig": 1, "slices": 2, "visible": SLICE, "given": ONE}, GPU, rf"'{SLICE}'}}$"),
        ({"mig": 1, "slices": 2, "visible": SLICE}, REFUSED, r"GPUS=2, but 1 visible here"),
        ({"visible": "MIG-1"}, REFUSED, r"CUDA_VISIBLE_DEVICES=MIG-1: MIG-1 is not a MIG slice of this machine"),
        ({"mig": [0, 1, 0], "given": {"gpu_ids": "0,2"}}, GPU, r"GPU-a0000000\S*,GPU-c2222222"),
    ],
    "torch without CUDA": [
        ({"torch": ("2.14.1+cpu", None, "")}, REFUSED, r"2.14.1\+cpu has no CUDA.*make setup TORCH=cu130`.*DEVICE=cpu"),
    ],
    "a driver that is too old for torch": [
        (OLD, REFUSED, r"supports CUDA 11.4 at most, and torch 2.14.1\+cu130 needs CUDA 13.0: update the driver"),
        (OLD, REFUSED, r"^((?!make setup).)*$"),  # no build is for CUDA 11
        ({"cuda": 12020, "capability": 80}, REFUSED, r"CUDA 12.2 at most.*the driver, `make setup TORCH=cu126`"),
        (OLD | {"torch": ("2.7.1+cu118", "11.8", "sm_90")}, GPU, r"^{}$"),  # of one major version: NVIDIA promises it
        ({"cuda": 13010}, GPU, r"^{}$"),
        ({"unsupported": "cuda"}, GPU, r"^{}$"),  # not known: torch will say
    ],
    "a GPU that torch has no code for": [
        ({"capability": [90, 61]}, REFUSED, r"GPU 1 \(H100\) has compute capability 6.1.*sm_75 sm_90 sm_120"),
        ({"capability": 100}, REFUSED, r"capability 10.0"),
        ({"capability": 70}, REFUSED, r"capability 7.0.*`make setup TORCH=cu126`, install"),
        ({"capability": 100, "torch": ("2.7.1", "12.6", "sm_90 compute_90")}, GPU, r"^{}$"),
        ({"capability": 61, "torch": ("2.7.1", "12.6", "")}, GPU, r"^{}$"),  # not known
    ],
    "a GPU before Ampere": [
        ({"capability": 75, "given": {"precision": "tf32"}}, REFUSED, r"PRECISION=tf32: GPU 0 .*has no TF32.*use fp32"),
        ({"capability": 75, "given": {"precision": "bf16"}}, REFUSED, r"PRECISION=bf16.*use fp16, or ALLOW_SLOW=1"),
        ({"capability": 75, "given": {"precision": "bf16", "allow_slow": True}}, GPU, r"^{}$"),
        ({"capability": 75, "given": {"precision": "fp16"}}, GPU, r"^{}$"),
        ({"capability": 90, "given": {"precision": "tf32"}}, GPU, r"^{}$"),
    ],
    "GPUs of several kinds": [
        ({"name": ["A40", "H100"]}, GPU, r"'CUDA_VISIBLE_DEVICES': 'GPU-a0000000\S*,GPU-b1111111[-0-9]*'}$"),
        ({"name": ["A40", "H100"], "visible": "3,1,0"}, GPU, r"'GPU-d3333333\S*,GPU-b1111111[-0-9]*'}$"),
    ],
    "a GPU that is full": [
        ({"used_mib": [100, 81300]}, REFUSED, r"GPU 1 \(H100\) has 0.12 GiB of memory free.*GPUS=0,2"),
        ({"used_mib": [100, 100, 81300]}, GPU, r"^{}$"),  # it is not used
    ],
    "GPUs of several kinds, one named by its number": [
        ({"name": ["A40", "H100"], "visible": "1", "given": ONE}, GPU, r"in the order of nvidia-smi \(1: H100\)"),
        ({"name": ["A40", "H100"], "visible": "GPU-b1", "given": ONE}, GPU, r"'GPU-b1111111[-0-9]*'}$"),
    ],
    "a GPU that the driver has lost": [
        ({"lost": [0, 1, 0]}, GPU, r"^{}$"),
        ({"lost": [0, 1, 0], "given": {"gpu_ids": "0,1"}}, REFUSED, r"GPUS=0,1: 1 does not exist"),
    ],
    "a GPU that does not tell its memory": [({"total_mib": [-1, 81920]}, GPU, r"^{}$")],
    "fewer GPUs than `GPUS`": [({"given": {"num_devices": 8}}, REFUSED, r"GPUS=8, but 4 visible here.*DEVICE=cpu")],
}


# Rows whose tests are elsewhere.
ELSEWHERE = {
    "a GPU of which others hold a part": "cli/test_run_on_gpus.py test_a_run_says_what_was_chosen_for_its_gpus",
    "a container that hides process ids": (
        "measure/test_memory.py test_in_a_container_the_process_figure_is_missing_with_its_reason"
    ),
    "peer to peer between GPUs is broken": "cli/test_doctor.py test_copies_from_one_gpu_to_the_next_are_tried",
    "other people's processes": (
        "measure/test_memory.py test_foreign_processes_and_a_clock_held_down_are_in_the_figures_of_a_run"
    ),
    "NVML gives no process figures": "measure/test_memory.py test_a_driver_that_refuses_process_figures_is_said_to",
    "Horovod without NCCL": (
        "launch/test_launch_commands.py test_a_horovod_without_nccl_is_refused_on_gpus_before_anything_starts"
    ),
    "two ranks on one GPU": (
        "launch/test_launch_commands.py test_ranks_on_one_gpu_are_told_to_talk_nccl_where_theirs_can"
    ),
}


def manual() -> dict[str, str]:
    """The rows of the manual's table: a machine -> what is done there, as the last column says it."""
    text = (ROOT / "tutorials" / "manual" / "where_it_runs.md").read_text()
    table = re.search(r"\| a machine with GPUs where .*?\n\n", text, re.DOTALL)[0].splitlines()[2:]
    rows = [line.removeprefix("| ").removesuffix("|").split(" | ") for line in table if line]
    return {row[0]: row[-1] for row in rows}


@pytest.mark.parametrize("row", HOSTS)
def test_what_is_said_and_done(asked, row):
    """And what the manual names as a remedy is in what is said."""
    everything = []
    for machine, device, said in HOSTS[row]:
        got, words, problems = asked(**machine)
        assert got == device, (machine, words)
        assert re.search(said, words) and "\n" not in words, (machine, words)
        if device == REFUSED and "given" not in machine and "GPUS=" not in words.split(":")[0]:
            assert any(each in words for each in problems), (machine, problems)  # the doctor says it, too
        if device == CPU and "given" not in machine:  # and has no other problem
            assert all(each in words or "Horovod" in each for each in problems), (machine, problems)
        everything.append(words)
    told = " ".join(everything)
    for remedy in re.findall("`([^`]*)`", manual()[row]):
        assert all(word in told for word in remedy.split()), (remedy, everything)


def test_the_manuals_table_has_these_rows():
    assert sorted(manual()) == sorted([*HOSTS, *ELSEWHERE])
    for place in ELSEWHERE.values():
        path, test = place.split()
        assert f"\ndef {test}(" in (ROOT / "tests" / "unit" / path).read_text()


def test_what_torch_was_compiled_for_is_what_torch_says():
    import torch

    said = getattr(torch._C, "_cuda_getArchFlags", lambda: "")() or ""
    assert devices.architectures() == tuple(said.split())


@pytest.mark.parametrize("machine", [{}, {"driver": "none", "file": False}])
def test_a_torch_that_is_too_old_is_one_line(asked, machine):
    """Without a GPU, too."""
    got, words, problems = asked(**machine, torch=("2.6.0+cu124", "12.4", "sm_90"))
    assert got == REFUSED and words.startswith("torch 2.6.0+cu124 is installed, but 2.7 or newer"), words
    assert words in problems
