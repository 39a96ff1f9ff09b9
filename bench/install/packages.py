"""What `make` runs before anything else: bring this project's packages to a Python, once.

`--venv .venv` makes an environment of its own with exactly the versions of requirements.lock. `--venv none`
takes the Python that runs this as it is (Colab, Kaggle, a cluster's module) and adds only what is missing:
every version that is installed stays. Either way Horovod follows, and a machine that cannot build it still
gets everything else. At the end an empty file, the stamp, tells make that all is done.

Standard library only, and no syntax newer than Python 3.8: an old Python must get as far as being told so.
"""

from __future__ import annotations

import argparse
import contextlib
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
NOTEBOOKS_EXTRAS = ["notebooks", "grading", "site"]  # what that lock holds
STATE = Path(".setup")  # the log, the lock, and the stamps of Pythons that are not ours
LOG = STATE / "setup.log"
LOCKED_PYTHONS = ((3, 11), (3, 12), (3, 13))  # what the versions in the lock exist for
OWN_PYTHONS = ((3, 10), *LOCKED_PYTHONS)  # what the code runs on
PLAN = "Setting up {}, once: about 2 minutes for the packages ({}), then 2-4 minutes for Horovod"
TRIAL_S = 60.0  # for a Python to start
ENDING_S = 30.0  # for the building of Horovod to end its compilers and remove its work folder
CUDA_SIZE, CPU_SIZE = "3 GB", "under 1 GB"  # to download


class SetupError(Exception):
    """One line for the reader."""


def main(argv: list[str] | None = None) -> int:
    """Set up, or with --stamp-name print where the stamp of this Python belongs. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.install.packages")
    parser.add_argument("--venv", default=".venv", help="a folder, or none for the Python that runs this")
    parser.add_argument("--stamp", type=Path, help="the file to touch when all is done")
    parser.add_argument("--stamp-name", action="store_true", help="print the stamp's place for --venv none")
    parser.add_argument("--check", action="store_true", help="only say whether this Python is too old or too new")
    parser.add_argument("--extra", action="append", default=[], help="with none: an extra of pyproject.toml")
    parser.add_argument(
        "--torch", default="auto", help="PyTorch's build: cpu, cuda (PyPI's), cu126, …; auto: by the driver"
    )
    parser.add_argument("--notebooks", action="store_true", help="only add what the course needs")
    args = parser.parse_args(argv)
    if args.stamp_name:
        print(stamp_of_this_python())
        return 0
    try:
        if args.torch not in torch_build.CHOICES:
            raise SetupError(f"TORCH={args.torch}: choose one of {', '.join(torch_build.CHOICES)}")
        if args.torch != "auto" and args.venv == "none":
            raise SetupError("TORCH is of the environment that is made, and VENV=none uses the torch that is there")
        if args.check:
            check_python(OWN_PYTHONS if args.venv == "none" else LOCKED_PYTHONS)
        elif args.venv == "none":
            complete_this_python(args.extra + NOTEBOOKS_EXTRAS * args.notebooks)
        elif args.notebooks:
            add_notebooks(Path(args.venv))
        else:
            if args.torch != "auto" and is_ready(Path(args.venv), args.torch, args.stamp):
                return 0
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
        print("setup: stopped; the next make goes on from here", file=sys.stderr)
        return 130
    return 0


# --- An environment of our own ------------------------------------------------------------------------------


def is_ready(folder: Path, torch: str, stamp: Path | None) -> bool:
    """Whether an environment has this build of torch, and is up to date: with TORCH= make asks for it every time."""
    lock = LOCK.read_text()
    found, wanted = (torch_build.named(build, lock) for build in (torch_build.installed(folder), torch))
    if stamp is None or not stamp.exists() or found != wanted:
        return False
    return stamp.stat().st_mtime >= max(path.stat().st_mtime for path in (LOCK, ROOT / "pyproject.toml"))


def make_venv(folder: Path, torch: str = "auto") -> None:
    """Goes on where it was interrupted. torch: which build; an environment with another one is made anew."""
    check_python(LOCKED_PYTHONS)
    check_owner(folder)
    python = folder / "bin" / "python"
    with one_at_a_time():
        lock = LOCK.read_text()
        build, why = torch_build.choose(torch, folder, lock)
        if why:
            print(why, flush=True)
        found = torch_build.named(torch_build.installed(folder), lock)
        usable = _is_usable(python) and found in (None, build)
        size = CPU_SIZE if build == "cpu" else CUDA_SIZE
        print(f"Bringing {folder} up to date" if usable else PLAN.format(folder, size), flush=True)
        if not usable:
            step([sys.executable, "-m", "venv", "--clear", str(folder)], f"creating {folder}")
        if build == "cuda":
            install_lock(python, LOCK, "installing the locked packages")
        else:
            install_other_build(python, build, or_else=torch == "auto" and build == "cpu")
        install_project(python)
        install_horovod(python)


def check_owner(folder: Path) -> None:
    """Raise SetupError for what is there and is no environment, or is that of another clone of this project, which
    would import this one from then on."""
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not is_empty and not (folder / "pyvenv.cfg").exists():
        raise SetupError(f"{folder} is no virtual environment: move it away, or name another folder in VENV=")
    for path in folder.glob("lib/python3*/site-packages/data_parallel_bench-*.dist-info/direct_url.json"):
        try:
            url = urllib.parse.urlsplit(json.loads(path.read_text())["url"])
            clone = Path(urllib.parse.unquote(url.path))
        except (ValueError, KeyError, TypeError, AttributeError):  # an editor's, or cut short: it is installed again
            continue
        if url.scheme == "file" and (clone / "bench" / "install").is_dir() and not clone.samefile(ROOT):
            raise SetupError(
                f"{folder} is the environment of {clone}: name another folder in VENV=, or remove it first"
            )


def install_project(python: Path) -> None:
    """This clone, so that its files are what is imported."""
    step([*pip_install(python), "--no-deps", "--no-build-isolation", "-e", str(ROOT)], "installing this project")


def install_other_build(python: Path, build: str, or_else: bool) -> None:
    """The lock with another build of PyTorch in place of its own. With CUDA it brings libraries that the lock has not.
    or_else: take the lock's own where this fails."""
    install_lock(python, lock_without_cuda(LOCK), "installing the locked packages but PyTorch")
    index, title = torch_build.index(build), f"installing PyTorch's build {build}"
    wanted = [*(["--no-deps"] if build == "cpu" else []), *torch_build.requirements(LOCK.read_text(), build)]
    with_pip = [*pip_install(python), "--index-url", index, *wanted]
    with_uv = [*uv_install(python), "--default-index", index, *wanted]
    if python.with_name("uv").exists() and run_logged(with_uv, LOG, title, env=uv_environment(python)) == 0:
        return
    if run_logged(with_pip, LOG, f"{title} with pip") != 0:
        if not or_else:
            sys.stderr.write(tail(LOG))
            raise SetupError(f"{title} from {index} failed; the whole log: {LOG}; or use TORCH=cuda, or cpu")
        print("PyTorch's build for CPUs could not be installed: taking the ordinary build (3 GB)", flush=True)
        install_lock(python, LOCK, "installing the locked packages")


