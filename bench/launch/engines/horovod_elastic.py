"""Horovod's elastic driver over Gloo, with MIN_DEVICES on one machine: the same classes as ``horovodrun --min-np
--max-np`` (gloo_run.py of 0.28.1). Horovod drops a host with a lost rank, so here each rank is a host. A lost rank is
retried after ``wait_s`` under a new host name, because Horovod keeps a lost rank's slot."""

import os
import secrets
import subprocess
import sys
import threading
import time

import psutil

from bench.measure import steady

TICK_S = 0.1
FIRST_WAIT_S, LONGEST_WAIT_S = 10, 60


def wait_s(times: int) -> int:
    """Seconds before retrying a rank that was lost this many times.

    >>> [wait_s(times) for times in (1, 2, 3, 4, 5)]
    [10, 20, 40, 60, 60]
    """
    return min(FIRST_WAIT_S * 2 ** (times - 1), LONGEST_WAIT_S)


def main() -> None:
    """Arguments: minimum and maximum ranks, restarts, seconds that ranks wait for each other, the worker's."""
    from horovod.runner.elastic.discovery import HostDiscovery
    from horovod.runner.elastic.settings import ElasticSettings
    from horovod.runner.gloo_run import launch_gloo_elastic
    from horovod.runner.http.http_server import RendezvousServer

    least, most, restarts, limit_s = map(int, sys.argv[1:5])
    places = {f"place{number}": 0 for number in range(most)}  # each with the number of its losses
    hosts = [f"{place}.0" for place in places]

    class Discovery(HostDiscovery):
        def find_available_hosts_and_slots(self) -> dict[str, int]:
            return dict.fromkeys(hosts, 1)

    found = psutil.net_if_addrs().items()
    loopback = next(name for name, addresses in found for each in addresses if each.address == "127.0.0.1")
    settings = ElasticSettings(
        discovery=Discovery(), min_num_proc=least, max_num_proc=most, num_proc=most, elastic_timeout=limit_s,
        reset_limit=restarts, key=secrets.token_bytes(16), nics={loopback}, verbose=0,
    )  # fmt: skip
    codes, numbers = [], {}  # the first rank of each place: Horovod assigns them in any order

    def run_rank(command: str, slot, events: list) -> tuple[int, float]:
        place = slot.hostname.partition(".")[0]
        number = numbers.setdefault(place, slot.rank)  # its rank until one is lost
        process = subprocess.Popen(f"exec env RANK={number} LOCAL_RANK={number} {command}", shell=True)
        while process.poll() is None:
            if any(event.is_set() for event in events):
                process.terminate()
            time.sleep(TICK_S)
        codes.append(process.returncode)
        if process.returncode:
            places[place] += 1
            timer = threading.Timer(wait_s(places[place]), hosts.append, [f"{place}.{places[place]}"])
            timer.daemon = True
            timer.start()
        return process.returncode, steady.now()

    command = [sys.executable, *sys.argv[5:]]
    launch_gloo_elastic(command, run_rank, settings, {}, lambda driver: settings.nics, RendezvousServer(0), None)
    sys.stdout.flush()
    os._exit(0 if 0 in codes else 1)  # its threads may wait for hosts that will not come


if __name__ == "__main__":
    main()
