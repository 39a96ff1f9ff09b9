"""One machine's ranks of Horovod over Gloo with HOSTS, and on the first machine the rendezvous server: the same classes
as horovodrun over ssh (gloo_run.py of 0.28.1). So only REMOTE reaches other machines, and all ranks are children of
REMOTE's process."""

import os
import subprocess
import sys
import threading
import time

TICK_S = 0.1


def main() -> None:
    """Arguments: HOSTS in horovodrun's format, this machine's number, the worker's."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    hosts, number, arguments = parse_hosts(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    plan = get_host_assignments(hosts, sum(host.slots for host in hosts))
    if number == 0:
        address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"], int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])
        server = RendezvousHTTPServer(address, RendezvousHandler, 0)
        server.init(plan)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    argv, own = [sys.executable, *arguments], [slot for slot in plan if slot.hostname == hosts[number].hostname]
    ranks = [subprocess.Popen(argv, env=os.environ | create_slot_env_vars(slot)) for slot in own]
    while None in (codes := [rank.poll() for rank in ranks]) and not any(codes):
        time.sleep(TICK_S)
    for rank in ranks:
        if rank.poll() is None:
            rank.terminate()
    sys.exit(next((code for code in codes if code), 0) and 1)


if __name__ == "__main__":
    main()
