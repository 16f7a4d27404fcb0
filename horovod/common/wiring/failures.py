"""What the ranks of one epoch tell each other, through the store, of why they cannot form the job.

told by one     the first failure of all counts; the others find it while they connect and give up too
met by all      at the end each says in an exchange that it is ready, or why it is not
"""

import contextlib
import os

from horovod.common.store.client import StoreClient, StoreError, StoreTimeout
from horovod.common.wiring.link_errors import LinkError
from horovod.common.wiring.waited_in_vain import listed

_AWAIT_SECONDS = 5.0


class KnownFailureError(LinkError):
    """Everybody has heard of it."""


class Failures:
    """Of the epoch that began with round ``epoch`` of the exchange in which ``ranks`` (by world rank) met."""

    def __init__(self, store: StoreClient, epoch: int, me: int, ranks: list[int], hostname: str) -> None:
        """``me``: index of this rank in ``ranks``. ``hostname``: its host, for messages."""
        self._store = store
        self._name = f"failure {epoch}"
        self._end = f"formed {epoch}"
        self._me = me
        self._ranks = ranks
        self._who = f"rank {ranks[me]} (host {hostname}, pid {os.getpid()})"

    def check(self) -> None:
        """Raises LinkError if another rank has told of a failure. Does not wait: what the store says is found in a
        later call, so a slow store delays nothing but this."""
        text = self._store.peek(self._name)
        if text is not None:
            raise LinkError(text.decode(errors="replace"))

    def tell(self, error: BaseException) -> str:
        """Lets the others fail at once, not at their deadlines. Returns the job's first failure, ours or another's."""
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        text = f"{self._who} could not join: {reason}"
        with contextlib.suppress(StoreError):
            return self._store.set_first(self._name, text.encode()).decode(errors="replace")
        return text

    def await_others(self, text: str) -> None:
        """With the failure ``text``: some may be past looking for failures already and wait in ``confirm``."""
        with contextlib.suppress(StoreError):
            self._store.exchange(self._end, self._me, len(self._ranks), text.encode(), _AWAIT_SECONDS)

    def confirm(self, seconds: float) -> None:
        """Returns once all ranks are ready. Raises KnownFailureError when one is not, LinkError naming the ranks that
        do not come in ``seconds``."""
        try:
            _, errors = self._store.exchange(self._end, self._me, len(self._ranks), b"", seconds)
        except StoreTimeout as error:
            ranks = listed([self._ranks[int(rank)] for rank in (*error.missing, *error.gave_up)])
            raise LinkError(f"waited {seconds:g} s for rank {ranks or '?'} to connect to its peers") from None
        for text in filter(None, errors):
            raise KnownFailureError(text.decode(errors="replace"))
