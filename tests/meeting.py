"""A rendezvous for Horovod's ranks that no horovodrun has started."""


class Meeting:
    """Where Horovod's ranks meet: its own rendezvous server, with what horovodrun tells every rank of it."""

    def __init__(self, num_ranks: int):
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousServer

        self.server = RendezvousServer()
        self.port = self.server.start()
        self.server.init(get_host_assignments(parse_hosts(f"localhost:{num_ranks}"), num_ranks))
        self.size = num_ranks

    def variables(self) -> dict[str, str]:
        """For all ranks; that of each is its own number."""
        from horovod.runner.gloo_run import create_run_env_vars

        sizes = dict.fromkeys(("HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"), self.size)
        one_machine = {"HOROVOD_HOSTNAME": "localhost", "HOROVOD_CROSS_RANK": 0, "HOROVOD_CROSS_SIZE": 1}
        found = create_run_env_vars("127.0.0.1", ["lo"], self.port) | sizes | one_machine
        return {name: str(value) for name, value in found.items()}

    def close(self) -> None:
        self.server.stop()
        self.server._httpd.server_close()  # which ``stop`` leaves open
