"""Runs scripts: two ranks each, forked from this process, which has imported torch once for all of them.

A right script runs twice, under the Watch and under one that does nothing (``nothing/``): weights after every step,
states of random generators, files, exceptions and output must be the same.
"""

import contextlib
import importlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.launch.ports import free_port
from tests.meeting import Meeting
from tests.watched.rank import live
from tests.watched.script import HANG_S, LIMIT_S, Script

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2
TICK_S = 0.02
LISTS = {"checked, not found": "clean", "not observed": "unseen", "expected:": "expected"}  # lines of a report
WHY = re.compile(r"\((?:[^()]|\([^()]*\))*\)")
HEAD = re.compile(r"^(?:rank \d+: |\[rank ?\d+\][: ]*)?known mistakes found: \d+")
FINDING = re.compile(r"^([a-z0-9]+(?:-[a-z0-9]+)+|drift): ")


def load() -> bool:
    """Import what scripts import, once. Returns whether Horovod is there."""
    for name in ("tests.preloaded", "bench.observe"):
        importlib.import_module(name)
    return "horovod.torch" in sys.modules


@dataclass
class Heard:
    found: set = field(default_factory=set)
    asked: set = field(default_factory=set)
    expected: set = field(default_factory=set)
    clean: set = field(default_factory=set)
    unseen: set = field(default_factory=set)
    reports: int = 0


def listed(text: str) -> set:
    """Names in a list "a (why), b (why)"."""
    return {name.strip(" .") for name in WHY.sub("", text).split(",")} - {""}


def hear(text: str) -> Heard:
    heard, inside, last = Heard(), False, ""
    for line in text.splitlines():
        if HEAD.match(line):
            heard.reports += 1
            inside = True
        elif line.startswith("Watch: no progress"):
            inside = True
        elif not inside:
            continue
        elif names := [name for begin, name in LISTS.items() if line.startswith(begin)]:
            getattr(heard, names[0]).update(listed(line.partition(":")[2]))
        elif line.startswith("  by design?"):
            heard.found.discard(last)
            heard.asked.add(last)
        elif match := FINDING.match(line):
            last = match[1]
            heard.found.add(last)
    return heard


