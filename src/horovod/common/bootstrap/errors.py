"""Startup errors, and how ranks exchange them through the store.

- The first rank that fails stores its failure. Other ranks find the failure while they connect, and give up too.
- In a final exchange, each rank reports that it is ready, or why it is not ready.
"""

import contextlib
import os
from collections.abc import Sequence

from horovod.common.bootstrap.peers import Peer
from horovod.common.contract.reasons import Ending, explained
from horovod.common.network.interfaces import Endpoint
from horovod.common.store.client import StoreClient, StoreError, StoreTimeout

ADVICE = (
    ". Is there a firewall? It has to let ranks connect to any port, or to those of HOROVOD_PORT_RANGE. If the hosts "
    "are on several networks, name the interface to use with --network-interfaces or HOROVOD_GLOO_IFACE; "
    "'horovodrun --doctor' tries them"
)


class NotFormedError(ValueError):
    """Raised if the job cannot be formed. An elastic job can retry in the next epoch."""


class LinkError(Exception):
    """Raised if connections failed. The message names the connections and the reasons."""


def outcome_text(target: Endpoint | str, outcome: str) -> str:
    """Format a failed connection attempt, with its address and error, for a message."""
    return f"{target} ({target.interface}): {outcome}" if isinstance(target, Endpoint) else f"{target}: {outcome}"


def unreachable_text(peer: Peer) -> str:
    """Explain in an error message why no address of the peer could be tried."""
    listens = ", ".join(f"{each} ({each.interface})" for each in peer.endpoints) or "nothing"
    return f"which listens on {listens} only, where this host cannot reach it"


def failure_reason(error: Exception) -> str:
    """Describe briefly why a connection failed."""
    if not isinstance(error, OSError):
        return str(error)
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError):
        return "another program answered and closed the connection"
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror or str(error)).lower()


_SHOWN = 32


def start_timeout_error(
    who: tuple[int, str], size: int, seconds: float, absent: Sequence[int], gave_up: Sequence[int], alone: str = ""
) -> NotFormedError:
    """Create the startup timeout error, naming the ranks that are missing or have given up.

    Args:
        who: Rank and host of this process.
        size: Number of ranks of the job.
        seconds: Seconds that this rank has waited.
        absent: Ranks that have not called ``hvd.init()``.
        gave_up: Ranks that called ``hvd.init()`` but timed out before all other ranks called it.
        alone: Text that says why this process expects other ranks, for a user who wants to run it alone. Can be empty.
    """
    rank, host = who
    begin = f"init: rank {rank} (host {host}) waited {seconds:g} s"
    longer = "HOROVOD_START_TIMEOUT if they only need longer"
    if absent:
        text = f"{begin} for rank {listed(absent)} (of {size}) to call hvd.init(); "
        text += f"see the output of those ranks, and {longer}"
        text += f" (rank {listed(gave_up)} had come and given up before)" if gave_up else ""
        text += f". {alone}" if alone and len(absent) == size - 1 else ""
    else:
        text = (
            f"{begin}, but rank {listed(gave_up)} (of {size}) had called hvd.init() too early and given up before all "
            f"others came; see {longer}"
        )
    return explained(NotFormedError(text), Ending(rank, "absent", list(absent), seconds))


def listed(ranks: Sequence[int]) -> str:
    """Format a list of ranks for messages, abbreviated if it is long."""
    return ", ".join(map(str, ranks[:_SHOWN])) + (", ..." if len(ranks) > _SHOWN else "")


_AWAIT_SECONDS = 5.0


class KnownFailureError(LinkError):
    """Raised for a failure that all ranks already know about, so it is not reported again."""


class Failures:
    """Channel through which the ranks that are forming an epoch report failures to each other."""

    def __init__(self, store: StoreClient, epoch: int, me: int, ranks: list[int], hostname: str) -> None:
        """Create the failure channel of one epoch.

        Args:
            store: Connection to the store.
            epoch: Number of the store exchange that began the epoch.
            me: Index of this rank in ``ranks``.
            ranks: World ranks of the job.
            hostname: This rank's host, for messages.
        """
        self._store = store
        self._name = f"failure {epoch}"
        self._end = f"formed {epoch}"
        self._me = me
        self._ranks = ranks
        self._who = f"rank {ranks[me]} (host {hostname}, pid {os.getpid()})"

    def check(self) -> None:
        """Check whether another rank has reported a failure.

        Never blocks: each call checks the answer to the previous call's request, so a slow store only delays the
        detection.

        Raises:
            LinkError: If another rank has reported a failure.
        """
        text = self._store.peek(self._name)
        if text is not None:
            raise LinkError(text.decode(errors="replace"))

    def report(self, error: BaseException) -> str:
        """Report this rank's failure, so that the other ranks fail now instead of waiting for their deadlines.

        Returns:
            The first reported failure, possibly from another rank.
        """
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{self._who} could not join: {reason}"
        with contextlib.suppress(StoreError):
            return self._store.set_first(self._name, text.encode()).decode(errors="replace")
        return text

    def await_peers(self, text: str) -> None:
        """Report this rank's failure, given as ``text``, to the ranks that are in the final exchange (``confirm``)."""
        with contextlib.suppress(StoreError):
            self._store.exchange(self._end, self._me, len(self._ranks), text.encode(), _AWAIT_SECONDS)

    def confirm(self, seconds: float) -> None:
        """Wait until all ranks are ready.

        Raises:
            KnownFailureError: If a rank is not ready.
            LinkError: If ranks are still missing after ``seconds``. The message names the ranks.
        """
        try:
            _, errors = self._store.exchange(self._end, self._me, len(self._ranks), b"", seconds)
        except StoreTimeout as error:
            ranks = listed([self._ranks[int(rank)] for rank in (*error.missing, *error.gave_up)])
            raise LinkError(f"waited {seconds:g} s for rank {ranks or '?'} to connect to its peers") from None
        for text in filter(None, errors):
            raise KnownFailureError(text.decode(errors="replace"))
