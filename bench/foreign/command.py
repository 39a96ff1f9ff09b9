"""A command that trains, run with its Python processes timed, and the record of what they leave."""

import datetime
import hashlib
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import mistakes
from bench.errors import RunFailed, UserError, as_unicode
from bench.files import PROJECT
from bench.foreign.hook import ASKED
from bench.foreign.record import KIND, NAME, PROVENANCE, VERSION
from bench.launch.supervise import signal_name
from bench.measure import node, steady
from bench.measure.environment import SECRET_NAME
from bench.process.ending import signals_as_interrupt
from bench.process.tree import Tree
from bench.record.privacy import nameless, without_paths
from bench.record.schema import require_validator
from bench.record.write import save
from bench.storage.urls import without_user

OBSERVED = "observed.json"  # what the ranks saw, put together by one of them
TICK_S = 0.2
END_S = 60.0  # for the command to end once all its ranks have left their times
# Secrets of a command line. A value in a text ends where its quotes do, else at the next blank; a scheme belongs to it.
SCHEMES = ("Bearer", "Basic", "Digest", "Token")
VALUE = rf"(?:(?:{'|'.join(SCHEMES)})\s+)?(?:\"[^\"]*\"?|'[^']*'?|[^\s'\"]+)"
WORD = rf"[\w.-]{{0,64}}(?:{SECRET_NAME.pattern})[\w.-]{{0,64}}"
ASSIGNED = re.compile(rf"[+-]*{WORD}\s*[=:]", re.IGNORECASE)  # a word of a command that is a name and its value
QUOTED = re.compile(rf"(?P<name>(?P<quote>[\"']){WORD}\s*[=:]\s*)(?:(?!(?P=quote)).)+", re.IGNORECASE)
NAMED = re.compile(rf"(?P<name>{WORD}[\"'\]]*\s*(?:[=:]|(?<=[\"']),)\s*){VALUE}", re.IGNORECASE)
OPTION = re.compile(rf"(?P<name>(?<![\w-])-{WORD}\s+){VALUE}", re.IGNORECASE)
TOKEN = re.compile(
    rf"\b(?:(?:{'|'.join(SCHEMES[:2])})\s+\S+|(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|AIza|eyJ)"
    r"[\w.-]{8,}|[0-9a-fA-F]{32,}\b)"
)
SHELL = re.compile(r"-\w*c")  # what follows is a text for a shell, or for Python
MOST_LETTERS = 20_000  # of a command in a record
PATH = re.compile(r"(?<![\w:/.~])(?:/|(?:\.\./)+)[^\s'\",:;()=]+")  # that leads out of the working folder
# A sitecustomize.py, which Python imports at its start: the machine's own one is imported, too. `bench` is imported
# later, where it is needed: this one, whatever is installed, unless the script has a module of that name beside it.
SITE = """import importlib.machinery, importlib.util, sys
def load(name, spec):
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
class OfBench:
    def find_spec(self, name, path=None, target=None):
        if name != "bench":
            return None
        theirs = importlib.machinery.PathFinder.find_spec(name, sys.path[:1])
        if theirs is not None and theirs.origin != {init!r}:
            return None
        return importlib.util.spec_from_file_location(name, {init!r}, submodule_search_locations=[{package!r}])
sys.path[:] = [place for place in sys.path if place != {folder!r}]
own = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if own is not None:
    load("sitecustomize", own)
sys.meta_path.insert(0, OfBench())
load("bench_time_hook", importlib.util.spec_from_file_location("bench_time_hook", {hook!r})).install()
"""


@dataclass(frozen=True)
class Asked:
    """warmup: steps before the timed ones, at least 1. steps: to time, after which the script is ended; None: to its
    end. watch: look for the known mistakes. batch: examples per device per step, where it is told."""

    warmup: int = 20
    steps: int | None = None
    watch: bool = True
    batch: int | None = None


