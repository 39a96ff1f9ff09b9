"""Where a rank stands, read from what faulthandler writes: real dumps of both engines, shortened."""

import json
import os
import subprocess
import sys

import pytest

from bench.launch import stacks, supervise
from bench.mistakes import MISTAKES
from bench.process.heartbeat import Heartbeat
from tests.runs import wait_for

SITE = "/v/lib/python3.11/site-packages"
GUARD = f"""Thread 0x00007f8d4fca46c0 (most recent call first):
  File "{stacks.PROJECT}/bench/process/guard.py", line 59 in watch
  File "{stacks.STANDARD}/threading.py", line 1002 in _bootstrap

"""
HEAD = "Current thread 0x00007f8d513d0b80 (most recent call first):\n"
OUTERMOST = ["bench/worker.py:212 <module>", "<frozen runpy>:88 _run_code", "<frozen runpy>:198 _run_module_as_main"]
DDP = "torch/nn/parallel/distributed.py"


def frames(*places: str) -> str:
    """ "torch/_tensor.py:623 backward" … as frames, the innermost first; of the installed packages or the project."""
    text = ""
    for place in places:
        file, _, rest = place.partition(":")
        number, function = rest.split(" ", 1)
        folder = SITE if file.startswith(("torch/", "horovod/")) else stacks.PROJECT
        full = file if file[0] in "/<" else f"{folder}/{file}"
        text += f'  File "{full}", line {number} in {function}\n'
    return text


def at(place: str, collective, **more) -> dict:
    file, _, rest = place.partition(":")
    number, function = rest.split(" ")
    return {"file": file, "line": int(number), "function": function, "collective": collective} | more


