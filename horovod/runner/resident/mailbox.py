"""What happens to a job, told by any thread, waited for by one."""

from __future__ import annotations

import collections
import os
import select
import time
import weakref
from collections.abc import Collection
from typing import Generic, TypeVar

T = TypeVar("T")

LONGEST = 86400.0
"""s, of one wait: the kernel counts milliseconds in 32 bits."""


class Mailbox(Generic[T]):
    """In the order in which it was put."""

    def __init__(self) -> None:
        self._items: collections.deque[T] = collections.deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Closed when no thread is left that could put something. Not at Python's exit: there are such threads then.
        weakref.finalize(self, os.close, self._fd).atexit = False

    def put(self, item: T) -> None:
        """Never waits."""
        self._items.append(item)
        os.eventfd_write(self._fd, 1)

    def take(self, until: float | None, others: Collection[int] = ()) -> tuple[list[T], set[int]]:
        """(what has come, which of the descriptors `others` can be read), as soon as there is something, at this time
        (monotonic, s) at the latest; None: whenever it is. Both may be empty before."""
        poll = select.poll()
        for fd in (self._fd, *others):
            poll.register(fd, select.POLLIN)
        left = None if until is None else min(max(0.0, until - time.monotonic()), LONGEST)
        ready = {fd for fd, _ in poll.poll(None if left is None else 1000 * left)}
        if self._fd in ready:
            os.eventfd_read(self._fd)
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items, ready - {self._fd}