def run(words: list[str], asked: Asked, out: Path, name: str | None = None, limit_s: float | None = None) -> Path:
    """Run a command, and write the record of what its ranks did; returns its path. Raises UserError for a command that
    is not there, and where nothing could be timed, RunFailed where it fails or takes longer than ``limit_s`` seconds:
    then no record is left, and no process."""
    require_validator()
    program = shutil.which(words[0], path=search_path())
    if program is None:
        hint = f": begin with python, as in `python {words[0]}`" if words[0].endswith(".py") else ""
        why = "cannot be executed" if os.path.exists(words[0]) else "is no command here"
        raise UserError(f"{shlex.quote(words[0])} {why}{hint}")
    name = as_unicode(name or name_of(words))
    run_id = f"foreign-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{safe(name)}-{secrets.token_hex(2)}"
    started, run_dir = steady.now(), out / run_id
    try:
        run_dir.mkdir(parents=True)  # before hours of training
    except OSError as error:
        raise UserError(f"OUT={out} cannot be written to ({error.strerror}): choose another folder") from None
    try:
        with tempfile.TemporaryDirectory(prefix="bench-time-") as folder:
            (parts := Path(folder) / "parts").mkdir()
            variables = environment(Path(folder), parts, asked)
            code = supervise([program, *words[1:]], variables, lambda: complete(parts), limit_s)
            if code:
                how = f"was killed ({signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
                raise RunFailed(f"{shlex.join(words[:1])} {how}: nothing is recorded{ended_in(parts)}")
            found = read_parts(parts, words[0], asked)
            watched = watched_of(parts, found)
        return save(run_dir, record_of(run_id, started, name, words, asked, found, watched), NAME, "Script")
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


# --- the command ----------------------------------------------------------------------------------------------------


def search_path() -> str:
    """PATH; first of all the folder of this Python, where torchrun and horovodrun are: ``python`` is this one."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment(folder: Path, parts: Path, asked: Asked) -> dict[str, str]:
    """What the command's processes find in their environment, and the file that Python imports at its start."""
    (site := folder / "site").mkdir()
    package = PROJECT / "bench"
    places = {"init": str(package / "__init__.py"), "package": str(package), "folder": str(site)}
    places["hook"] = str(package / "foreign" / "hook.py")
    (site / "sitecustomize.py").write_text(SITE.format(**places))
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    told = {"folder": str(parts), "observed": str(parts / OBSERVED), **asdict(asked)}
    mine = {"PYTHONPATH": path, ASKED: json.dumps(told), "PATH": search_path()}
    return dict(os.environ) | steady.variables() | mine


def supervise(words: list[str], variables: dict[str, str], complete: Callable[[], bool], limit_s: float | None) -> int:
    """Run the command to its end; its exit code. complete: whether all its ranks have left their times: then it has
    END_S to end, and a command that does not is ended, which is no failure."""
    began, left = time.monotonic(), None
    with signals_as_interrupt(), Tree() as tree:
        tree.start(words, variables, tied=True, stdin=None, start_new_session=False)  # it shares the terminal
        while (code := tree.wait(TICK_S)) is None:
            now = time.monotonic()
            left = left or (now if complete() else None)
            if left and now - left > END_S:
                print(f"bench: the command has not ended {END_S:g} s after its last step: ended", file=sys.stderr)
                return 0
            if limit_s and now - began > limit_s:
                raise RunFailed(f"{Path(words[0]).name} has not ended after {limit_s:g} s (LIMIT): ended")
        return code


def complete(parts: Path) -> bool:
    found = list(parts.glob("part-*.json"))
    return bool(found) and len(found) >= part_in(found[0])["world_size"]


def left_in(parts: Path) -> list[dict]:
    return sorted(map(part_in, parts.glob("part-*.json")), key=lambda part: part["rank"])


