"""What `make` runs first, on a bare Python. `--venv .venv` makes an environment with the versions of requirements.lock;
`--venv none` adds what is missing to this Python (Colab, a cluster's module). Then Horovod; a machine that cannot build
it still gets the rest. Standard library only, in the syntax of Python 3.8."""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import urllib.parse
from pathlib import Path

from bench.install import torch_build
from bench.install.logged import run_logged, tail
from bench.process import tree

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).with_name("requirements.lock")
NOTEBOOKS_LOCK = Path(__file__).with_name("requirements-notebooks.lock")
NOTEBOOKS_EXTRAS = ["notebooks", "grading", "site"]  # in that lock
STATE = Path(".setup")  # the log, the lock, and the stamps of other Pythons
LOG = STATE / "setup.log"
LOCKED_PYTHONS = ((3, 11), (3, 12), (3, 13))  # of the lock
OWN_PYTHONS = ((3, 10), *LOCKED_PYTHONS)  # of the code
TRIAL_S = 60.0  # for a Python to start
ENDING_S = 30.0  # for Horovod's build to end its compilers and remove its work folder


class SetupError(Exception):
    pass


def main(argv: list[str] | None = None) -> int:
    """Set up, or with --stamp-name print where this Python's stamp is. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.install.packages")
    parser.add_argument("--venv", default=".venv", help="a folder, or none for the Python that runs this")
    parser.add_argument("--stamp", type=Path, help="the file to touch at the end")
    parser.add_argument("--stamp-name", action="store_true", help="print the path of the stamp for --venv none")
    parser.add_argument("--check", action="store_true", help="only say whether this Python is too old or too new")
    parser.add_argument("--extra", action="append", default=[], help="with none: an extra of pyproject.toml")
    parser.add_argument("--torch", default="auto", help="build: cpu, cuda (PyPI's), cu126, …; auto: by the driver")
    parser.add_argument("--notebooks", action="store_true", help="add only the course's packages")
    args = parser.parse_args(argv)
    if args.stamp_name:
        print(stamp_of_this_python())
        return 0
    try:
        if args.torch not in torch_build.CHOICES:
            raise SetupError(f"TORCH={args.torch}: choose one of {', '.join(torch_build.CHOICES)}")
        if args.torch != "auto" and args.venv == "none":
            raise SetupError("TORCH does not apply to VENV=none, which uses the installed torch")
        if args.check:
            check_python(OWN_PYTHONS if args.venv == "none" else LOCKED_PYTHONS)
        elif args.venv == "none":
            complete_this_python(args.extra + NOTEBOOKS_EXTRAS * args.notebooks)
        elif args.notebooks:
            add_notebooks(Path(args.venv))
        elif args.torch != "auto" and is_ready(Path(args.venv), args.torch, args.stamp):
            return 0
        else:
            make_venv(Path(args.venv), args.torch)
        if args.stamp:
            args.stamp.touch()
    except (SetupError, torch_build.NoBuild) as error:
        print(f"setup: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a clone that may not be written to, a full disk
        print(f"setup: {error.filename or 'writing'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: stopped; the next make continues", file=sys.stderr)
        return 130
    return 0


# --- An environment of our own ------------------------------------------------------------------------------


def is_ready(folder: Path, torch: str, stamp: Path | None) -> bool:
    """Whether an environment has this torch build and is up to date."""
    lock = LOCK.read_text()
    is_this_build = torch_build.installed(folder, lock) == torch_build.named(torch, lock)
    if stamp is None or not stamp.exists() or not is_this_build:
        return False
    return stamp.stat().st_mtime >= max(path.stat().st_mtime for path in (LOCK, ROOT / "pyproject.toml"))


def make_venv(folder: Path, torch: str = "auto") -> None:
    """torch: which build; an environment with another one is made again. Continues where it was interrupted."""
    check_python(LOCKED_PYTHONS)
    check_owner(folder)
    python = folder / "bin" / "python"
    with one_at_a_time():
        lock = LOCK.read_text()
        build, why = torch_build.choose(torch, folder, lock)
        if why:
            print(why, flush=True)
        found = torch_build.installed(folder, lock)
        check = f"import pip, sys; sys.exit(sys.version_info[:2] not in {LOCKED_PYTHONS})"  # interrupted: no pip
        if python.exists() and _runs(str(python), check) and found in (None, build):
            print(f"Bringing {folder} up to date", flush=True)
        else:
            size = "under 1 GB" if build == "cpu" else "3 GB"
            print(f"Setting up {folder}: 2 minutes for packages ({size}), 2-4 minutes for Horovod", flush=True)
            step([sys.executable, "-m", "venv", "--clear", str(folder)], f"creating {folder}")
        if build == "cuda":
            install_lock(python, LOCK, "installing the locked packages")
        else:
            install_other_build(python, build, or_else=torch == "auto" and build == "cpu")
        install_project(python)
        install_horovod(python)


def check_owner(folder: Path) -> None:
    """Raise SetupError for a folder that is not an environment, or belongs to another clone of this project."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / "pyvenv.cfg").exists():
        raise SetupError(f"{folder} is not a virtual environment: move it, or name another folder in VENV=")
    for path in folder.glob("lib/python3*/site-packages/data_parallel_bench-*.dist-info/direct_url.json"):
        try:
            url = urllib.parse.urlsplit(json.loads(path.read_text())["url"])
            clone = Path(urllib.parse.unquote(url.path))
        except (ValueError, KeyError, TypeError, AttributeError):  # damaged: it is installed again
            continue
        if url.scheme == "file" and (clone / "bench" / "install").is_dir() and not clone.samefile(ROOT):
            raise SetupError(f"{folder} belongs to {clone}: name another folder in VENV=, or remove it first")


