"""Listener on which `horovodrun --explain` asks a running job why it waits.

It is an abstract Unix socket of rank 0's process. Processes of the same user, and root, get a text; then the connection
is closed.
"""

import contextlib
import socket
import threading
from collections.abc import Callable

from horovod.common.contract import descriptors
from horovod.common.contract.reports import new_door

_PATIENCE = 5.0  # seconds for the peer to receive the text
_LEAVING = 2.0  # seconds for an answer in progress when the job ends


class Door:
    """Listener that serves one connection at a time, in a daemon thread."""

    def __init__(self, answer: Callable[[], str]) -> None:
        self._answer = answer
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(new_door())
            self._socket.listen(4)
        except OSError:  # out of descriptors or memory: the job works without this listener
            self._socket.close()
            self._socket = None
            return
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="hvd-explain-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and release what the answer is made of, in particular the engine."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
            self._thread.join(_LEAVING)
            self._socket.close()
            self._socket = None

    def leave_in_child(self) -> None:
        """Close the socket in a forked child; the thread exists only in the parent."""
        if self._socket is not None:
            self._socket.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(Exception):
                connection.settimeout(_PATIENCE)
                if not descriptors.is_this_user_or_root(connection):
                    continue
                try:
                    text = self._answer()
                except TimeoutError:
                    text = "another report is being made; try again\n"
                connection.sendall(text.encode(errors="replace"))
