"""A port of this host that is kept free for a server that another library opens there later."""

from __future__ import annotations

import socket


def reserve_port() -> socket.socket:
    """Return a socket that keeps a port free for rank 0 on this host, as long as it is open.

    It is bound to all addresses and never listens, so nothing answers there. The kernel gives such
    a port to nobody who asks for any free one, or connects; but a server that binds this very port
    with SO_REUSEADDR, as the store of PyTorch does, gets it, because nobody listens.

    Raises:
        OSError: no port is left.
    """
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("", 0))
    except OSError:
        sock.close()
        raise
    return sock
