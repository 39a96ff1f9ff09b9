"""Where a rank stands, read from what faulthandler writes: real dumps of both engines, shortened at the outer end."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from bench.launch import stacks, supervise
from bench.mistakes import MISTAKES
from bench.process.heartbeat import Heartbeat


@pytest.fixture(autouse=True)
def no_guard_answers(monkeypatch):
    """The ranks here have no guard, but where a test says so."""
    monkeypatch.setattr(stacks, "ANSWER_S", 0.3)


SITE = "/v/lib/python3.11/site-packages"
GUARD = f"""Thread 0x00007f8d4fca46c0 (most recent call first):
  File "{stacks.PROJECT}/bench/process/guard.py", line 59 in watch
  File "{stacks.STANDARD}/threading.py", line 982 in run
  File "{stacks.STANDARD}/threading.py", line 1002 in _bootstrap

Current thread 0x00007f8d513d0b80 (most recent call first):
"""
END = f"""  File "{stacks.PROJECT}/bench/worker.py", line 212 in <module>
  File "<frozen runpy>", line 88 in _run_code
  File "<frozen runpy>", line 198 in _run_module_as_main
"""
STEP = f'  File "{stacks.PROJECT}/bench/training/loop.py", line 148 in take_step\n'
MODULE = f"""  File "{SITE}/torch/nn/modules/module.py", line 1794 in _call_impl
  File "{SITE}/torch/nn/modules/module.py", line 1783 in _wrapped_call_impl
"""
DDP = f"{SITE}/torch/nn/parallel/distributed.py"

ALL_REDUCE = f"""  File "{SITE}/torch/distributed/distributed_c10d.py", line 3913 in all_reduce
  File "{SITE}/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "{stacks.PROJECT}/bench/modes/collectives.py", line 45 in reduce
  File "{stacks.PROJECT}/bench/modes/ddp.py", line 94 in reduce
  File "{stacks.PROJECT}/bench/training/epochs.py", line 275 in validate
"""
SYNC_BUFFERS = f"""  File "{DDP}", line 2364 in _distributed_broadcast_coalesced
  File "{DDP}", line 2452 in _default_broadcast_coalesced
  File "{DDP}", line 2430 in _sync_module_buffers
  File "{DDP}", line 2426 in _sync_buffers
  File "{DDP}", line 1783 in _pre_forward
  File "{DDP}", line 1887 in forward
{MODULE}{STEP}"""
CONVOLUTION = f"""  File "{SITE}/torch/nn/modules/conv.py", line 548 in _conv_forward
  File "{SITE}/torch/nn/modules/conv.py", line 553 in forward
{MODULE}  File "{DDP}", line 1711 in _run_ddp_forward
  File "{DDP}", line 1891 in forward
{MODULE}{STEP}"""
BACKWARD = f"""  File "{SITE}/torch/autograd/graph.py", line 1072 in _engine_run_backward
  File "{SITE}/torch/autograd/__init__.py", line 395 in backward
  File "{SITE}/torch/_tensor.py", line 623 in backward
  File "{stacks.PROJECT}/bench/training/loop.py", line 152 in take_step
"""
HOOKS = f"""  File "{SITE}/horovod/torch/mpi_ops.py", line 1285 in synchronize
  File "{SITE}/horovod/torch/optimizer.py", line 284 in synchronize
  File "{stacks.PROJECT}/bench/modes/horovod.py", line 84 in synchronize
  File "{stacks.PROJECT}/bench/training/loop.py", line 155 in take_step
"""
GATHER = f"""  File "{SITE}/horovod/torch/mpi_ops.py", line 1285 in synchronize
  File "{SITE}/horovod/torch/mpi_ops.py", line 205 in forward
  File "{SITE}/horovod/torch/mpi_ops.py", line 254 in allreduce
  File "{stacks.PROJECT}/bench/modes/horovod.py", line 104 in reduce
  File "{stacks.PROJECT}/bench/training/epochs.py", line 127 in mean_loss_sum
"""
ASLEEP = f'  File "{stacks.PROJECT}/bench/training/loop.py", line 214 in break_on_purpose\n'
LOADER = f"""  File "{stacks.STANDARD}/selectors.py", line 415 in select
  File "{SITE}/torch/utils/data/dataloader.py", line 1288 in _try_get_data
  File "{stacks.PROJECT}/bench/workload/loader.py", line 201 in plain_errors