STEP, VALIDATE = "bench/training/loop.py:148 take_step", "bench/training/epochs.py:275 validate"
SLEEP, LOAD = "bench/training/loop.py:214 break_on_purpose", "bench/workload/loader.py:201 plain_errors"
DP, TRAIN = "bench/modes/dp.py:90 forward", "/home/jane/thesis/train.py:7 main"
REDUCE = "torch/distributed/distributed_c10d.py:3913 all_reduce"
# Its frames, but for those of the last line; whether it is in a collective, None: it may be.
PLACES = {
    "all_reduce": ([REDUCE, "bench/modes/collectives.py:45 reduce", "bench/modes/ddp.py:94 reduce", VALIDATE], True),
    "buffers in DDP's forward": ([f"{DDP}:2364 _distributed_broadcast_coalesced", f"{DDP}:1887 forward", STEP], True),
    "a layer in DDP's forward": (["torch/nn/modules/conv.py:548 _conv_forward", f"{DDP}:1711 forward", STEP], False),
    "backward": (["torch/autograd/graph.py:1072 _engine_run", "torch/_tensor.py:623 backward", STEP], None),
    "Horovod": (["horovod/torch/mpi_ops.py:1285 synchronize", "bench/modes/horovod.py:84 synchronize", STEP], True),
    "asleep": ([SLEEP], False),
    "a loader": ([f"{stacks.STANDARD}/selectors.py:415 select", "torch/utils/data/dataloader.py:1 _get", LOAD], False),
    "a mode's own work": ([f"{stacks.STANDARD}/threading.py:331 wait", DP], False),
    "a script, with a torch built elsewhere": ([f"/opt/src/{REDUCE}", TRAIN], True),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_line_and_whether_it_is_a_collective(name):
    """Somebody else's script is named by its last two parts. Also with Python 3.14's names of threads; and too deep a
    stack for a dump is still one."""
    places, collective = PLACES[name]
    more = {"awaits_batch": True} if LOAD in places else {}
    expected = at(places[-1].removeprefix("/home/jane/"), collective, **more)
    for head in (HEAD, HEAD.replace(" (most", " [python] (most")):
        assert stacks.place(GUARD + head + frames(*places, STEP, *OUTERMOST)) == expected
        assert stacks.place(GUARD + head + frames(*places, *[STEP] * 99) + "  ...\n") == expected


ASLEEP = HEAD + frames(SLEEP, *OUTERMOST)


@pytest.mark.parametrize(
    "dump",
    [
        "",
        GUARD + HEAD,
        GUARD + "...\n",  # a hundred threads, and the main one not among them
        GUARD + HEAD + frames(SLEEP)[:-20] + "\n",
        'Traceback (most recent call last):\n  File "/home/jane/train.py", line 7, in main\n',
    ],
    ids=["nothing", "no frame", "too many threads", "cut", "a traceback"],
)
def test_nothing_is_made_up(dump):
    """A dump that is not at its end yet says nothing: what is there may be another thread."""
    assert stacks.place(dump) is None


WRITER = """
import signal, sys, time
def answer(*_):
    for part in sys.argv[2:]:
        time.sleep(0.7)
        with open(sys.argv[1], "a") as log: log.write(part)
signal.signal(signal.SIGUSR1, answer)
print(flush=True)
time.sleep(60)
"""


def test_a_dump_that_is_slow_to_come_is_waited_for_and_a_rank_that_is_gone_is_not(tmp_path, monkeypatch):
    """On a busy machine a rank may pause between two threads of its dump for longer than it takes to look again. No
    earlier dump counts. The ranks of a second node do not begin with 0."""
    monkeypatch.setattr(stacks, "LIMIT_S", 1000.0)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for rank in (2, 3):
        (tmp_path / f"rank{rank}.log").write_text(GUARD + HEAD + frames(STEP, *OUTERMOST))
    command = [sys.executable, "-c", WRITER, tmp_path / "rank3.log", GUARD, ASLEEP]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            places = stacks.collect({2: None, 3: process.pid, 4: gone.pid}, tmp_path)
        finally:
            process.kill()
    assert places == [None, at(SLEEP, False), None]


def recorded(*entries: tuple[str, int, list, str]) -> str:
    """What torch's flight recorder writes, shortened. entries: operation, number, sizes, state."""
    keys = ("profiling_name", "collective_seq_id", "input_sizes", "state")
    rows = [dict(zip(keys, entry, strict=True)) | {"process_group": ["0", "default_pg"]} for entry in entries]
    return json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": rows})


LONE, OTHER = ("nccl:all_reduce", 41, [[3]], "started"), ("nccl:_allgather_base", 41, [[17]], "scheduled")
DONE = ("nccl:all_reduce", 40, [[3]], "completed")
AWAITS = {LONE[0]: "all_reduce of [3], number 41", OTHER[0]: "_allgather_base of [17], number 41"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (recorded(DONE, ("nccl:broadcast", 43, [[9, 2], [4]], "scheduled"), LONE), AWAITS[LONE[0]]),
        (recorded(DONE), ""),
        ("", ""),
        ('{"entries": [{"state": "started"}]}', ""),  # another version's
    ],
)
def test_the_first_collective_that_nccl_has_not_done(text, words):
    assert stacks.unfinished(text) == words


RANK = """
import sys, time, types
from pathlib import Path
from bench.process.guard import Guard
c10d = sys.modules["torch._C._distributed_c10d"] = types.ModuleType("c10d")  # torch's, as far as it is asked
c10d._dump_nccl_trace_json = lambda *asked: sys.argv[3].encode() if asked == (True, True) else b""
def validate(): time.sleep(60)  # the host waits for the device
with Guard(Path(sys.argv[1]), int(sys.argv[2])):
    Path(sys.argv[1], "ready" + sys.argv[2]).touch()
    validate()
"""


def test_a_rank_that_waits_for_the_device_is_asked_what_nccl_has_not_done(tmp_path, monkeypatch):
    """Real processes with a rank's guard. Rank 0 has entered a collective that rank 1 has not, rank 2 sleeps."""
    monkeypatch.setattr(stacks, "ANSWER_S", 60.0)
    (tmp_path / "rank.py").write_text(RANK)
    command, environment = [sys.executable, tmp_path / "rank.py", tmp_path], os.environ | {"PYTHONPATH": stacks.PROJECT}
    says = enumerate(map(recorded, (LONE, OTHER, DONE)))
    processes = [subprocess.Popen([*command, str(rank), text], env=environment) for rank, text in says]
    try:
        wait_for(lambda: len(list(tmp_path.glob("ready*"))) == 3, "all ranks are ready")
        found = stacks.collect({rank: p.pid for rank, p in enumerate(processes)}, tmp_path)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [place["collective"] for place in found] == [True, True, False]
    assert [place.get("awaits") for place in found] == [*AWAITS.values(), None]
    assert not (tmp_path / ".collectives-wanted").exists()


