"""horovodrun, with one fault of its rendezvous server fixed.

The server keeps a list for each scope (all ranks, those of a machine, …) of the ranks that have met there, and forgets
the scope's addresses when the list is whole. It then empties the lists of all scopes, so that, now and then on a busy
machine, a list never becomes whole. Tests that start Horovod again in one process then find old addresses, and are
aborted (connection refused). A training starts it once, and is not concerned.
"""

import collections
import sys


class Lists(collections.defaultdict):
    """The lists by scope; to empty them empties those that are whole."""

    def __init__(self, sizes: dict[str, int]):
        super().__init__(list)
        self.sizes = sizes

    def clear(self) -> None:
        for scope in [scope for scope, ranks in self.items() if len(ranks) >= self.sizes.get(scope, 0)]:
            del self[scope]


def main() -> None:
    from horovod.runner import launch
    from horovod.runner.http import http_server

    begin = http_server.RendezvousHTTPServer.__init__

    def begun(server, *arguments) -> None:
        begin(server, *arguments)
        server.finished_list = Lists(server.scope_size)

    http_server.RendezvousHTTPServer.__init__ = begun
    launch.run_commandline()


if __name__ == "__main__":
    sys.exit(main())