def lock_without_cuda(lock: Path) -> Path:
    """A lock without torch and what its build with CUDA needs, in a file of its own."""
    path = STATE / f"without-torch-{lock.name}"
    path.write_text(torch_build.without_cuda(lock.read_text()))
    return path


def add_notebooks(folder: Path) -> None:
    check_owner(folder)
    with one_at_a_time():
        own = torch_build.named(torch_build.installed(folder), LOCK.read_text())
        lock = NOTEBOOKS_LOCK if own in (None, "cuda") else lock_without_cuda(NOTEBOOKS_LOCK)
        install_lock(folder / "bin" / "python", lock, "installing what the course needs")


def install_lock(python: Path, lock: Path, title: str) -> None:
    """Install exactly what a lock names: with uv, which is several times as fast, or with pip where uv cannot be had or
    fails. Either checks the checksums."""
    uv, wanted = python.with_name("uv"), STATE / "requirements-uv.txt"
    wanted.write_text(re.search(r"^uv==.*?(?=^\S|\Z)", LOCK.read_text(), re.MULTILINE | re.DOTALL)[0])
    verified = ["--require-hashes", "-r"]
    with_pip = [*pip_install(python), *verified]
    with_uv = [*uv_install(python), *verified]
    fetched = uv.exists() or run_logged([*with_pip, str(wanted), "--retries", "1"], LOG, "fetching uv") == 0
    if not fetched or run_logged([*with_uv, str(lock)], LOG, title, env=uv_environment(python)) != 0:
        step([*with_pip, str(lock)], f"{title} with pip")


def uv_environment(python: Path) -> dict[str, str]:
    """The environment for uv, which reads no settings of pip: the package indexes that pip is told of."""
    said = tree.capture([str(python), "-m", "pip", "config", "list"], TRIAL_S).out
    names = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
    told = {}
    for key, values in re.findall(r"^(?:global|install|:env:)\.(\S+)='(.*)'$", said, re.MULTILINE):
        if key in names:
            told[names[key]] = ("," if key == "find-links" else " ").join(re.split(r"\\n| ", values))
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_HTTP_TIMEOUT": "120", **told, **os.environ}


