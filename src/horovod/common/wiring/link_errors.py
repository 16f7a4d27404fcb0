"""Error messages about connections between ranks that cannot be formed."""

from horovod.common.network.interfaces import Endpoint
from horovod.common.wiring.peers import Peer

ADVICE = (
    ". Is there a firewall? It has to let ranks connect to any port, or to those of HOROVOD_PORT_RANGE. If the hosts "
    "are on several networks, name the interface to use with --network-interfaces or HOROVOD_GLOO_IFACE; "
    "'horovodrun --doctor' tries them"
)


class NotFormedError(ValueError):
    """The job cannot be formed, possibly because of other ranks; an elastic job may succeed in the next epoch."""


class LinkError(Exception):
    """Connections could not be formed; the message says which, and why."""


def outcome_text(target: Endpoint | str, outcome: str) -> str:
    """Return text about an address that was tried and the outcome."""
    return f"{target} ({target.interface}): {outcome}" if isinstance(target, Endpoint) else f"{target}: {outcome}"


def unreachable_text(peer: Peer) -> str:
    """Return text about why no address of the peer was tried."""
    listens = ", ".join(f"{each} ({each.interface})" for each in peer.endpoints) or "nothing"
    return f"which listens on {listens} only, where this host cannot reach it"


def reason(error: Exception) -> str:
    """Return a short reason for the failure of a connection."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError):
        return "another program answered and closed the connection"
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror or str(error)).lower()
