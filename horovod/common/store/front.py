"""Between the launcher of an elastic job and the thread of its store: two queues, each with a descriptor that says when
there is something in it. Nobody waits for the other, and nobody looks without being told.
"""

import collections
import os
from collections.abc import Callable, Iterable

from horovod.common.store.desk import Desk, Replies, Told
from horovod.common.store.table import Table

Command = Callable[[Table], Replies]


class Front:
    """Give it to the ``StoreServer``. What is public but ``serve`` and ``asked`` is for the launcher's thread."""

    def __init__(self) -> None:
        self.desk = Desk()
        """Of the store's thread alone."""
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when ``take`` has something."""
        self.asked = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._told: collections.deque[Told] = collections.deque()
        self._commands: collections.deque[Command] = collections.deque()

    # The launcher

    def take(self) -> list[Told]:
        """What workers have said since the last call, in order."""
        _clear(self.fd)
        taken = []
        while self._told:
            taken.append(self._told.popleft())
        return taken

    def place(self, worker: int, value: bytes) -> None:
        """See ``Desk``, like the next ones."""
        self._ask(lambda _: self.desk.place(worker, value))

    def refuse(self, worker: int, why: str) -> None:
        self._ask(lambda _: self.desk.refuse(worker, why))

    def publish(self, workers: Iterable[int], value: bytes) -> None:
        them = list(workers)
        self._ask(lambda _: self.desk.publish(them, value))

    def forget(self, worker: int) -> None:
        def forget(_: Table) -> Replies:
            self.desk.forget(worker)
            return []

        self._ask(forget)

    def fail(self, group: str, why: str) -> None:
        """Those that wait for others in an exchange of this group wait in vain."""
        self._ask(lambda table: table.fail(group, why))

    def set(self, name: str, value: bytes) -> None:
        """A value in the store, unless there is one."""
        self._ask(lambda table: table.set_first(name, value))

    def close(self) -> None:
        """When the server is closed."""
        os.close(self.fd)
        os.close(self.asked)

    def _ask(self, command: Command) -> None:
        self._commands.append(command)
        os.eventfd_write(self.asked, 1)

    # The store's thread

    def serve(self, table: Table) -> Replies:
        """Does what the launcher has asked for, and hands over what workers have said."""
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
