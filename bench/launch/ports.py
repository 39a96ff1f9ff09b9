"""Ports of this machine: is one free, and which?"""

import socket

from bench.errors import UserError


def require_free_port(host: str, port: int, url: str) -> None:
    """Raise UserError when ``host:port`` is taken, or is no address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"DIST_URL={url}: port {port} cannot be used ({error}); choose another, or leave DIST_URL out and a "
                "free one is found"
            ) from None


def free_port(address: str = "127.0.0.1") -> int:
    """A port of an address of this machine that nobody listens on now. Another program may take it before it is
    used."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
