"""How the sockets are made that connect to a store, or to who hands out its key."""

import zmq
import zmq.utils.z85

CONNECT_MS = 4000
"""How often it is asked anew while strangers keep the door there closed (``door``): the system itself would ask
ever less often."""
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
    """A socket that connects in the background, again and again.

    ``pair``: our CURVE keys, (public, secret), and ``server``: the other's public one, in Z85. ``longest``: bytes of a
    frame that is accepted; who listens there may be a stranger, and is heard before keys are looked at. ``name``:
    under which the other side knows it, also when it comes again. Raises ZMQError for an address that cannot be used.
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
