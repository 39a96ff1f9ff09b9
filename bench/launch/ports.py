"""Free ports of this machine."""

import socket

from bench.errors import UserError


def require_free_port(host: str, port: int, url: str) -> None:
    """Raise UserError if ``host:port`` is in use or not an address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            remedy = "choose another, or leave DIST_URL out for a free one"
            raise UserError(f"DIST_URL={url}: port {port} cannot be used ({error}): {remedy}") from None


def free_port(address: str = "127.0.0.1") -> int:
    """A port that is free now; another program may take it."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
