"""Whether an address is there to be listened on."""

import socket

from gateway.settings import SettingsError


def must_be_free(host: str, port: int) -> None:
    """Raises `SettingsError` where nobody can listen there. Port 0 stands for any that is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as the server itself: what has ended is no obstacle
        try:
            sock.bind((host, port))
        except OSError as error:
            raise SettingsError(
                f"cannot listen on {host}, port {port}: {error.strerror}. Set another port, or stop what has this one"
            ) from None
