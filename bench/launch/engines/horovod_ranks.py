"""The process that horovodrun.py starts on each of several machines: it starts this machine's ranks over Gloo, and on
the first machine the rendezvous server that Horovod's own launcher has.

What horovodrun does itself over ssh (horovod/runner/gloo_run.py of 0.28.1) is done here by the same classes of Horovod,
for two reasons: the first machine needs no ssh to the others, which are reached by REMOTE alone; and on every machine
the ranks belong to what REMOTE has started, which ends them when the first machine is gone.
"""

import os
import subprocess
import sys
import threading
import time

TICK_S = 0.1


def main() -> None:
    """Called with HOSTS as horovodrun has them, the number of this machine, and the worker's arguments."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars

    hosts, number, arguments = parse_hosts(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    plan = get_host_assignments(hosts, sum(host.slots for host in hosts))
    if number == 0:
        serve(plan)
    own = [slot for slot in plan if slot.hostname == hosts[number].hostname]
    ranks = [
        subprocess.Popen([sys.executable, *arguments], env=os.environ | create_slot_env_vars(slot)) for slot in own
    ]
    while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
        time.sleep(TICK_S)
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    sys.exit(next((code for code in codes if code), 0) and 1)


def serve(plan: list) -> None:
    """Horovod's rendezvous server, at the address that all ranks are told."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
    server = RendezvousHTTPServer(address, RendezvousHandler, 0)
    server.init(plan)
    threading.Thread(target=server.serve_forever, daemon=True).start()


if __name__ == "__main__":
    main()
