"""Simulated clusters: network namespaces of one machine as nodes."""

from bench.cli.base import FROM_1, HOROVOD, Command, action, require_argument
from bench.config.flags import number

MOST_DILATE = 100_000
NODES = {"help": "number of nodes, 2 to 64 [2]"}
LINK = {"help": "rate and one-way latency of every link, as 100mbit or 1gbit,5ms; latency needs netem [no limit]"}


def run(args) -> int:
    from bench.cluster.make import run as run_in
    from bench.cluster.plan import Cluster, read_link, read_loss, read_nodes

    command = require_argument("CMD", args.cmd)
    rate, latency = read_link(args.link)
    return run_in(Cluster(read_nodes(args.nodes or "2"), args.per_node, rate, latency,
                          read_loss(args.loss) if args.loss else 0), command)  # fmt: skip


EMULATE = Command(
    "cluster emulate", "measure", "real communication on many nodes of this machine, computation replaced by waits",
    "MODE=ddp NODES=8 LINK=100mbit COMPUTE=record [DILATE=4]", run=action("emulate"), options=True, needs=HOROVOD,
    takes=("mode", "warmup_steps", "timed_steps", "seed", "timeout", "out", "profile"), knobs=True, flags={
        "--compute": {"metavar": "RECORD", "help": "record of a run on one device with PROFILE=1"},
        "--nodes": NODES | {"help": "number of nodes, one device each, 2 to 64 [2]"},
        "--link": LINK,
        "--dilate": {"help": "time dilation: computation and links are slower by this factor, results are "
                     "divided by it [1]", "read": number(f"a number from 1 to {MOST_DILATE}",
                                              lambda factor: 1 <= factor <= MOST_DILATE)},
    }, gone={"--rate": "--link=RATE", "--latency": "--link=RATE,LATENCY"},
    note="Writes emulation.json, which no comparison reads.",
)  # fmt: skip
COMMAND = Command(
    "cluster", "measure", "a command on a cluster of network namespaces (for real machines: HOSTS of `bench run`)",
    'NODES=2 LINK=100mbit CMD="make compare"', run=run, needs=HOROVOD, flags={
        "--cmd": {"help": "a shell command; HOSTS, REMOTE and IFACE are set for it"},
        "--nodes": NODES,
        "--per-node": FROM_1 | {"default": "1", "help": "devices of each node [1]"},
        "--link": LINK,
        "--loss": {"help": "share of packets lost, as 0.1%%; needs netem [none]"},
    }, gone={"--rate": "--link=RATE", "--latency": "--link=RATE,LATENCY"}, parts=(EMULATE,),
    note="The exit code is that of the command. Needs no root. GPUs are hidden: all nodes would see the same GPUs.",
)  # fmt: skip
