"""Base class of servers that run in their own thread."""

import os
import threading


class Serving:
    """Server with its own thread from ``_start`` until ``close``.

    A subclass implements ``_serve``, which polls the descriptor ``_stop`` beside its own and returns when that is
    readable.
    """

    def __init__(self, name: str, seconds: float) -> None:
        """Prepare the server's thread.

        Args:
            name: Name of the thread.
            seconds: Maximum time that ``close`` waits for its end.
        """
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._seconds = seconds
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop serving. Idempotent."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join(timeout=self._seconds)
        if not self._thread.is_alive():  # otherwise the thread still uses the descriptor later
            os.close(self._stop)
