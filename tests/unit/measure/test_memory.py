"""`bench/measure/memory.py`: the sampler on the host for real, and on GPUs that a made-up driver shows."""

import json
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from bench.measure import memory
from tests.runs import wait_for

pytestmark = pytest.mark.slow

CPU = SimpleNamespace(type="cpu", index=None)  # all that the sampler asks of a torch.device
linux = pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux's smaps_rollup")


def run_python(code: str):
    """What `code`, run by a fresh Python without this one's threads, printed last, read as JSON."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=os.getcwd())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# --- the host ---------------------------------------------------------------------------------------------------


TAKE_200_MIB = """
import json, mmap
from types import SimpleNamespace
from bench.measure import memory
sampler = memory.MemorySampler([SimpleNamespace(type="cpu", index=None)])
sampler.start()
sampler.mark("before")
block = mmap.mmap(-1, 200 * 2**20)
block[:: mmap.PAGESIZE] = b"x" * (200 * 2**20 // mmap.PAGESIZE)
sampler.mark("full")
block.close()
sampler.mark("after")
print(json.dumps(sampler.stop()))
"""


@linux
def test_200_mib_are_seen_where_they_were_taken():
    """In a process of its own: the PSS of this one, which has torch's pages, falls when another one maps them, too."""
    (device,) = run_python(TAKE_200_MIB)
    pss = device["timeline"]["pss_gib"]
    assert len(pss) == len(device["timeline"]["time_s"]) >= 6  # two at the start, three marks, one at the stop
    assert device["peak_memory_gib"]["pss"] == max(pss)
    assert 195 < (max(pss) - pss[0]) * 1024 < 215
    assert (max(pss) - pss[-1]) * 1024 > 195
    assert device["peak_memory_gib"]["rss_hwm"] * 1024 > 200
    assert list(device["marks"]) == ["before", "full", "after"]
    assert device["timeline"]["time_s"] == sorted(device["timeline"]["time_s"])
    assert device["device"] == "cpu" and device["name"] and device["uuid"] is None
    assert device["energy_j"] is None and any("energy_j" in note for note in device["notes"])
    assert json.loads(json.dumps(device, allow_nan=False)) == device


@linux
def test_shared_pages_count_once_in_pss_and_every_time_in_rss():
    code = """
import json, multiprocessing, os
from types import SimpleNamespace
from bench.measure import memory
def hold(ready, leave):
    ready.release(); leave.wait()
block = b"\\x01" * (200 << 20)
fork = multiprocessing.get_context("fork")
ready, leave = fork.Semaphore(0), fork.Event()
children = [fork.Process(target=hold, args=(ready, leave)) for _ in range(4)]
for child in children: child.start()
for child in children: ready.acquire()
pids = [os.getpid(), *(child.pid for child in children)]
pss, rss = [[reader(pid) / 2**20 for pid in pids] for reader in (memory.read_pss, memory.read_rss)]
sampler = memory.MemorySampler([SimpleNamespace(type="cpu", index=None)])
sampler.start()
seen = sampler.stop()[0]["peak_memory_gib"]["pss"] * 1024
leave.set()
for child in children: child.join()
print(json.dumps([pss, rss, seen]))
"""
    pss, rss, seen = run_python(code)
    assert sum(rss) > 5 * 200  # the same 200 MiB in each of five processes
    assert 200 < sum(pss) < 320
    assert all(35 < share < 80 for share in pss)  # a fifth of the block, and what each has for itself
    assert seen == pytest.approx(sum(pss), rel=0.1)  # the sampler counts the processes started by multiprocessing


@linux
def test_workers_of_a_torch_loader_are_counted():
    code = """
import json, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork of a process with threads
import torch
from torch.utils.data import DataLoader
from bench.measure import memory
stream = iter(DataLoader(range(64), num_workers=2, batch_size=4))
next(stream)
sampler = memory.MemorySampler([torch.device("cpu")]); sampler.start()
pids, own = memory.worker_pids(), sorted(worker.pid for worker in stream._workers)
sampler.mark("with"); del stream; sampler.mark("without")
device = sampler.stop()[0]
print(json.dumps([sorted(pids), own, memory.worker_pids(), device["timeline"]["pss_gib"], device["notes"]]))
"""
    pids, own, later, pss, notes = run_python(code)
    assert pids == own and len(own) == 2 and later == []
    assert pss[2] > pss[3] > 0
    assert len(notes) == 1  # about energy


@linux
def test_a_worker_that_has_ended_counts_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert memory.HostProbe()._read_worker(child.pid) == 0


@linux
def test_sampling_takes_little_of_a_core():
    """A fifth of a percent by the next test's rule. Here ten times that: on a busy machine a sample takes longer."""
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    costs = []
    for _ in range(3):  # the least: on a busy machine a second of a core does less
        before = time.process_time()
        time.sleep(2)
        costs.append(time.process_time() - before)
    (device,) = sampler.stop()
    assert min(costs) < 0.02 * 2
    assert device["sample_cost_s"] > 0 and device["sample_interval_s"] >= 0.25


def test_interval_follows_the_cost_and_the_length_of_the_timeline():
    sampler = memory.MemorySampler([CPU])
    assert sampler._interval() == 0.25
    sampler._costs.extend([0.001, 0.003])
    assert sampler._interval() == pytest.approx(1.5)
    sampler._costs.append(0.0)
    sampler._traces = [SimpleNamespace(times=[0.0] * 4000)]
    assert sampler._interval() == 1.0


def test_a_mark_begins_the_pause_anew(monkeypatch):
    """So a mark just before the timed steps keeps the thread away from them for as long as it would after a sample. The
    interval leaves a machine that is busy with other tests most of a second to wake up in."""
    monkeypatch.setattr(memory, "MIN_INTERVAL_S", 1.0)
    monkeypatch.setattr(memory, "PAUSE_PER_COST", 0)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    for name in "abcd":
        time.sleep(0.3)
        sampler.mark(name)
    (device,) = sampler.stop()
    assert len(device["timeline"]["time_s"]) == 7  # two at the start, four marks, one at the stop: none by the thread

    sampler = memory.MemorySampler([CPU])
    sampler.start()
    wait_for(lambda: len(sampler._traces[0].times) > 3, "two samples by the thread", within=60)
    (device,) = sampler.stop()
    times = device["timeline"]["time_s"]
    assert min(times[2] - times[1], times[3] - times[2]) > 0.9


def test_no_pause_once_stopped_while_sampling_without_end(monkeypatch):
    monkeypatch.setattr(memory, "MIN_INTERVAL_S", 0)
    monkeypatch.setattr(memory, "PAUSE_PER_COST", 0)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    sampler.stop()
    assert not sampler._thread.is_alive()


def test_cpu_devices_share_one_entry_and_replicas_are_noted():
    sampler = memory.MemorySampler([CPU, CPU, CPU], cpu_replicas=True)
    sampler.start()
    (device,) = sampler.stop()
    assert any("all of them together" in note for note in device["notes"])


def test_without_pss_the_next_best_figure_stands_for_it(monkeypatch):
    def missing(pid):
        raise FileNotFoundError

    monkeypatch.setattr(memory, "read_pss", missing)
    monkeypatch.setattr(memory, "read_uss", missing)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    (device,) = sampler.stop()
    assert device["peak_memory_gib"]["rss"] > 0 and "pss" not in device["peak_memory_gib"]
    assert any(note.startswith("pss: this system has none; rss") for note in device["notes"])


# --- errors end in a note ---------------------------------------------------------------------------------------


def test_an_error_while_sampling_ends_in_a_note(monkeypatch):
    def broken(self):
        raise ValueError("unreadable")

    monkeypatch.setattr(memory.HostProbe, "read", broken)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    sampler.mark("timed")
    (device,) = sampler.stop()
    assert device["timeline"] == {"time_s": []} and device["peak_memory_gib"]["pss"] is None
    assert "The sampler failed to read: ValueError: unreadable" in device["notes"]
    assert device["peak_memory_gib"]["rss_hwm"] > 0  # what does not need a sample is still there


def test_a_device_that_cannot_be_opened_ends_in_a_note(monkeypatch):
    def broken(*arguments):
        raise RuntimeError("no such device")

    monkeypatch.setattr(memory, "HostProbe", broken)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    sampler.mark("timed")
    (device,) = sampler.stop()
    assert device["peak_memory_gib"] == {} and "no such device" in device["notes"][0]


def test_stop_waits_for_a_hanging_sample_no_longer_than_its_limit(monkeypatch):
    released = threading.Event()

    def hang(self):
        released.wait(120)
        return {}

    monkeypatch.setattr(memory, "STOP_LIMIT_S", 0.1)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    monkeypatch.setattr(memory.HostProbe, "read", hang)
    while not sampler._lock.locked():
        time.sleep(0.01)
    before = time.monotonic()
    (device,) = sampler.stop()
    assert time.monotonic() - before < 60
    released.set()
    assert any("did not end within" in note for note in device["notes"])
    sampler._thread.join()


def test_stop_without_start_and_stop_twice():
    assert memory.MemorySampler([CPU]).stop() == []
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    assert sampler.stop() is sampler.stop()
    assert not sampler._thread.is_alive()


# --- GPUs of a made-up driver -----------------------------------------------------------------------------------

# torch.cuda as far as the sampler asks it. CUDA's GPU 0 is NVML's GPU 3: CUDA may order them by speed.
TORCH_CUDA = """
import json, time
from types import SimpleNamespace
GIB = 2**30
UUIDS = {0: "d3333333-0000-0000-0000-000000000003", 1: "b1111111-0000-0000-0000-000000000001"}
resets = []
torch.cuda.get_device_properties = lambda i: SimpleNamespace(name=f"GPU {i}", uuid=UUIDS[i])
torch.cuda.reset_peak_memory_stats = resets.append
torch.cuda.memory_stats = lambda i: {
    "allocated_bytes.all.current": (1 + i) * GIB, "reserved_bytes.all.current": (2 + i) * GIB,
    "allocated_bytes.all.peak": (5 + i) * GIB, "reserved_bytes.all.peak": (6 + i) * GIB}
from bench.measure.memory import MemorySampler
sampler = MemorySampler([torch.device("cuda", 0), torch.device("cuda", 1)])
begun = time.monotonic()
sampler.start()
"""
REAL = "import torch\n" + TORCH_CUDA
# All of torch takes seconds to import, and this needs no more of it.
NO_MORE = """
import sys, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda, torch.device = types.SimpleNamespace(), lambda kind, index: types.SimpleNamespace(type=kind, index=index)
"""
MADE_UP = NO_MORE + TORCH_CUDA
MARKS = 'sampler.mark("timed"); sampler.mark("end")\n'
PRINT = "print(json.dumps(sampler.stop()))\n"


def test_each_gpu_has_its_own_memory_found_by_uuid(nvml_stub):
    timed = """
time.sleep(0.3)
before = time.monotonic(); sampler.mark("timed"); time.sleep(0.6); sampler.mark("end"); after = time.monotonic()
print(json.dumps([resets, after - before, sampler.stop()]))
"""
    resets, seconds, (first, second) = nvml_stub.run(
        REAL + timed,
        used_mib=[1024, 2048, 3072, 4096],
        processes=["1:self:3584", "3:self:2560"],
        utilization=[1, 2, 3, 4],
        power_mw=[1000, 20000, 3000, 40000],
        power_limit_mw=[700000, 350000],
    )
    assert (first["power_limit_w"], second["power_limit_w"]) == (350.0, 350.0)
    assert resets == [0, 1] * 2  # at the start, and where the timed steps begin
    assert first["device"] == "cuda:0" and second["device"] == "cuda:1"
    assert first["uuid"].startswith("GPU-d3") and second["uuid"].startswith("GPU-b1")
    assert first["peak_memory_gib"] == {
        "nvml_device": 4.0, "nvml_process": 2.5, "torch_allocated": 5.0, "torch_reserved": 6.0,
    }  # fmt: skip
    assert second["peak_memory_gib"] == {
        "nvml_device": 2.0, "nvml_process": 3.5, "torch_allocated": 6.0, "torch_reserved": 7.0,
    }  # fmt: skip
    timeline = first["timeline"]
    assert set(timeline["torch_allocated_gib"]) == {1.0} and set(timeline["torch_reserved_gib"]) == {2.0}
    assert set(timeline["utilization_percent"]) == {4} and set(timeline["power_w"]) == {40.0}
    assert len({len(column) for column in timeline.values()}) == 1
    for device, watts in ((first, 40), (second, 20)):
        assert 0.6 * watts * 0.99 < device["energy_j"] < seconds * watts * 1.01  # between the marks, and no more
        assert device["notes"] == []


def test_energy_is_of_the_whole_run_without_the_marks(nvml_stub):
    timed = "time.sleep(0.6)\nreport = sampler.stop(); print(json.dumps([time.monotonic() - begun, report]))"
    seconds, (device, _) = nvml_stub.run(MADE_UP + timed, power_mw=[100000])
    assert 0.6 * 100 * 0.99 < device["energy_j"] < seconds * 100 * 1.01


def test_the_peak_is_the_highest_sample(nvml_stub):
    change = """
import os
for mib in (3072, 512):
    os.environ["STUB_NVML_USED_MIB"] = str(mib); sampler.mark(str(mib))
"""
    device, _ = nvml_stub.run(MADE_UP + change + PRINT, used_mib=[1024])
    assert device["peak_memory_gib"]["nvml_device"] == 3.0
    assert device["timeline"]["nvml_device_gib"][-1] == 0.5


def test_foreign_processes_and_a_clock_held_down_are_in_the_figures_of_a_run(nvml_stub):
    """From the driver to the summary: one process that is not the run's, and half of the timed samples too hot."""
    hot = """
import os
from bench.record.summary import gpu_disturbance
os.environ["STUB_NVML_PROCESSES"] = "3:self:2560,3:77:64"  # 99 has ended before
sampler.mark("timed")
os.environ["STUB_NVML_THROTTLE"] = "32"
time.sleep(0.01)  # moments are kept to a tenth of a millisecond
sampler.mark("end")
os.environ["STUB_NVML_THROTTLE"] = "0"
os.environ["STUB_NVML_PROCESSES"] = "3:self:2560,3:88:64"
devices = sampler.stop()
print(json.dumps([devices[0], gpu_disturbance([{"pid": os.getpid(), "devices": devices}]),
                  gpu_disturbance([{"pid": 1, "devices": devices}])]))
"""
    device, found, of_another = nvml_stub.run(
        MADE_UP + hot, processes=["3:self:2560", "3:99:64"], sm_mhz=[1980], throttle=[4]
    )
    assert set(device["timeline"]["sm_clock_mhz"]) == {1980} and len(device["processes"]) == 2
    held = {"gpu_slowed_share": 0.5, "gpu_power_capped_share": 0.5}  # 4 is the power limit, and no disturbance
    assert found == {"foreign_gpu_processes": 1} | held
    assert of_another == held  # in a container: NVML has other numbers, and nothing is known


def test_in_a_container_the_process_figure_is_missing_with_its_reason(nvml_stub):
    device, _ = nvml_stub.run(MADE_UP + MARKS + PRINT, processes=["3:4242:100"])
    assert device["peak_memory_gib"]["nvml_process"] is None
    assert device["peak_memory_gib"]["nvml_device"] is not None
    assert [note for note in device["notes"] if note.startswith("nvml_process: ") and "container" in note]


def test_a_driver_that_refuses_process_figures_is_said_to(nvml_stub):
    """Memory is then the device's, and whose processes were on it is not known: not that there were none."""
    foreign = "from bench.record.summary import gpu_disturbance\nimport os\n"
    parts = "parts = [{'pid': os.getpid(), 'devices': sampler.stop()}]\n"
    device, found = nvml_stub.run(
        MADE_UP + MARKS + foreign + parts + "print(json.dumps([parts[0]['devices'][0], gpu_disturbance(parts)]))",
        processes=["3:77:100"],
        unsupported="processes",
        used_mib=[1024],
    )
    peak = device["peak_memory_gib"]
    assert peak["nvml_process"] is None and peak["nvml_device"] == 1
    assert any(note.startswith("nvml_process:") and "refuses" in note for note in device["notes"])
    assert "foreign_gpu_processes" not in found


def test_a_process_of_the_host_with_our_number_is_not_taken_for_ours(nvml_stub):
    """torch has 2 GiB reserved on the GPU, so what NVML gives 300 MiB to is somebody else."""
    device, other = nvml_stub.run(MADE_UP + MARKS + PRINT, processes=["3:self:300", "1:self:3584"])
    assert device["peak_memory_gib"]["nvml_process"] is None and "processes" not in device
    assert any("another one of the host's" in note for note in device["notes"])
    assert other["peak_memory_gib"]["nvml_process"] == 3.5 and "processes" in other


def test_a_driver_that_tells_no_memory_in_a_container_keeps_its_list(nvml_stub):
    """Newer ones list a container's processes by its own ids, with 0 bytes: whose they are is known all the same."""
    foreign = "from bench.record.summary import gpu_disturbance\nimport os\n"
    parts = "parts = [{'pid': os.getpid(), 'devices': sampler.stop()}]\n"
    device, found = nvml_stub.run(
        MADE_UP + MARKS + foreign + parts + "print(json.dumps([parts[0]['devices'][0], gpu_disturbance(parts)]))",
        processes=["3:self:0", "3:77:0"],
    )
    assert device["peak_memory_gib"]["nvml_process"] is None and len(device["processes"]) == 2
    assert any(note.startswith("nvml_process:") and "without its memory" in note for note in device["notes"])
    assert found["foreign_gpu_processes"] == 1


def test_an_old_driver_gives_less_and_says_so(nvml_stub):
    device, _ = nvml_stub.run(MADE_UP + MARKS + PRINT, driver="old", used_mib=[1024], processes=["3:self:2560"])
    assert device["peak_memory_gib"]["nvml_device"] == pytest.approx(1 + 500 / 1024, abs=1e-5)
    assert device["energy_j"] is None
    assert {note.split(":")[0] for note in device["notes"]} == {"energy_j", "nvml_device"}


def test_a_gpu_that_does_not_tell_its_memory_says_so(nvml_stub):
    """Its memory is the host's; what torch's allocator has is known all the same."""
    device, _ = nvml_stub.run(MADE_UP + MARKS + PRINT, total_mib=-1, processes=["3:self:2560"])
    peak = device["peak_memory_gib"]
    assert (peak["nvml_device"], peak["torch_reserved"]) == (None, 6.0)
    (note,) = device["notes"]
    assert note.startswith("nvml_device:") and "not supported" in note


def test_without_a_driver_torch_still_gives_its_own(nvml_stub):
    device, _ = nvml_stub.run(MADE_UP + MARKS + PRINT, driver="none")
    assert device["peak_memory_gib"] == {
        "nvml_device": None, "nvml_process": None, "torch_allocated": 5.0, "torch_reserved": 6.0,
    }  # fmt: skip
    assert len(device["notes"]) == 1 and "libnvidia-ml.so.1 was not found" in device["notes"][0]