VALIDATING, LOSS = at(VALIDATE, True), at("bench/training/epochs.py:150 end_epoch", True)
FORWARD, PASS, SLEEPING = at(STEP, True), at("bench/training/loop.py:152 take_step", None), at(SLEEP, False)
OF_NCCL = [VALIDATING | {"awaits": AWAITS[LONE[0]]}, LOSS | {"awaits": AWAITS[OTHER[0]]}]
# Where each rank is, its step and phase; the rank that is named, and whether rank 0 has entered a collective alone.
HANGS = {
    "different collectives": ([VALIDATING, LOSS, LOSS], [(6, "validating")] * 3, 0, True),
    "of NCCL": (OF_NCCL, [(6, "validating")] * 2, 0, True),
    "a backward pass": ([VALIDATING, PASS], [(6, "validating"), (7, "backward")], 0, True),
    "one has ended": ([VALIDATING, None], [(8, "validating"), (8, "done")], 0, False),
    "one is asleep": ([FORWARD, SLEEPING, PASS], [(2, "forward"), (2, "waiting for data"), (2, "backward")], 1, False),
    "one writes no stack": ([PASS, None], [(2, "backward"), (2, "waiting for data")], 1, False),
    "one place is known": ([None, SLEEPING, FORWARD], [(2, "waiting for data")] * 2 + [(2, "forward")], 1, False),
    "in a later phase": ([FORWARD, SLEEPING], [(2, "forward"), (2, "validating")], 1, False),
    # On GPUs a rank waits for the device outside of any collective.
    "the stacks tell nothing": ([SLEEPING, SLEEPING], [(3, "forward"), (2, "backward")], 1, False),
    "nor do the steps": ([PASS, PASS], [(3, "backward")] * 2, 0, False),
}


@pytest.mark.parametrize("name", HANGS)
def test_the_rank_to_look_at_first(name):
    where, positions, first, alone = HANGS[name]
    rank, message = supervise.explain([Heartbeat(100, phase, step, 9, 0.0) for step, phase in positions], where, 20)
    assert rank == first and "20 s" in message and "TIMEOUT" in message
    for place in filter(None, where):
        assert stacks.name(place) in message and place.get("awaits", "") in message
    assert bool(MISTAKES["rank0-collective"].detect({"hang": {"where": where, "limit_s": 20}})) == alone


@pytest.mark.parametrize(
    ("step", "other", "pcie", "told"),
    [(0, FORWARD, True, True), (1, PASS, True, True), (5, FORWARD, True, False), (1, SLEEPING, True, False),
     (1, FORWARD, False, False)],
)  # fmt: skip
def test_gpus_without_nvlink_that_all_wait_at_the_first_step_are_told_of_peer_to_peer(step, other, pcie, told):
    first = FORWARD if other is SLEEPING else other
    _, message = supervise.explain([Heartbeat(100, "backward", step, 9, 0.0)] * 2, [first, other], 20, pcie=pcie)
    assert ("NCCL_P2P_DISABLE=1" in message) == told


OVER_PCIE = """
import json, pathlib; from bench.launch import supervise
folder = pathlib.Path({folder!r})
def answer(device, nodes=1):
    (folder / "config.json").write_text(json.dumps({{"device": device}}))
    return supervise.over_pcie([None] * nodes, folder)
print(json.dumps([answer("cuda"), answer("cpu"), answer("cuda", nodes=2)]))
"""


@pytest.mark.parametrize(("nvlinks", "told"), [(0, True), (12, False)])
def test_whether_gpus_are_joined_by_nvlink_is_asked_of_the_driver(nvlinks, told, nvml_stub, tmp_path):
    assert nvml_stub.run(OVER_PCIE.format(folder=str(tmp_path)), count=2, nvlinks=nvlinks) == [told, False, False]
