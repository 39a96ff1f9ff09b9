"""Run a training command with its Python processes timed, and write the record."""

import datetime
import hashlib
import itertools
import json
import os
import re
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
from bench.files import PROJECT, new_folder
from bench.foreign import hook
from bench.foreign.record import KIND, NAME, PROVENANCE, VERSION
from bench.launch.supervise import signal_name
from bench.measure import node, steady
from bench.measure.environment import SECRET_NAME
from bench.process.ending import signals_as_interrupt
from bench.process.tree import Tree
from bench.record.privacy import nameless, without_paths
from bench.record.schema import require_validator
from bench.record.write import save, writable
from bench.storage.urls import without_user

OBSERVED = "observed.json"  # the ranks' observations, combined by the last rank
TICK_S = 0.2
END_S = 60.0  # for the command to exit after all its ranks have written their times


@dataclass(frozen=True)
class Options:
    """warmup: steps before the timed ones, at least 1. steps: to time before the script is ended; None: no limit.
    watch: detect the known mistakes. batch: examples per device and step, if given."""

    warmup: int = 20
    steps: int | None = None
    watch: bool = True
    batch: int | None = None


def run(words: list[str], options: Options, out: Path, name: str | None = None, limit_s: float | None = None) -> Path:
    """Run a command and write its record; returns the record's path.

    Raises UserError for an unknown command and when nothing could be timed, RunFailed when the command fails or takes
    longer than ``limit_s`` seconds. Then no record and no process is left.
    """
    require_validator()
    program = shutil.which(words[0], path=search_path())
    if program is None:
        hint = f": start it with python, as in `python {words[0]}`" if words[0].endswith(".py") else ""
        why = "is not executable" if os.path.exists(words[0]) else "is not a command on this machine"
        raise UserError(f"{shlex.quote(words[0])} {why}{hint}")
    name = as_unicode(name or name_of(words))
    folder_name = re.sub(r"[^\w.-]+", "-", name)[:60]
    started = steady.now()
    with writable(out):  # fail before hours of training
        run_dir = new_folder(out / f"foreign-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{folder_name}")
    try:
        with tempfile.TemporaryDirectory(prefix="bench-time-") as folder:
            (parts := Path(folder) / "parts").mkdir()
            variables = environment(Path(folder), parts, options)
            code = supervise([program, *words[1:]], variables, lambda: is_complete(parts), limit_s)
            if code:
                how = f"was killed ({signal_name(-code)})" if code < 0 else f"ended with exit code {code}"
                raise RunFailed(f"{shlex.join(words[:1])} {how}: nothing is recorded{ended_in(parts)}")
            found = read_parts(parts, words[0], options)
            record = make_record(run_dir.name, started, name, words, options, found, read_observed(parts, found))
        return save(run_dir, record, NAME, "Script")
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        raise


def search_path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


def environment(folder: Path, parts: Path, options: Options) -> dict[str, str]:
    import jinja2

    (site := folder / "site").mkdir()
    package, template = PROJECT / "bench", Path(__file__).with_name("sitecustomize.py.j2").read_text()
    places = {"init": package / "__init__.py", "package": package, "folder": site, "hook": Path(hook.__file__)}
    code = jinja2.Template(template).render({name: str(place) for name, place in places.items()})
    (site / "sitecustomize.py").write_text(code)
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"folder": str(parts), "observed": str(parts / OBSERVED), **asdict(options)}
    own = {"PYTHONPATH": path, hook.VARIABLE: json.dumps(settings), "PATH": search_path()}
    return dict(os.environ) | steady.variables() | own


def supervise(words: list[str], variables: dict[str, str], complete: Callable[[], bool], limit_s: float | None) -> int:
    """Run the command to its end; returns its exit code. complete: whether all ranks have written their times. END_S
    after that the command is terminated, which is not a failure."""
    began, left = time.monotonic(), None
    with signals_as_interrupt(), Tree() as tree:
        tree.start(words, variables, tied=True, stdin=None, start_new_session=False)  # it shares the terminal
        while (code := tree.wait(TICK_S)) is None:
            now = time.monotonic()
            left = left or (now if complete() else None)
            if left and now - left > END_S:
                late = f"the command was still running {END_S:g} s after its last step: terminated"
                print(f"bench: {late}", file=sys.stderr)
                return 0
            if limit_s and now - began > limit_s:
                late = f"was still running after {limit_s:g} s (LIMIT) and was terminated: use a larger LIMIT"
                raise RunFailed(f"{Path(words[0]).name} {late}")
        return code


