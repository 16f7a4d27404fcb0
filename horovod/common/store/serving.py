"""What all of our servers have in common: a thread of their own, and how it ends."""

import os
import threading


class Serving:
    """Serves in a thread of its own from ``_start`` until ``close``. A subclass says what it does there in ``_serve``,
    which polls the descriptor ``_stop`` beside its own and returns when that is readable."""

    def __init__(self, name: str, seconds: float) -> None:
        """``name``: of the thread. ``seconds``: how long ``close`` waits for its end at most."""
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._seconds = seconds
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def _serve(self) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """May be called again."""
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join(timeout=self._seconds)
        if not self._thread.is_alive():  # else it still uses that descriptor, when it is done with what holds it up
            os.close(self._stop)
