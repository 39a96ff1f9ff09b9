"""CPU time of other processes, steal, context switches and page faults while steps were timed.

A rank reads its own CPU time and that of its loader's workers, and the machine's total. Counters are read before and
after; nothing is sampled meanwhile.
"""

import contextlib
import resource
import time

import psutil

from bench.files import PROC
from bench.formulas import others_cpu_share

PRESSURE = PROC / "pressure" / "cpu"


class Load:
    def __init__(self):
        self.began, self.before = time.perf_counter(), counters()

    def stop(self) -> dict:
        """The increases. own_cpu_s: of this process and all that it started. machine_cpu_s: of all processes, including
        interrupts_s: of the kernel for interrupts, such as packets. steal_s: CPU steal. pressure_s: how long some
        process waited for a core (PSI). cpu_mhz: the clock of the fastest core now. None if the system has no
        counter."""
        grown = {name: value - self.before[name] if value is not None else None for name, value in counters().items()}
        own = max(0.0, grown["own_cpu_s"])  # the time of a worker that was not waited for is lost
        wall_s, mhz = time.perf_counter() - self.began, None
        with contextlib.suppress(Exception):  # without a clock psutil raises different errors by system
            mhz = max(core.current for core in psutil.cpu_freq(percpu=True)) or None
        return grown | {"own_cpu_s": own, "wall_s": wall_s, "cores": psutil.cpu_count(), "cpu_mhz": mhz}


def counters() -> dict[str, float | None]:
    used, ended = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    own_cpu_s = sum(each.ru_utime + each.ru_stime for each in (used, ended))
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            times = child.cpu_times()
            own_cpu_s += times.user + times.system + times.children_user + times.children_system
    pressure_s = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        pressure_s = int(PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6
    machine = psutil.cpu_times()
    interrupts = getattr(machine, "irq", 0.0) + getattr(machine, "softirq", 0.0)
    return {
        "own_cpu_s": own_cpu_s,
        "involuntary_switches": used.ru_nivcsw,
        "page_faults": used.ru_majflt,
        "machine_cpu_s": machine.user + machine.system + getattr(machine, "nice", 0.0) + interrupts,
        "interrupts_s": interrupts,
        "steal_s": getattr(machine, "steal", None),
        "pressure_s": pressure_s,
    }


def others_now(seconds: float = 1.0) -> float:
    """The share of the CPU that other processes use, over some seconds in which this process sleeps."""
    load = Load()
    time.sleep(seconds)
    return others_share(load.stop())


def others_share(load: dict) -> float:
    return others_cpu_share(load["machine_cpu_s"], [load["own_cpu_s"]], load["cores"], load["wall_s"])