# --- The ranks' parts -------------------------------------------------------------------------------------------------


def read_part(path: Path) -> dict:
    try:
        part = json.loads(path.read_text())
        return part | {key: part[key] for key in ("rank", "world_size", "end")}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"the command changed the step times that a rank recorded ({type(error).__name__} in "
                        f"{path.name}): nothing is recorded") from None  # fmt: skip


def is_complete(folder: Path) -> bool:
    found = list(folder.glob("part-*.json"))
    return bool(found) and len(found) >= read_part(found[0])["world_size"]


def ended_in(folder: Path) -> str:
    ended = sorted(map(read_part, folder.glob("part-*.json")), key=lambda part: part["end"]["at"])
    failed = [part for part in ended if part["end"]["failed"]]
    ranks = dict.fromkeys(f"rank {part['rank']} ({part['end']['words']})" for part in ended[:1] + failed[:1])
    return f"; first reported end: {', then '.join(ranks)}" if ranks else ""


def read_parts(folder: Path, program: str, options: Options) -> list[dict]:
    """The ranks' parts, by rank. Raises UserError when they cannot be timed."""
    found = sorted(map(read_part, folder.glob("part-*.json")), key=lambda part: part["rank"])
    if not found:
        raise UserError(
            f"{program}: none of its processes called step() of a torch.optim optimizer, or they did not exit normally"
        )
    count = found[0]["world_size"]
    ranks = [part["rank"] for part in found]
    if len(set(ranks)) < len(ranks):
        raise UserError(f"{len(ranks)} processes trained and {len(ranks) - len(set(ranks)) + 1} claim to be rank "
                        f"{max(ranks, key=ranks.count)}: time one training at a time")  # fmt: skip
    if ranks != list(range(count)):
        there = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        raise UserError(
            f"only {there} of {count} ranks recorded step times: the others ran on another machine, or were killed"
        )
    for part in found:
        if part["end"]["failed"]:
            raise UserError(f"rank {part['rank']} has failed ({part['end']['words']}): nothing is recorded")
        if not part["step_number"]:
            raise UserError(f"rank {part['rank']} took {part['steps_taken']} steps, but the first {options.warmup} are "
                            "the warm-up: use a smaller WARMUP, or train longer")  # fmt: skip
    if not set.intersection(*(set(part["step_number"]) for part in found)):
        raise UserError("no step was timed on all ranks: train longer, or use a smaller WARMUP")
    return found


def read_observed(folder: Path, parts: list[dict]) -> dict:
    """``observed`` of all ranks, and ``unheard``: mistake -> why it was not checked. The script's own Watch has
    priority."""
    path = folder / OBSERVED
    if parts[0]["observed"] is not None:
        found = {"observed": parts[0]["observed"], "unheard": {}}
    elif path.exists():
        found = json.loads(path.read_text())
    else:
        whys = [part["why"] for part in parts if part["why"]]
        why = whys[0] if whys else "a rank was terminated before it had written everything"
        return {"observed": None, "unheard": dict.fromkeys(mistakes.DETECTED, why)}
    unobserved = mistakes.unobserved_reasons(found["observed"], found["unheard"])
    return {"observed": shorten_paths(found["observed"]), "unheard": shorten_paths(unobserved)}