def install_project(python: Path) -> None:
    step([*pip_install(python), "--no-deps", "--no-build-isolation", "-e", str(ROOT)], "installing this project")


def install_other_build(python: Path, build: str, or_else: bool) -> None:
    """The lock with another torch build. or_else: use the lock's own if this fails."""
    install_lock(python, lock_without_cuda(LOCK), "installing the locked packages except PyTorch")
    index, title = torch_build.index(build), f"installing PyTorch's build {build}"
    wanted = [f"{name}=={version}+{build}" for name, version in torch_build.versions(LOCK.read_text()).items()]
    wanted += ["--no-deps"] if build == "cpu" else []
    try:
        install(python, wanted, title, index)
    except SetupError:
        if not or_else:
            raise SetupError(f"{title} from {index} failed: see {LOG}, or use TORCH=cuda, or cpu") from None
        print("PyTorch's CPU build could not be installed: taking the CUDA build (3 GB)", flush=True)
        install_lock(python, LOCK, "installing the locked packages")


def lock_without_cuda(lock: Path) -> Path:
    path = STATE / f"without-torch-{lock.name}"
    path.write_text(torch_build.without_cuda(lock.read_text()))
    return path


def add_notebooks(folder: Path) -> None:
    check_owner(folder)
    with one_at_a_time():
        own = torch_build.installed(folder, LOCK.read_text())
        lock = NOTEBOOKS_LOCK if own in (None, "cuda") else lock_without_cuda(NOTEBOOKS_LOCK)
        install_lock(folder / "bin" / "python", lock, "installing the course's packages")


def install_lock(python: Path, lock: Path, title: str) -> None:
    """Install exactly a lock, with checksums."""
    if not python.with_name("uv").exists():
        wanted = STATE / "requirements-uv.txt"
        wanted.write_text(re.search(r"^uv==.*?(?=^\S|\Z)", LOCK.read_text(), re.MULTILINE | re.DOTALL)[0])
        run_logged([*pip_install(python), "--require-hashes", "-r", str(wanted), "--retries", "1"], LOG, "fetching uv")
    install(python, ["--require-hashes", "-r", str(lock)], title)


def install(python: Path, wanted: list[str], title: str, index: str = "") -> None:
    """Install with uv, which is several times as fast, or with pip if there is no uv, or it fails."""
    uv = python.with_name("uv")
    with_uv = [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]
    with_uv += [*(["--default-index", index] if index else []), *wanted]
    if not uv.exists() or run_logged(with_uv, LOG, title, env=uv_environment(python)) != 0:
        step([*pip_install(python), *(["--index-url", index] if index else []), *wanted], f"{title} with pip")