def part_in(path: Path) -> dict:
    """What a rank has left. Raises UserError where the command has changed it."""
    try:
        part = json.loads(path.read_text())
        return part | {key: part[key] for key in ("rank", "world_size", "end")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"the command changed what a rank left of its times ({type(error).__name__} in {path.name}): "
                        "nothing is recorded") from None  # fmt: skip


def ended_in(parts: Path) -> str:
    """The first rank that has left word of its end, and the first of them that failed; "" where there is none."""
    ended = sorted(left_in(parts), key=lambda part: part["end"]["at"])
    failed = [part for part in ended if part["end"]["failed"]]
    told = dict.fromkeys(f"rank {part['rank']} ({part['end']['words']})" for part in ended[:1] + failed[:1])
    return f"; first reported end: {', then '.join(told)}" if told else ""


def read_parts(parts: Path, program: str, asked: Asked) -> list[dict]:
    """What the ranks have left, by rank. Raises UserError where it is nothing that can be timed."""
    found = left_in(parts)
    if not found:
        raise UserError(
            f"{program}: no process of it took a step of a torch.optim optimizer, or it ended without Python's exit"
        )
    count = found[0]["world_size"]
    ranks = [part["rank"] for part in found]
    if len(set(ranks)) < len(ranks):
        raise UserError(f"{len(ranks)} processes trained and {len(ranks) - len(set(ranks)) + 1} say that they are rank "
                        f"{max(ranks, key=ranks.count)}: time one training at a time")  # fmt: skip
    if ranks != list(range(count)):
        there = ", ".join(map(str, ranks))
        raise UserError(f"of {count} ranks only {there} left times: others are on another machine, or were killed")
    for part in found:
        if part["end"]["failed"]:
            raise UserError(f"rank {part['rank']} has failed ({part['end']['words']}): nothing is recorded")
        if not part["step_number"]:
            raise UserError(f"rank {part['rank']} took {part['steps_taken']} steps, and the first {asked.warmup} are "
                            "the warm-up: give a smaller WARMUP, or let it train longer")  # fmt: skip
    if not set.intersection(*(set(part["step_number"]) for part in found)):
        raise UserError("no step was timed on all ranks")
    return found


def watched_of(folder: Path, parts: list[dict]) -> tuple[dict | None, dict[str, str]]:
    """``observed`` of all ranks, and mistake -> why it was not looked for. The script's own Watch comes first."""
    path = folder / OBSERVED
    if (observed := parts[0]["observed"]) is not None:
        found = {"observed": observed, "unheard": {}}
    elif path.exists():
        found = json.loads(path.read_text())
    else:
        whys = [part["why"] for part in parts if part["why"]]
        return None, dict.fromkeys(mistakes.DETECTED, whys[0] if whys else "a rank was ended before it had left all")
    return short(found["observed"]), short(mistakes.unheard(found["observed"], found["unheard"]))