def shorten_paths(item):
    if isinstance(item, dict):
        return {without_paths(str(key)): shorten_paths(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [shorten_paths(each) for each in item]
    return without_paths(item) if isinstance(item, str) else item


# --- The record -------------------------------------------------------------------------------------------------------


def make_record(
    run_id: str, started: float, name: str, words: list[str], options: Options, parts: list[dict], observed: dict
) -> dict:
    first = parts[0]
    devices = sum(len(part["devices"]) for part in parts)
    batch, source = global_batch(parts, options, devices)
    keys = ("rank", "pid", "threads", "steps_taken", "other_steps", "step_number", "step_time_s", "data_wait_s",
            "watch_s", "between_s", "images", "devices", "load")  # fmt: skip
    day = datetime.datetime.fromtimestamp(started, datetime.timezone.utc).isoformat(timespec="milliseconds")
    label, script = node.network(), script_of(words)
    topology = {"world_size": len(parts), "num_devices": devices, "device": first["device"], "global_batch": batch,
                "batch_from": source, "threads_total": sum(part["threads"] for part in parts)}  # fmt: skip
    return {
        "foreign_version": VERSION, "kind": KIND, "run_id": run_id, "started_at": day, "name": name,
        "command": public(words),
        "script_sha256": hashlib.sha256(script.read_bytes()).hexdigest() if script else None,
        "asked": asdict(options),
        "engine": first["engine"],
        **({"network": {"label": label}} if label else {}),
        "topology": topology,
        "environment": first["environment"],
        "samples": [{key: part[key] for key in keys} for part in parts],
        **observed,
        "provenance": PROVENANCE,
    }  # fmt: skip


def global_batch(parts: list[dict], options: Options, devices: int) -> tuple[int | None, str | None]:
    """Examples per step over all ranks, and the source of that number."""
    if options.batch:
        return options.batch * devices, "BATCH"
    if all(part["images"] for part in parts):
        return sum(part["images"] for part in parts), "Watch"
    return None, None


def script_of(words: list[str]) -> Path | None:
    return next((Path(word) for word in words if word.endswith(".py") and os.path.isfile(word)), None)


def name_of(words: list[str]) -> str:
    """The name of a command's script, or of its last module.

    >>> name_of(["torchrun", "--nproc-per-node=2", "-m", "package.train", "--lr=1"]), name_of(["./train"])
    ('package.train', 'train')
    """
    if script := script_of(words):
        return script.name
    modules = [after for word, after in itertools.pairwise(words) if word in ("-m", "--module")]
    return (modules[-1] if modules else Path(words[0]).name)[:200]


# --- Secrets and paths of a command line ------------------------------------------------------------------------------

SCHEMES = ("Bearer", "Basic", "Digest", "Token")  # before a secret
ASSIGNED = re.compile(rf"[~+-]*[\w.-]*(?:{SECRET_NAME.pattern})[\w.-]*[=:]", re.IGNORECASE)  # a name and its value
TOKEN = re.compile(
    r"\b(?:(?:Bearer|Basic)\s+\S+|(?:hf_|gh[opsu]_|github_pat_|glpat-|sk-|xox[abprs]-|AKIA|AIza|eyJ)[\w.-]{8,}|"
    r"[0-9a-fA-F]{32,}\b)"
)
MOST_LETTERS = 20_000  # of a command in a record
PATH = re.compile(r"(?<![\w:/.~])(?:/|(?:\.\./)+)[^\s'\",:;()=]+")  # out of the working folder


def public(words: list[str]) -> str:
    """A command with shortened paths and *** for secrets: values whose names look like a secret's, and known forms of
    tokens. A text with such a name (shell or Python code, JSON) is reduced to its scripts.

    >>> public(["python", "train.py", "--wandb-key=abc", "--token", "def", "--lr", "1"])
    "python train.py '--wandb-key=***' --token '***' --lr 1"
    >>> public(["bash", "-c", "WANDB_API_KEY=abc python ~jane/train.py +hub.token=def lr=1"])
    "bash -c '*** train.py'"
    """
    shown, hide = [], False
    for word in map(without_user, words):
        assigned, named = ASSIGNED.match(word), bool(SECRET_NAME.search(word))
        if hide:
            shown.append("***")
            hide = word in SCHEMES
        elif assigned and " " not in word:
            shown.append(f"{assigned[0]}***")
            hide = assigned[0] == word and word.endswith(":")
        elif named and not re.fullmatch(r"[\w./~+-]+", word):
            scripts = [Path(part).name for part in re.findall(r"[^\s'\"=]+\.py\b", word)]
            shown.append(" ".join(["***", *scripts]))
        else:
            shown.append(without_owner(TOKEN.sub("***", word)))
            hide = word.startswith("-") and named
    line = as_unicode(shlex.join(shown))
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 2]} …"


def without_owner(word: str) -> str:
    flag, equals, value = word.partition("=")
    if os.path.isabs(value or word) or "://" in word:
        word = f"{flag}={nameless(value)}" if equals and value else nameless(word)
    return without_paths(PATH.sub(lambda found: nameless(found[0]), word))