"""
DIVIDING = f'  File "{stacks.PROJECT}/bench/modes/dp.py", line 90 in forward\n{STEP}'


def at(file: str, line: int, function: str, collective) -> dict:
    return {"file": file, "line": line, "function": function, "collective": collective}


PLACES = {
    "all_reduce": (ALL_REDUCE, at("bench/training/epochs.py", 275, "validate", True)),
    "buffers in DDP's forward": (SYNC_BUFFERS, at("bench/training/loop.py", 148, "take_step", True)),
    "a layer in DDP's forward": (CONVOLUTION, at("bench/training/loop.py", 148, "take_step", False)),
    "backward": (BACKWARD, at("bench/training/loop.py", 152, "take_step", None)),
    "Horovod's optimizer": (HOOKS, at("bench/training/loop.py", 155, "take_step", True)),
    "Horovod's allreduce": (GATHER, at("bench/training/epochs.py", 127, "mean_loss_sum", True)),
    "asleep": (ASLEEP, at("bench/training/loop.py", 214, "break_on_purpose", False)),
    "a loader": (LOADER, at("bench/workload/loader.py", 201, "plain_errors", False) | {"awaits_batch": True}),
    "a mode's own work": (DIVIDING, at("bench/modes/dp.py", 90, "forward", False)),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_line_and_whether_it_is_a_collective(name):
    frames, expected = PLACES[name]
    assert stacks.place(GUARD + frames + END) == expected


def test_a_script_of_somebody_elses_is_named_by_its_last_two_parts():
    """Wherever its torch was built, and with Python 3.14's names of threads."""
    dump = """Thread 0x00007f8d513d0b80 [python] (most recent call first):
  File "/opt/src/torch/distributed/distributed_c10d.py", line 3913 in all_reduce
  File "/home/jane/thesis/train.py", line 7 in main
  File "/home/jane/thesis/train.py", line 9 in <module>
"""
    assert stacks.place(dump) == at("thesis/train.py", 7, "main", True)


@pytest.mark.parametrize(
    "dump",
    [
        "",
        "NCCL INFO Bootstrap: using eth0",
        GUARD,
        GUARD.partition("\n\n")[0] + "\n...\n",  # a hundred threads, and the main one not among them
        GUARD.partition("\n\n")[0] + "\n\n",
        GUARD + ALL_REDUCE[: ALL_REDUCE.index(" in reduce")] + "\n",
        'Traceback (most recent call last):\n  File "/home/jane/train.py", line 7, in main\n',
    ],
    ids=["nothing", "no dump", "no frame", "too many threads", "another thread", "cut", "a traceback"],
)
def test_nothing_is_made_up(dump):
    """A dump that is not at its end yet says nothing: what is there may be another thread."""
    assert stacks.place(dump) is None


def test_a_stack_too_deep_for_a_dump_is_still_one():
    assert stacks.place(GUARD + ASLEEP + 99 * STEP + "  ...\n") == PLACES["asleep"][1]


SLEEPER = """
import faulthandler, signal, sys, threading, time
faulthandler.register(signal.SIGUSR1, all_threads=True, file=open(sys.argv[1], "a"))
def first():
    print(flush=True)
    while not done.is_set(): time.sleep(0.01)
def second():
    print(flush=True)
    time.sleep(60)
done = threading.Event()
threading.Thread(target=lambda: sys.stdin.read(1) and done.set(), daemon=True).start()
first()
second()
"""


def test_the_dump_that_was_asked_for_counts_and_no_earlier_one(tmp_path):
    """Rank 0 has gone on since its first dump; rank 1 is gone, and its log holds the dump of another day."""
    (tmp_path / "rank1.log").write_text(GUARD + ASLEEP + END)
    script = tmp_path / "jane" / "sleeper.py"
    script.parent.mkdir()
    script.write_text(SLEEPER)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, script, tmp_path / "rank0.log"], text=True, **pipes) as process:
        try:
            process.stdout.readline()
            assert stacks.collect({0: process.pid}, tmp_path)[0]["function"] == "first"
            process.stdin.write("x")
            process.stdin.close()
            process.stdout.readline()
            found = stacks.collect({0: process.pid, 1: None}, tmp_path)
        finally:
            process.kill()
    printing, asleep = (at("jane/sleeper.py", line, "second", False) for line in (8, 9))  # it has printed, and may yet
    assert found[1] is None and found[0] in (printing, asleep)  # be in that line


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


def test_a_dump_that_is_slow_to_come_is_waited_for(tmp_path):
    """On a busy machine a rank may pause between two threads of its dump for longer than it takes to look again."""
    other, main = (GUARD + ASLEEP + END).split("\n\n")
    command = [sys.executable, "-c", WRITER, tmp_path / "rank0.log", f"{other}\n\n", main]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            assert stacks.collect({0: process.pid}, tmp_path) == [SLEEPING]
        finally:
            process.kill()


