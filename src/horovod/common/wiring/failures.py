"""Exchange of failures between the ranks of an epoch that is being formed, through the store.

- First failure: it is stored once. Other ranks find it while they connect, and give up too.
- Final exchange: each rank reports that it is ready, or why it is not.
"""

import contextlib
import os

from horovod.common.store.client import StoreClient, StoreError, StoreTimeout
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.waited_in_vain import listed

_AWAIT_SECONDS = 5.0


class KnownFailureError(LinkError):
    """A failure that all ranks already know."""


class Failures:
    """Failures of the epoch that began with round ``epoch`` of the exchange between ``ranks`` (world ranks)."""

    def __init__(self, store: StoreClient, epoch: int, me: int, ranks: list[int], hostname: str) -> None:
        """Prepare the exchange for one epoch.

        Args:
            store: Connection to the store.
            epoch: Number of the round.
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
        """Raise LinkError if another rank has reported a failure.

        Does not block: the store's answer is seen in a later call, so a slow store delays only this check.
        """
        text = self._store.peek(self._name)
        if text is not None:
            raise LinkError(text.decode(errors="replace"))

    def tell(self, error: BaseException) -> str:
        """Report a failure, so that other ranks fail at once instead of at their deadlines.

        Returns:
            The first failure of the job, this rank's or another's.
        """
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{self._who} could not join: {reason}"
        with contextlib.suppress(StoreError):
            return self._store.set_first(self._name, text.encode()).decode(errors="replace")
        return text

    def await_others(self, text: str) -> None:
        """Report the failure ``text`` in the final exchange too, because some ranks may already wait in ``confirm``."""
        with contextlib.suppress(StoreError):
            self._store.exchange(self._end, self._me, len(self._ranks), text.encode(), _AWAIT_SECONDS)

    def confirm(self, seconds: float) -> None:
        """Wait until all ranks are ready.

        Raises:
            KnownFailureError: If a rank is not ready.
            LinkError: If ranks do not come within ``seconds``; names them.
        """
        try:
            _, errors = self._store.exchange(self._end, self._me, len(self._ranks), b"", seconds)
        except StoreTimeout as error:
            ranks = listed([self._ranks[int(rank)] for rank in (*error.missing, *error.gave_up)])
            raise LinkError(f"waited {seconds:g} s for rank {ranks or '?'} to connect to its peers") from None
        for text in filter(None, errors):
            raise KnownFailureError(text.decode(errors="replace"))