@dataclass
class Run:
    script: Script
    watched: bool
    folder: Path
    pids: dict = field(default_factory=dict)  # process id -> rank
    codes: dict = field(default_factory=dict)
    helper: int = 0
    began: float = 0.0
    seconds: float = 0.0
    ended_by_us: str = ""
    reported: float = 0.0

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def path(self) -> Path:
        return self.folder.parent / f"{Path(self.script.name).name}.py"  # the same with and without a Watch

    def log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}"

    def read(self, rank: int, ending: str) -> str:
        path = Path(f"{self.log(rank)}{ending}")
        return path.read_text(errors="replace") if path.exists() else ""

    def text(self) -> str:
        return "\n".join(self.read(r, e) for r in range(self.script.ranks) for e in (".out", ".err"))

    def facts(self, rank: int) -> dict:
        text = self.read(rank, ".json")
        return json.loads(text) if text else {}

    def start(self) -> None:
        self.work.mkdir(parents=True)
        if not self.path.exists():
            self.path.write_text(self.script.text)
        self.began = time.monotonic()
        common = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default", "GLOO_SOCKET_IFNAME": "lo",
            "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        if not self.watched:
            common["PYTHONPATH"] = str(Path(__file__).resolve().parent / "nothing")
        if self.script.horovod:
            common |= self.meet()
        for rank in range(self.script.ranks):
            own = {}
            if self.script.horovod:
                own = {"HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)}
            elif self.script.ranks > 1:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.script.ranks)}
                own["LOCAL_WORLD_SIZE"] = own["WORLD_SIZE"]
            pid = fork()
            if pid == 0:
                try:
                    live(self.path, self.log(rank), self.work, common | own, self.watched)
                finally:  # nothing of this copy may continue as the runner
                    traceback.print_exc()
                    os._exit(70)
            self.pids[pid] = rank

    def meet(self) -> dict:
        """A rendezvous in its own process, because it has threads. Returns the variables."""
        reading, writing = os.pipe()
        self.helper = fork()
        if self.helper == 0:
            os.write(writing, json.dumps(Meeting(self.script.ranks).variables()).encode())
            os.close(writing)
            while os.getppid() != 1:
                time.sleep(0.5)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as file:
            return json.load(file)

    def over(self) -> bool:
        """Whether it has ended; ends it where it hangs."""
        for pid in [pid for pid, rank in self.pids.items() if rank not in self.codes]:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self.codes[self.pids[pid]] = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - self.began
        if len(self.codes) == len(self.pids):
            self.end()
            return True
        limit = HANG_S if self.script.hangs else LIMIT_S
        if self.script.hangs and not self.reported and self.told():
            self.reported = time.monotonic()
        if self.seconds > limit or (self.reported and time.monotonic() - self.reported > 1):
            self.ended_by_us = "after its report" if self.reported else f"after {limit} s"
            self.end()
            return True
        return False

    def told(self) -> bool:
        """Whether the report that a hanging script is kept for has come."""
        text, script = self.text(), self.script
        return script.says in text and (not script.found or bool(script.found & hear(text).found))

    def end(self) -> None:
        for pid, rank in self.pids.items():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            if rank not in self.codes:
                self.codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if self.helper:
            os.kill(self.helper, signal.SIGKILL)
            os.waitpid(self.helper, 0)
            self.helper = 0

    def exceptions(self) -> list:
        """The last line of each rank's traceback, and its exit code."""
        found = []
        for rank in range(self.script.ranks):
            lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in self.read(rank, ".err").splitlines()]
            traced = max((i for i, line in enumerate(lines) if line.startswith("Traceback (most")), default=len(lines))
            said = [line for line in lines[traced:] if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
            found.append((self.codes.get(rank), said[0] if said else ""))
        return found


def fork() -> int:
    """As os.fork; no thread of this process holds a lock."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@dataclass
class Row:
    script: Script
    heard: Heard
    problems: list
    seconds: float
    text: str = ""

    @property
    def good(self) -> bool:
        return not self.problems

    def cells(self) -> list[str]:
        """As ``to_dict`` names them."""
        asked = [f"{name}?" for name in sorted(self.heard.asked)] + [f"({n})" for n in sorted(self.heard.expected)]
        verdict = "as expected" if self.good else "; ".join(self.problems)
        return [self.script.name, self.script.expectation, ", ".join(sorted(self.heard.found)) or "-",
                ", ".join(asked) or "-", verdict, f"{self.seconds:.1f}"]  # fmt: skip

    def to_dict(self) -> dict:
        names = ("script", "expected", "found", "asked", "verdict", "seconds")
        script = self.script
        return dict(zip(names, self.cells(), strict=True)) | {
            "good": self.good, "about": script.about, "cannot": script.cannot,
            "mistakes": [*script.finds, *script.asks, *script.any] if script.kind == "wrong" else [],
        }  # fmt: skip


def judge(script: Script, run: Run, bare: Run | None) -> Row:
    """Compare what was observed with what the script declares."""
    heard = hear(run.text())
    problems = []

    def compare(word, got, meant):
        if missing := meant - got:
            problems.append(f"not {word}: {', '.join(sorted(missing))}")
        if extra := got - meant - set(script.may) - set(script.any):
            problems.append(f"wrongly {word}: {', '.join(sorted(extra))}")

    if script.any and not set(script.any) & heard.found:
        problems.append(f"not found: {' or '.join(script.any)}")
    if script.says not in run.text():
        problems.append(f"not said: {script.says}")

    compare("found", heard.found, set(script.finds))
    compare("asked", heard.asked - set(script.may_ask), set(script.asks))
    compare("expected", heard.expected, set(script.expects))
    if wrongly := set(script.unseen) & heard.clean:
        problems.append(f"called clean: {', '.join(sorted(wrongly))}")
    if missing := set(script.clean) - heard.clean:
        problems.append(f"not looked for: {', '.join(sorted(missing))}")
    if missing := set(script.unseen) - heard.unseen - heard.found - heard.asked:
        problems.append(f"not said to be unobserved: {', '.join(sorted(missing))}")
    if run.ended_by_us and not (script.hangs and run.reported):
        problems.append(f"ended {run.ended_by_us}")
    if not script.hangs:
        said = run.exceptions()
        if script.raises:
            if not any(script.raises in words for _, words in said):
                problems.append(f"no {script.raises}: {said}")
        elif any(code for code, _ in said) and not run.ended_by_us:
            problems.append(f"failed: {said}")
        elif not heard.reports and not run.ended_by_us:
            problems.append("no report")
    if bare is not None:
        problems += [f"differs: {what}" for what in differences(run, bare)]
    seconds = run.seconds + (bare.seconds if bare else 0)
    return Row(script, heard, problems, seconds, run.text())


def differences(run: Run, bare: Run) -> list[str]:
    """In what a script under the Watch differs from the script alone."""
    found = []
    if run.exceptions() != bare.exceptions():
        found.append(f"exceptions {run.exceptions()} against {bare.exceptions()}")
    for rank in range(run.script.ranks):
        one, other = run.facts(rank), bare.facts(rank)
        found += [f"{key} of rank {rank}" for key in ("steps", "weights", "random") if one.get(key) != other.get(key)]
        if not same_output(run.read(rank, ".out"), bare.read(rank, ".out")):
            found.append(f"output of rank {rank}")
        if warned(run.read(rank, ".err")) != warned(bare.read(rank, ".err")):
            found.append(f"warnings of rank {rank}")
    ours, theirs = files(run.work), files(bare.work)
    if ours.keys() != theirs.keys():
        found.append(f"files {sorted(ours)} against {sorted(theirs)}")
    found += [f"file {name}" for name in ours.keys() & theirs.keys() if contents(ours[name]) != contents(theirs[name])]
    return found


def same_output(watched: str, bare: str) -> bool:
    """Whether the output is the same but for one report in it."""
    begin = re.search(r"^known mistakes found:", watched, re.M)
    if not begin:
        return watched == bare
    head, tail = watched[: begin.start()], watched[begin.start() :]
    return bare.startswith(head) and tail.endswith(bare[len(head) :])


def warned(text: str) -> set:
    """Warnings in what was written, without the places, times and numbers in them."""
    lines = [line for line in text.splitlines() if "Warning:" in line]
    return {re.sub(r"[\d.:]+", "", line.partition("Warning:")[2]) for line in lines}


def files(folder: Path) -> dict[str, Path]:
    return {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}


def contents(path: Path):
    """A file's bytes; of a zip its members', whose times differ."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    return path.read_bytes()


def run_all(chosen: Iterable[Script], keep: Path | None = None) -> Iterator[Row]:
    """Run scripts, two at once; rows come as they are ready. keep: a folder for what they wrote."""
    place = Path(keep or tempfile.mkdtemp(prefix="watched-"))
    waiting = []
    for script in chosen:
        kinds = (True, False) if script.kind == "right" else (True,)
        waiting += [Run(script, kind, place / script.name / ("watched" if kind else "bare")) for kind in kinds]
    going, done = [], {}
    try:
        while waiting or going:
            while waiting and len(going) < AT_ONCE:
                going.append(waiting.pop(0))
                going[-1].start()
            time.sleep(TICK_S)
            for run in [run for run in going if run.over()]:
                going.remove(run)
                script = run.script
                of = done.setdefault(script.name, {})
                of[run.watched] = run
                if len(of) == (2 if script.kind == "right" else 1):
                    yield judge(script, of[True], of.get(False))
    finally:
        for run in going:
            run.end()
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)