def test_a_place_is_of_its_rank_whatever_ranks_are_asked(tmp_path):
    """The ranks of a second node do not begin with 0."""
    command = [sys.executable, "-c", WRITER, tmp_path / "rank3.log", GUARD + ASLEEP + END]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            assert stacks.collect({2: None, 3: process.pid}, tmp_path) == [None, SLEEPING]
        finally:
            process.kill()


def test_a_rank_that_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(stacks, "LIMIT_S", 1000.0)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        while stacks.alive(process.pid):
            time.sleep(0.05)
        assert stacks.collect({0: process.pid, 1: None}, tmp_path) == [None, None]


def test_the_last_thread_of_a_dump_is_the_main_one(tmp_path):
    """What reading a dump rests on, of this Python's faulthandler."""
    code = (
        "import faulthandler, threading; wait = threading.Event()\n"
        "def other(): wait.wait()\n"
        "for _ in range(3): threading.Thread(target=other).start()\n"
        "faulthandler.dump_traceback(all_threads=True); wait.set()"
    )
    (tmp_path / "main.py").write_text(code)
    done = subprocess.run([sys.executable, tmp_path / "main.py"], capture_output=True, text=True, timeout=30)
    assert stacks.place(done.stderr)["line"] == 4, done.stderr


# --- NCCL, which does not keep the host -----------------------------------------------------------------------------


def recorded(*entries: tuple[str, int, list, str]) -> str:
    """What torch's flight recorder writes, shortened. entries: operation, number, sizes, state."""
    keys = ("profiling_name", "collective_seq_id", "input_sizes", "state")
    common = {"process_group": ["0", "default_pg"], "is_p2p": False, "retired": False, "timeout_ms": 960000}
    rows = [dict(zip(keys, entry, strict=True)) | common for entry in entries]
    return json.dumps({"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": rows})


LONE = ("nccl:all_reduce", 41, [[3]], "started")
OTHER = ("nccl:_allgather_base", 41, [[17]], "scheduled")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (recorded(LONE), "all_reduce of [3], number 41"),
        (recorded(("nccl:broadcast", 43, [[9, 2], [4]], "scheduled"), LONE), "all_reduce of [3], number 41"),
        (recorded(("nccl:all_reduce", 40, [[3]], "completed")), ""),
        (recorded(), ""),
        ('{"version": "2.10", "pg_config": {}}', ""),  # no NCCL
        ("", ""),
        ("[1]", ""),
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
    says = [recorded(LONE), recorded(OTHER), recorded(("nccl:all_reduce", 40, [[3]], "completed"))]
    command, environment = [sys.executable, tmp_path / "rank.py", tmp_path], os.environ | {"PYTHONPATH": stacks.PROJECT}
    processes = [subprocess.Popen([*command, str(rank), text], env=environment) for rank, text in enumerate(says)]
    try:
        while not all((tmp_path / f"ready{rank}").exists() for rank in range(3)):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        first, second, asleep = stacks.collect({rank: p.pid for rank, p in enumerate(processes)}, tmp_path)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert first["collective"] is second["collective"] is True and asleep["collective"] is False
    assert first["awaits"] == "all_reduce of [3], number 41" and second["awaits"].startswith("_allgather_base of [17]")
    assert not (tmp_path / ".collectives-wanted").exists()


def test_ranks_that_await_different_collectives_of_nccl_are_the_mistake():
    """Both hosts wait for a device; what they await tells that rank 0 is in a collective that no other is in."""
    lone = at("bench/training/epochs.py", 276, "validate", True) | {"awaits": "all_reduce of [3], number 41"}
    other = at("bench/training/epochs.py", 150, "end_epoch", True) | {"awaits": "_allgather_base of [17], number 41"}
    rank, message = said([lone, other], [(6, "validating"), (6, "validating")])
    assert rank == 0 and "epochs.py:276 (validate), awaiting all_reduce of [3], number 41, rank 1 in another" in message
    assert MISTAKES["rank0-collective"].detect({"hang": {"where": [lone, other], "limit_s": 20}})
    sleeps = SLEEPING  # rank 1 hangs by itself: another fault
    assert not MISTAKES["rank0-collective"].detect({"hang": {"where": [lone, sleeps], "limit_s": 20}})


# --- What is said of it ---------------------------------------------------------------------------------------------

VALIDATING, LOSS = (
    at("bench/training/epochs.py", 275, "validate", True),
    at("bench/training/epochs.py", 150, "end_epoch", True),
)
FORWARD, PASS = (
    at("bench/training/loop.py", 148, "take_step", True),
    at("bench/training/loop.py", 152, "take_step", None),
)
SLEEPING = at("bench/training/loop.py", 214, "break_on_purpose", False)