def uv_environment(python: Path) -> dict[str, str]:
    """uv does not read pip's settings: pass its package indexes on."""
    said = settings_of_pip(python)
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
    told = {}
    for key, values in re.findall(r"^(?:global|install|:env:)\.(\S+)='(.*)'$", said, re.MULTILINE):
        if key in names:
            told[names[key]] = ("," if key == "find-links" else " ").join(re.split(r"\\n| ", values))
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_HTTP_TIMEOUT": "120", **told, **os.environ}


@functools.cache
def settings_of_pip(python: Path) -> str:
    return tree.capture([str(python), "-m", "pip", "config", "list"], TRIAL_S).out


def pip_install(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def check_python(wanted: tuple) -> None:
    """Raise SetupError for an unsupported Python; it names a right one on PATH."""
    if sys.version_info[:2] in wanted:
        return
    names = [f"{major}.{minor}" for major, minor in wanted]
    paths = {name: shutil.which(f"python{name}") for name in reversed(names)}
    here = [name for name, path in paths.items() if path and _runs(path, "")]  # version managers leave broken ones
    remedy = f"run `make PYTHON=python{here[0]} ...`" if here else f"install Python {names[-1]}, name it in PYTHON="
    this_one = f"{sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}"
    raise SetupError(f"Python {names[0]} to {names[-1]} is needed, and {this_one}: {remedy}")


def _runs(python: str, code: str) -> bool:
    return tree.capture([python, "-c", code], TRIAL_S).code == 0


# --- The Python that is there -------------------------------------------------------------------------------


def complete_this_python(extras: list[str]) -> None:
    check_python(OWN_PYTHONS)
    remedy = "load a module or environment that has it, or leave out VENV=none"
    if importlib.util.find_spec("torch") is None:
        raise SetupError(f"torch is not installed for {sys.executable}: {remedy}")
    if oldest := torch_build.too_old(torch := _version("torch")):
        raise SetupError(f"torch {torch} is installed for {sys.executable}, but {oldest} or newer is needed: {remedy}")
    missing = missing_requirements(extras)
    if extras and not missing:
        return
    with one_at_a_time():
        if missing:
            keep = STATE / "constraints.txt"
            keep.write_text("\n".join(installed_versions()) + "\n")
            step([*pip_install(Path(sys.executable)), "-c", str(keep), *missing], f"adding {' '.join(missing)}")
        if not extras:
            install_horovod(Path(sys.executable))


def missing_requirements(extras: list[str]) -> list[str]:
    try:
        import tomllib
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [line for line in wanted if not _version(re.split(r"[<>=!~ \[;]", line)[0])]


def installed_versions() -> list[str]:
    """As `name==version`, for pip's constraints; without those from a folder or URL."""
    lines = set()
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if name and package.version and package.read_text("direct_url.json") is None:
            lines.add(f"{name}=={package.version}")
    return sorted(lines)


def stamp_of_this_python() -> Path:
    """One stamp per interpreter and torch."""
    parts = [sys.executable, sys.version, torch_build.torch_version_file()]
    return STATE / f"ready-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def install_horovod(python: Path) -> None:
    """A failure prints its reason, and the set-up continues."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [str(python), "-m", "bench", "install-horovod"]
    code = tree.run(command, alone_s=ENDING_S, env=env, stdin=None, start_new_session=False)
    if code < 0 or code == 130:
        raise KeyboardInterrupt
    if code != 0:
        print("setup: continuing without Horovod", flush=True)


def step(command: list[str], title: str) -> None:
    if run_logged(command, LOG, title) != 0:
        sys.stderr.write(tail(LOG))
        raise SetupError(f"{title} failed: see {LOG}")


@contextlib.contextmanager
def one_at_a_time():
    """Wait for another make in this folder; start the log again."""
    import fcntl

    STATE.mkdir(exist_ok=True)
    with open(STATE / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        LOG.write_bytes(b"")
        yield


if __name__ == "__main__":
    sys.exit(main())
