"""Queues between the launcher of an elastic job and the thread of its store.

There is one queue per direction, each with a descriptor that is readable when the queue has entries. Neither side
blocks the other, and neither polls.
"""

import collections
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from horovod.common.store.desk import Desk, Replies, Told

if TYPE_CHECKING:
    from horovod.common.store.table import Table

Command = Callable[["Table"], Replies]


class Front:
    """Launcher's interface to the membership server; pass it to the ``StoreServer``.

    Only ``serve`` and ``asked`` are for the store's thread; all other public methods are for the launcher's thread.
    """

    def __init__(self) -> None:
        self.desk = Desk()
        """Used by the store's thread only."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when ``take`` returns entries."""
        self.asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told: collections.deque[Told] = collections.deque()
        self._commands: collections.deque[Command] = collections.deque()

    # Launcher's thread.

    def take(self) -> list[Told]:
        """Return the messages of workers since the last call, in order."""
        _clear(self.fd)
        taken = []
        while self._told:
            taken.append(self._told.popleft())
        return taken

    def place(self, worker: int, value: bytes) -> None:
        """Call ``Desk.place`` in the store's thread. The following methods do the same."""
        self._ask(lambda _: self.desk.place(worker, value))

    def refuse(self, worker: int, why: str) -> None:
        self._ask(lambda _: self.desk.refuse(worker, why))

    def publish(self, workers: Iterable[int], value: bytes) -> None:
        them = list(workers)
        self._ask(lambda _: self.desk.publish(them, value))

    def forget(self, worker: int) -> None:
        def forget(_: "Table") -> Replies:
            self.desk.forget(worker)
            return []

        self._ask(forget)

    def fail(self, group: str, why: str) -> None:
        """Fail the exchanges of this group, so that its ranks do not wait for lost ones."""
        self._ask(lambda table: table.fail(group, why))

    def set(self, name: str, value: bytes) -> None:
        """Store a value unless the name already has one."""
        self._ask(lambda table: table.set_first(name, value))

    def close(self) -> None:
        """Close the descriptors, after the server."""
        os.close(self.fd)
        os.close(self.asked)

    def _ask(self, command: Command) -> None:
        self._commands.append(command)
        os.eventfd_write(self.asked, 1)

    # Store's thread.

    def serve(self, table: "Table") -> Replies:
        """Execute the launcher's requests, and pass on the workers' messages."""
        _clear(self.asked)
        replies: Replies = []
        while self._commands:
            replies += self._commands.popleft()(table)
        if self.desk.told:
            told, self.desk.told = self.desk.told, []
            self._told.extend(told)
            os.eventfd_write(self.fd, 1)
        return replies


def _clear(fd: int) -> None:
    try:
        os.eventfd_read(fd)
    except BlockingIOError:
        pass