def said(where: list, positions: list) -> tuple[int, str]:
    """positions: (step from 0, phase) by rank."""
    beats = [Heartbeat(100, phase, step, 9, 0.0) for step, phase in positions]
    return supervise.explain(beats, where, 20)


def test_ranks_in_different_collectives_are_named():
    rank, message = said([VALIDATING, LOSS, LOSS], [(6, "validating"), (6, "validating"), (6, "validating")])
    places = r"20 s .*TIMEOUT.* rank 0 .*epochs\.py:275 \(validate\), ranks 1, 2 .*epochs\.py:150 \(end_epoch\)"
    assert rank == 0 and re.search(places, message), message


def test_a_backward_pass_is_not_called_a_collective():
    _, message = said([VALIDATING, PASS], [(6, "validating"), (7, "backward")])
    assert "rank 1 in a backward pass at bench/training/loop.py:152 (take_step): not all ranks entered it" in message


def test_a_rank_that_has_ended_keeps_the_others_waiting():
    _, message = said([VALIDATING, None], [(8, "validating"), (8, "done")])
    assert "rank 1 has ended: not all ranks entered it" in message


@pytest.mark.parametrize("waiting", [FORWARD, PASS])
@pytest.mark.parametrize("bad", [SLEEPING, None])  # None: it writes no stack, for it is stopped
def test_a_rank_outside_of_a_collective_hangs_and_the_others_wait(waiting, bad):
    rank, message = said([waiting, bad, waiting], [(2, "forward"), (2, "waiting for data"), (2, "forward")])
    assert rank == 1 and message.startswith("rank 1 hangs")
    assert all(words in message for words in ("rank 0: step 3 of 9, forward, at ", "20 s", "TIMEOUT")), message


def test_a_rank_whose_place_is_known_is_named_before_one_that_wrote_none():
    rank, _ = said([None, SLEEPING, FORWARD], [(2, "waiting for data"), (2, "waiting for data"), (2, "forward")])
    assert rank == 1


def test_a_rank_in_a_later_phase_may_be_the_one_that_hangs():
    """The others wait in the forward pass of the step before."""
    rank, message = said([FORWARD, SLEEPING], [(2, "forward"), (2, "validating")])
    assert rank == 1 and message.startswith("rank 1 hangs")


def test_nobody_is_blamed_where_the_stacks_tell_nothing():
    """On GPUs a rank waits for the device outside of any collective."""
    rank, message = said([SLEEPING, SLEEPING], [(3, "forward"), (2, "backward")])
    assert rank == 1 and message.startswith("rank 1 is furthest behind")
    rank, message = said([PASS, PASS], [(3, "backward"), (3, "backward")])
    assert message.startswith("no progress") and "larger TIMEOUT" in message


@pytest.mark.parametrize(("position", "waiting"), [((0, "building the model"), FORWARD), ((1, "backward"), PASS)])
def test_gpus_without_nvlink_that_all_wait_at_the_first_step_are_told_of_peer_to_peer(position, waiting):
    (step, phase), both = position, [waiting, waiting]
    beats, later = ([Heartbeat(100, phase, step + more, 9, 0.0)] * 2 for more in (0, 5))
    _, message = supervise.explain(beats, both, 20, pcie=True)
    assert "NCCL_P2P_DISABLE=1" in message and "TIMEOUT" in message and "\n" not in message
    for others in ((later, both, True), (beats, [waiting, SLEEPING], True), (beats, both, False)):
        assert "NCCL_P2P_DISABLE" not in supervise.explain(*others[:2], 20, pcie=others[2])[1]


OVER_PCIE = """
import json, pathlib; from bench.launch import supervise
folder = pathlib.Path({folder!r})
def answer(device, nodes=1):
    (folder / "config.json").write_text(json.dumps({{"device": device}}))
    return supervise.over_pcie([None] * nodes, folder)
print(json.dumps([answer("cuda"), answer("cpu"), answer("cuda", nodes=2)]))
"""


def test_whether_gpus_are_joined_by_nvlink_is_asked_of_the_driver(nvml_stub, tmp_path):
    code = OVER_PCIE.format(folder=str(tmp_path))
    assert nvml_stub.run(code, count=2) == [True, False, False]
    assert nvml_stub.run(code, count=2, nvlinks=12) == [False, False, False]
    assert nvml_stub.run(code, count=1) == nvml_stub.run(code, driver="none") == [False, False, False]
