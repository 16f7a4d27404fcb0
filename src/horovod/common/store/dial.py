"""Creation of sockets that connect to a store or key server."""

import zmq

CONNECT_MS = 4000
"""Timeout of a connection attempt.

Attempts fail while the server drops packets because of too many unauthenticated connections (``door``). The system
itself would retry ever less often.
"""
_PAUSE_MS, _LONGEST_PAUSE_MS = 50, 1000


def dial(
    context: "zmq.Context[zmq.Socket[bytes]]",
    host: str,
    port: int,
    pair: tuple[bytes, bytes],
    server: bytes,
    longest: int,
    name: bytes = b"",
) -> "zmq.Socket[bytes]":
    """Return a socket that connects in the background, and reconnects.

    Args:
        context: ZeroMQ context.
        host: Address of the server.
        port: Port of the server.
        pair: Our CURVE keys, (public, secret) in Z85.
        server: The server's public key in Z85.
        longest: Maximum bytes of a frame. The limit applies before keys are checked, and the server may be foreign.
        name: Identity by which the server knows this socket, also after a reconnect.

    Raises:
        ZMQError: If the address is invalid.
    """
    sock = context.socket(zmq.DEALER)
    sock.curve_publickey, sock.curve_secretkey = pair
    sock.curve_serverkey = server
    sock.maxmsgsize = longest
    sock.linger = 0
    sock.ipv6 = ":" in host
    sock.reconnect_ivl, sock.reconnect_ivl_max = _PAUSE_MS, _LONGEST_PAUSE_MS
    sock.connect_timeout = CONNECT_MS
    if name:
        sock.setsockopt(zmq.ROUTING_ID, name)
    sock.connect(f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}")
    return sock
