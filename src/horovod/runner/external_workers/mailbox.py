"""Event queue for any number of producer threads and a single consumer thread."""

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
"""Maximum seconds of a single wait; the kernel counts milliseconds in 32 bits."""


class Mailbox(Generic[T]):
    """First-in, first-out queue of events."""

    def __init__(self) -> None:
        self._items: collections.deque[T] = collections.deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Leave the eventfd open when Python exits, because other threads may still be running and add events.
        weakref.finalize(self, os.close, self._fd).atexit = False

    def put(self, item: T) -> None:
        """Add an event without blocking."""
        self._items.append(item)
        os.eventfd_write(self._fd, 1)

    def take(self, until: float | None, others: Collection[int] = ()) -> tuple[list[T], set[int]]:
        """Wait until there is an event or a descriptor in `others` is readable.

        Args:
            until: Time limit (monotonic, s), or None for no limit.
            others: Other descriptors to wait for.

        Returns:
            Events, and the readable descriptors of `others`. Both can be empty, even before the time limit.
        """
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
