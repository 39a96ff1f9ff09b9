"""`bench/measure/memory.py`: the sampler on the host for real, and on GPUs that a made-up driver shows."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from bench.measure import memory
from tests.runs import wait_for

pytestmark = pytest.mark.slow

CPU = SimpleNamespace(type="cpu", index=None)  # all that the sampler asks of a torch.device
linux = pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux's smaps_rollup")


# In a separate process: the PSS of this one, which has torch's pages, falls when another one maps them, too.
HOST = """
import json, mmap, multiprocessing, os
from types import SimpleNamespace
from bench.measure import memory

def sampler():
    made = memory.MemorySampler([SimpleNamespace(type="cpu", index=None)])
    made.start()
    return made

def hold(ready, leave):
    ready.release()
    leave.wait()

alone = sampler()
alone.mark("before")
block = mmap.mmap(-1, 200 * 2**20)
block[:: mmap.PAGESIZE] = b"x" * (200 * 2**20 // mmap.PAGESIZE)
alone.mark("full")
block.close()
alone.mark("after")
report = alone.stop()
shared = b"\\x01" * (200 << 20)
fork = multiprocessing.get_context("fork")
ready, leave = fork.Semaphore(0), fork.Event()
children = [fork.Process(target=hold, args=(ready, leave)) for _ in range(4)]
for child in children:
    child.start()
for child in children:
    ready.acquire()
pids = [os.getpid(), *(child.pid for child in children)]
pss, rss = [[reader(pid) / 2**20 for pid in pids] for reader in (memory.read_pss, memory.read_rss)]
together = sampler().stop()[0]["peak_memory_gib"]["pss"] * 1024
leave.set()
print(json.dumps([report, pss, rss, together]))
"""


@linux
def test_200_mib_are_seen_where_they_were_taken_and_shared_pages_once():
    done = subprocess.run([sys.executable, "-W", "error", "-c", HOST], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (device,), pss, rss, together = json.loads(done.stdout)
    taken = device["timeline"]["pss_gib"]
    assert list(device["marks"]) == ["before", "full", "after"]
    assert 195 < (max(taken) - taken[0]) * 1024 < 215 and 195 < (max(taken) - taken[-1]) * 1024 < 215
    assert len(taken) == len(times := device["timeline"]["time_s"]) >= 4 and times[-1] >= device["marks"]["after"]
    assert device["peak_memory_gib"]["pss"] == max(taken) and device["peak_memory_gib"]["rss_hwm"] * 1024 > 200
    assert device["device"] == "cpu" and device["name"] and device["uuid"] is None
    assert device["energy_j"] is None and any("energy_j" in note for note in device["notes"])
    assert sum(rss) > 5 * 200  # the same 200 MiB in each of five processes
    assert 200 < sum(pss) < 320
    assert all(35 < share < 80 for share in pss)  # a fifth of the block, and what each has for itself
    assert together == pytest.approx(sum(pss), rel=0.1)  # the processes started by multiprocessing count


@linux
def test_a_worker_that_has_ended_counts_nothing():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert memory.HostProbe()._read_worker(child.pid) == 0


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
    sampler = memory.MemorySampler([CPU, CPU, CPU], cpu_replicas=True)
    sampler.start()
    for name in "abcd":
        time.sleep(0.3)
        sampler.mark(name)
    times = sampler._traces[0].times
    assert len(times) == 5  # at the start, four marks: none by the thread
    wait_for(lambda: len(times) > 5, "a sample by the thread", within=60)
    assert times[5] - times[4] > 0.9
    (device,) = sampler.stop()  # CPU devices share one entry
    assert len(device["notes"]) == 2  # about energy, and that it covers all replicas
    assert sampler.stop() == [device] and not sampler._thread.is_alive()
    assert memory.MemorySampler([CPU]).stop() == []


def test_without_pss_the_next_best_figure_stands_for_it(monkeypatch):
    monkeypatch.setattr(memory, "PROC", Path("nowhere"))
    monkeypatch.setattr(memory, "read_uss", mock.Mock(side_effect=PermissionError))
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    (device,) = sampler.stop()
    assert device["peak_memory_gib"]["rss"] > 0 and "pss" not in device["peak_memory_gib"]
    assert {note.split(":")[0] for note in device["notes"]} == {"pss", "energy_j"}


@pytest.mark.parametrize("name", ["read", "__init__"])
def test_an_error_of_the_sampler_ends_in_a_note(monkeypatch, name):
    monkeypatch.setattr(memory.HostProbe, name, mock.Mock(side_effect=ValueError("unreadable")))
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    sampler.mark("timed")
    (device,) = sampler.stop()
    assert device["timeline"] == {"time_s": []} and device["peak_memory_gib"].get("pss") is None
    assert any("ValueError: unreadable" in note for note in device["notes"])
    assert name == "__init__" or device["peak_memory_gib"]["rss_hwm"] > 0  # what does not need a sample is still there


def test_stop_waits_for_a_hanging_sample_no_longer_than_its_limit(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(memory, "STOP_LIMIT_S", 0.1)
    monkeypatch.setattr(memory, "PAUSE_PER_COST", 0)
    sampler = memory.MemorySampler([CPU])
    sampler.start()
    monkeypatch.setattr(memory.HostProbe, "read", lambda self: released.wait(120) and {})
    while not sampler._lock.locked():
        time.sleep(0.01)
    before = time.monotonic()
    (device,) = sampler.stop()
    assert time.monotonic() - before < 60
    released.set()
    assert any("0.1 s" in note for note in device["notes"])
    sampler._thread.join()


# torch.cuda as far as the sampler asks it; all of torch takes seconds to import. CUDA's GPU 0 is NVML's GPU 3: CUDA may
# order them by speed.
MADE_UP = """
import json, sys, time, types
from types import SimpleNamespace
torch = sys.modules["torch"] = types.ModuleType("torch")
class Device(SimpleNamespace):
    def __str__(self):
        return f"{self.type}:{self.index}"
torch.cuda, torch.device = SimpleNamespace(), lambda kind, index: Device(type=kind, index=index)
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


def test_each_gpu_has_its_own_memory_found_by_uuid(nvml_stub):
    timed = """
time.sleep(0.3)
before = time.monotonic(); sampler.mark("timed"); time.sleep(0.6); sampler.mark("end"); after = time.monotonic()
print(json.dumps([resets, after - before, sampler.stop()]))
"""
    resets, seconds, (first, second) = nvml_stub.run(
        MADE_UP + timed,
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


def test_without_the_marks_energy_is_of_the_whole_run_and_the_peak_is_the_highest_sample(nvml_stub):
    code = """
import os
for mib in (3072, 512):
    time.sleep(0.3); os.environ["STUB_NVML_USED_MIB"] = str(mib); sampler.mark(str(mib))
report = sampler.stop(); print(json.dumps([time.monotonic() - begun, report]))
"""
    seconds, (device, _) = nvml_stub.run(MADE_UP + code, power_mw=[100000], used_mib=[1024])
    assert 0.6 * 100 * 0.99 < device["energy_j"] < seconds * 100 * 1.01
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


ASK = """
import os
from bench.record.summary import gpu_disturbance
def ask():
    sampler = MemorySampler([torch.device("cuda", 0), torch.device("cuda", 1)])
    sampler.start(); sampler.mark("timed"); sampler.mark("end")
    devices = sampler.stop()
    found = gpu_disturbance([{"pid": os.getpid(), "devices": devices}])
    return [*devices, found.get("foreign_gpu_processes")]
"""
# The settings; which metrics are missing; how many processes are listed; how many are foreign, None if that is unknown.
SOURCES = {
    "a container": ({"processes": ["3:4242:100"]}, {"nvml_process"}, 1, None),
    "a refusal": ({"processes": ["3:77:100"], "unsupported": "processes"}, {"nvml_process"}, 0, None),
    # torch has 2 GiB reserved on the GPU, so what NVML gives 300 MiB to is somebody else with this process's number.
    "another process": ({"processes": ["3:self:300", "1:self:3584"]}, {"nvml_process"}, 0, 0),
    # Newer drivers list a container's processes by its own ids, with 0 bytes: whose they are is known all the same.
    "no memory of processes": ({"processes": ["3:self:0", "3:77:0"]}, {"nvml_process"}, 2, 1),
    "no memory of a GPU, which is the host's": ({"processes": ["3:self:2560"], "total_mib": -1}, {"nvml_device"}, 1, 0),
}


def test_a_missing_metric_has_its_reason_and_the_others_are_there(nvml_stub):
    found = nvml_stub.each(MADE_UP + ASK, [settings for settings, *_ in SOURCES.values()])
    for (device, other, foreign), (name, (_, missing, listed, expected)) in zip(found, SOURCES.items(), strict=True):
        peaks = device["peak_memory_gib"]
        assert {source for source, peak in peaks.items() if peak is None} == missing, name
        assert {note.split(":")[0] for note in device["notes"]} == missing and peaks["torch_reserved"] == 6.0, name
        assert len(device.get("processes", [])) == listed and foreign == expected, name
        assert other["peak_memory_gib"]["nvml_process"] == (3.5 if name.startswith("another") else None)


@pytest.mark.parametrize(("driver", "used", "own", "notes"), [
    ("old", pytest.approx(1 + 500 / 1024, abs=1e-5), 2.5, ["energy_j", "nvml_device"]),
    ("none", None, None, ["nvml_device, nvml_process, utilization_percent, power_w, clocks, energy_j"]),
])  # fmt: skip
def test_an_old_driver_gives_less_and_without_one_torch_still_gives_its_own(nvml_stub, driver, used, own, notes):
    """The first form of the memory adds the 500 MiB that the driver reserves; processes are in the second form."""
    code = MADE_UP + 'sampler.mark("timed"); sampler.mark("end"); print(json.dumps(sampler.stop()))'
    device, _ = nvml_stub.run(code, driver=driver, used_mib=[1024], processes=["3:self:2560"])
    peaks = device["peak_memory_gib"]
    assert (peaks["nvml_device"], peaks["nvml_process"], device["energy_j"]) == (used, own, None)
    assert (peaks["torch_allocated"], peaks["torch_reserved"]) == (5.0, 6.0)
    assert sorted(note.split(":")[0] for note in device["notes"]) == notes