def short(item):
    """What JSON can hold, with every path in it shortened."""
    if isinstance(item, dict):
        return {without_paths(str(key)): short(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [short(each) for each in item]
    return without_paths(item) if isinstance(item, str) else item


# --- the record -----------------------------------------------------------------------------------------------------


def record_of(
    run_id: str, started: float, name: str, words: list[str], asked: Asked, parts: list[dict], watched: tuple
) -> dict:
    """The record of the ranks' parts. watched: as ``watched_of`` returns it."""
    first = parts[0]
    devices = sum(len(part["devices"]) for part in parts)
    batch, source = examples_of(parts, asked, devices)
    keys = ("rank", "pid", "threads", "steps_taken", "other_steps", "step_number", "step_time_s", "data_wait_s",
            "watch_s", "between_s", "images", "devices", "load")  # fmt: skip
    day = datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(timespec="milliseconds")
    label = node.network()
    return {
        "foreign_version": VERSION,
        "kind": KIND,
        "run_id": run_id,
        "started_at": day,
        "name": name,
        "command": public(words),
        "script_sha256": hash_of(words),
        "asked": asdict(asked),
        "engine": first["engine"],
        **({"network": {"label": label}} if label else {}),
        "topology": {
            "world_size": len(parts),
            "num_devices": devices,
            "device": first["device"],
            "global_batch": batch,
            "batch_from": source,
            "threads_total": sum(part["threads"] for part in parts),
        },
        "environment": first["environment"],
        "samples": [{key: part[key] for key in keys} for part in parts],
        "observed": watched[0],
        "unheard": watched[1],
        "provenance": PROVENANCE,
    }


def examples_of(parts: list[dict], asked: Asked, devices: int) -> tuple[int | None, str | None]:
    """Examples of a step over all ranks, and who knows them."""
    if asked.batch:
        return asked.batch * devices, "BATCH"
    if all(part["images"] for part in parts):
        return sum(part["images"] for part in parts), "Watch"
    return None, None


def script_of(words: list[str]) -> Path | None:
    return next((Path(word) for word in words if word.endswith(".py") and os.path.isfile(word)), None)


def name_of(words: list[str]) -> str:
    """What a command is called: its script's name, or its last module's.

    >>> name_of(["torchrun", "--nproc-per-node=2", "-m", "package.train", "--lr=1"]), name_of(["./train"])
    ('package.train', 'train')
    """
    if script := script_of(words):
        return script.name
    modules = [after for word, after in itertools.pairwise(words) if word in ("-m", "--module")]
    return (modules[-1] if modules else Path(words[0]).name)[:200]


def safe(name: str) -> str:
    """A name as part of a folder's.

    >>> safe("my train.py")
    'my-train.py'
    """
    return re.sub(r"[^\w.-]+", "-", name)[:60]


def hash_of(words: list[str]) -> str | None:
    script = script_of(words)
    return hashlib.sha256(script.read_bytes()).hexdigest() if script else None


def public(words: list[str]) -> str:
    """A command without what says who ran it: paths shortened, and what looks like a secret left out, wherever it
    stands: what follows a name like a secret's, also within a word, and what has the form of a token.

    >>> public(["python", "train.py", "--wandb-key=abc", "--token", "def", "--lr", "1"])
    "python train.py '--wandb-key=***' --token '***' --lr 1"
    >>> public(["bash", "-c", "WANDB_API_KEY=abc python ~jane/train.py +hub.token=def lr=1"])
    "bash -c 'WANDB_API_KEY=*** python ~/train.py +hub.token=*** lr=1'"
    """
    said, before, hide = [], "", False
    for word in map(without_user, words):
        found = None if SHELL.fullmatch(before) else ASSIGNED.match(word)
        if hide:
            said.append("***")
            hide = word in SCHEMES
        elif found:
            said.append(f"{found[0]}***")
            hide = found[0] == word and word.endswith(":")
        else:
            said.append(without_owner(without_secrets(word)))
            hide = word.startswith("-") and bool(SECRET_NAME.search(word)) and "=" not in word
        before = word
    line = as_unicode(shlex.join(said))
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 2]} …"


def without_secrets(text: str) -> str:
    """A text with *** for each secret.

    >>> without_secrets("curl -H 'Authorization: Bearer abc' --data {\\"api_key\\": \\"def\\"}")
    'curl -H \\'Authorization: ***\\' --data {"api_key": ***}'
    """
    for pattern in (QUOTED, NAMED, OPTION) if SECRET_NAME.search(text) else ():
        text = pattern.sub(r"\g<name>***", text)
    return TOKEN.sub("***", text)


def without_owner(word: str) -> str:
    """A word of a command with its paths shortened, also those within a text.

    >>> without_owner("python /home/jane/train.py --to ../../../../../../../home/jane/runs ~jane/x")
    'python train.py --to runs ~/x'
    """
    flag, equals, value = word.partition("=")
    if os.path.isabs(value or word) or "://" in word:
        word = f"{flag}={nameless(value)}" if equals and value else nameless(word)
    return without_paths(PATH.sub(lambda found: nameless(found[0]), word))