def uv_install(python: Path) -> list[str]:
    uv = python.with_name("uv")
    return [str(uv), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(python)]


def pip_install(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def check_python(wanted: tuple) -> None:
    if sys.version_info[:2] not in wanted:
        raise SetupError(wrong_python(wanted))


def wrong_python(wanted: tuple) -> str:
    """The line for a Python outside the supported range; it names a right one where PATH has it."""
    names = [f"{major}.{minor}" for major, minor in wanted]
    here = [f"python{name}" for name in reversed(names) if _starts(f"python{name}")]
    remedy = f"run `make PYTHON={here[0]} ...`" if here else f"install Python {names[-1]}, name it in PYTHON="
    this_one = f"{sys.executable} is {sys.version_info[0]}.{sys.version_info[1]}"
    return f"Python {names[0]} to {names[-1]} is needed, and {this_one}: {remedy}"


def _starts(command: str) -> bool:
    """Whether this Python is there and starts: version managers leave commands on PATH that do not."""
    path = shutil.which(command)
    return bool(path) and tree.capture([path, "-c", ""], TRIAL_S).code == 0


def _is_usable(python: Path) -> bool:
    """Whether an environment is there and whole: one whose making was interrupted has no pip."""
    if not python.exists():
        return False
    check = f"import pip, sys; sys.exit(sys.version_info[:2] not in {LOCKED_PYTHONS})"
    return tree.capture([str(python), "-c", check], TRIAL_S).code == 0


# --- The Python that is there -------------------------------------------------------------------------------


def complete_this_python(extras: list[str]) -> None:
    """Install what pyproject.toml names and this Python lacks; what is here stays. Then Horovod."""
    check_python(OWN_PYTHONS)
    if importlib.util.find_spec("torch") is None:
        raise SetupError(
            f"torch is not installed for {sys.executable}: load the module or environment that has it,"
            " or leave out VENV=none"
        )
    if torch_build.too_old(torch := _version("torch")):
        raise SetupError(
            f"torch {torch} is installed for {sys.executable}, and {torch_build.oldest()} or newer is needed:"
            " load a module or environment that has it, or leave out VENV=none"
        )
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
    """The requirements of pyproject.toml (and of the named extras) whose package is not installed at all."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        from pip._vendor import tomli as tomllib
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    return [line for line in wanted if not _installed(re.split(r"[<>=!~ \[;]", line)[0])]


def installed_versions() -> list[str]:
    """As `name==version`, for pip's constraints; not those from a folder or a URL, which an index may not know."""
    lines = set()
    for package in importlib.metadata.distributions():
        name = package.metadata["Name"]
        if name and package.version and package.read_text("direct_url.json") is None:
            lines.add(f"{name}=={package.version}")
    return sorted(lines)


def stamp_of_this_python() -> Path:
    """One stamp for each pair of interpreter and torch: after a change of either, make sets up again."""
    torch = importlib.util.find_spec("torch")
    version = Path(torch.origin).with_name("version.py") if torch and torch.origin else None
    parts = [sys.executable, sys.version, version.read_text() if version and version.exists() else ""]
    return STATE / f"ready-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _installed(name: str) -> bool:
    return bool(_version(name))


def _version(name: str) -> str:
    """ "" of a package that is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


# --- Both ---------------------------------------------------------------------------------------------------


def install_horovod(python: Path) -> None:
    """Run `bench install-horovod`; where that fails it has said why, and the set-up goes on."""
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    command = [str(python), "-m", "bench", "install-horovod"]
    code = tree.run(command, alone_s=ENDING_S, env=env, stdin=None, start_new_session=False)
    if code < 0 or code == 130:
        raise KeyboardInterrupt
    if code != 0:
        print("setup: going on without Horovod", flush=True)


def step(command: list[str], title: str) -> None:
    """One logged command. Raises SetupError, after the end of the log, where it fails."""
    if run_logged(command, LOG, title) != 0:
        sys.stderr.write(tail(LOG))
        raise SetupError(f"{title} failed; the whole log: {LOG}")


@contextlib.contextmanager
def one_at_a_time():
    """Let a second make in this folder wait until the first has set up; start the log anew."""
    import fcntl

    STATE.mkdir(exist_ok=True)
    with open(STATE / "lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        LOG.write_bytes(b"")
        yield


if __name__ == "__main__":
    sys.exit(main())
