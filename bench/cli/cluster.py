"""``bench cluster``: a cluster of network namespaces on this machine, and a command on its first node."""

from bench.cli.base import needed
from bench.launch.cluster.make import run as run_in
from bench.launch.cluster.plan import Cluster, read_latency, read_loss, read_nodes, read_rate


def run(args) -> int:
    command = needed("CMD", args.cmd)
    cluster = Cluster(
        nodes=read_nodes(args.nodes),
        per_node=args.per_node,
        rate_mbit=read_rate(args.rate) if args.rate else None,
        latency_ms=read_latency(args.latency) if args.latency else 0,
        loss_percent=read_loss(args.loss) if args.loss else 0,
    )
    return run_in(cluster, command)
