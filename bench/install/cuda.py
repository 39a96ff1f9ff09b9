"""The GPU side of a Horovod build: is there a GPU, and where do nvcc and NCCL come from?"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from bench.errors import UserError
from bench.measure.nvml import visible_gpus
from bench.process.tree import capture

# The parts of the CUDA toolkit that the build uses, as wheels. Before CUDA 13 the nvcc wheel held no nvcc.
TOOLKIT_WHEELS = (
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-cccl",
    "nvidia-cuda-runtime",
)
FIRST_CUDA_WITH_WHEELS = 13
INSTALLED = Path("/usr/local")  # where NVIDIA's own packages put a toolkit
TRIAL_S = 60.0  # for nvcc to say something of itself
FOR_CPU_ONLY = "for Horovod on CPUs alone run `bench install-horovod --gpu none`"


def gpu_present() -> bool:
    """Whether NVML sees a GPU; where pynvml is missing, whether the driver shows one."""
    try:
        import pynvml
    except ImportError:
        return os.path.exists("/dev/nvidia0")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    try:
        return pynvml.nvmlDeviceGetCount() > 0
    except pynvml.NVMLError:
        return False
    finally:
        pynvml.nvmlShutdown()


def wanted_kind(choice: str, torch_cuda: str | None) -> str:
    """What to build: "gloo" (CPUs) or "nccl" (GPUs; also runs on CPUs). `choice` is auto, none, nccl or here.

    auto follows the GPU, unless torch was built without CUDA: then only a CPU can train anyway.
    Raises UserError for nccl with such a torch.
    """
    if choice in ("nccl", "here") and not torch_cuda:
        raise UserError(
            "the installed torch was built without CUDA, so Horovod cannot use NCCL with it;"
            f" install one with CUDA (`make setup TORCH=cuda`), or {FOR_CPU_ONLY}"
        )
    if choice == "auto":
        return "nccl" if torch_cuda and gpu_present() else "gloo"
    return {"none": "gloo", "nccl": "nccl", "here": "nccl"}[choice]


def archs_here() -> tuple[str, ...]:
    """As in ("80", "90"); empty without a GPU."""
    found = {gpu.compute_capability.replace(".", "") for gpu in visible_gpus() if gpu.compute_capability}
    return tuple(sorted(found, key=int))


def toolkit_requirements(torch_cuda: str) -> list[str]:
    """pip requirements for the toolkit's parts at torch's CUDA version.

    >>> toolkit_requirements("13.0")[0]
    'nvidia-cuda-nvcc==13.0.*'
    """
    return [f"{name}=={torch_cuda}.*" for name in TOOLKIT_WHEELS]


def toolkit_comes_as_wheels(torch_cuda: str) -> bool:
    return int(torch_cuda.split(".")[0]) >= FIRST_CUDA_WITH_WHEELS


def arrange_toolkit(folder: Path) -> Path:
    """Make the unpacked wheels look like an installed toolkit, and return its root.

    Wheels have neither the `libcudart.so` that a linker asks for nor the `lib64` where CMake looks.
    """
    root = next((folder / "nvidia").glob("cu[0-9]*"))
    runtime = next((root / "lib").glob("libcudart.so.*"))
    (root / "lib" / "libcudart.so").symlink_to(runtime.name)
    if not (root / "lib64").exists():
        (root / "lib64").symlink_to("lib")
    return root


def system_toolkit(torch_cuda: str) -> Path | None:
    """An installed toolkit of torch's CUDA major version; None where there is none. CUDA_HOME's is taken first,
    then that of the nvcc on PATH. One without headers, as a machine that only runs CUDA has it, cannot compile."""
    major = torch_cuda.split(".")[0]
    on_path = shutil.which("nvcc")
    homes = [Path(home)] if (home := os.environ.get("CUDA_HOME")) else []
    homes += [Path(on_path).resolve().parents[1]] if on_path else []
    for home in (*homes, INSTALLED / f"cuda-{torch_cuda}", INSTALLED / "cuda"):
        if (home / "include" / "cuda_runtime.h").exists() and _nvcc_major(home / "bin" / "nvcc") == major:
            return home
    return None


def no_toolkit(torch_cuda: str) -> UserError:
    return UserError(
        f"no nvcc for CUDA {torch_cuda.split('.')[0]} found, which torch here was built with (there are wheels of it"
        f" only from CUDA {FIRST_CUDA_WITH_WHEELS} on); install CUDA toolkit {torch_cuda} and set CUDA_HOME to it,"
        f" use a torch for CUDA {FIRST_CUDA_WITH_WHEELS}, or {FOR_CPU_ONLY}"
    )


def _nvcc_major(nvcc: Path) -> str:
    """The major version that this nvcc reports, or ""."""
    if not nvcc.exists():
        return ""
    text = capture([str(nvcc), "--version"], TRIAL_S).out
    found = re.search(r"release (\d+)\.", text)
    return found.group(1) if found else ""


def arrange_nccl(folder: Path) -> Path | None:
    """Headers and library of the NCCL that torch itself loads; None where it has none."""
    for entry in sys.path:
        nccl = Path(entry or ".") / "nvidia" / "nccl"
        library = nccl / "lib" / "libnccl.so.2"
        if library.exists():
            (folder / "lib").mkdir(parents=True)
            (folder / "include").symlink_to(nccl.resolve() / "include")
            (folder / "lib" / "libnccl.so").symlink_to(library.resolve())
            return folder
    return None


def arch_list(wanted: list[str], nvcc: Path) -> str:
    """The GPU generations to compile for: those of ``wanted``, as in ["80", "90"], that this nvcc has. For the highest
    of the list Horovod adds code that the driver translates for newer GPUs, so one that nvcc has not is served as well.

    Raises UserError where none of them can be served.
    """
    has = known_to(nvcc)
    wanted = wanted or has
    found = [arch for arch in wanted if arch in has or not has]
    older = [arch for arch in has if int(arch) < min(map(int, wanted))]
    if not found and not older:
        raise UserError(
            f"{nvcc} cannot compile for the GPUs that torch is for (sm_{', sm_'.join(wanted)}): install a newer CUDA "
            f"toolkit and set CUDA_HOME to it, or {FOR_CPU_ONLY}"
        )
    return ",".join(found or [max(older, key=int)])


def archs_of_torch(flags: str) -> list[str]:
    """The GPU generations that torch was compiled for.

    >>> archs_of_torch("sm_75 sm_80 sm_90a sm_100 compute_120")
    ['75', '80', '100']
    """
    return re.findall(r"\bsm_(\d+)\b", flags)


def known_to(nvcc: Path) -> list[str]:
    """The GPU generations that this nvcc compiles for, as in ["80", "90"]; empty where it does not say."""
    try:
        text = capture([str(nvcc), "--list-gpu-arch"], TRIAL_S).out
    except OSError:
        return []
    return re.findall(r"^compute_(\d+)$", text, re.MULTILINE)
