"""Thread that writes checkpoints; the interpreter waits for it at exit.

Python waits for non-daemon threads at exit, but only after shutting down concurrent.futures, which then refuses new
work. File systems such as s3fs need it even to resolve a host name. So the writer must be waited for earlier, or its
checkpoint would be lost.

Python 3.12.0 and 3.12.1 cannot start threads at that point. With these versions, only ``close`` is safe.
"""

import atexit
import contextlib
import threading
from collections.abc import Callable

_once = threading.Lock()
_registered = False


class Writer(threading.Thread):
    """Thread of a checkpoint writer; not a daemon."""


def start_writer(target: Callable[[], None]) -> threading.Thread:
    """Start a thread for which the interpreter waits at exit."""
    _register()
    writer = Writer(target=target, name="horovod-checkpoint", daemon=False)
    writer.start()
    return writer


def _register() -> None:
    global _registered
    with _once:
        if _registered:
            return
        # Exit functions run in reverse order, so this module must register its own before ours.
        import concurrent.futures.thread  # noqa: F401

        # A private function of Python. Without it, only checkpoints written to a disk are still waited for.
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # this process is already exiting
            register(_wait)
        _registered = True


def _wait() -> None:
    for thread in threading.enumerate():  # a process that was forked in the meantime has none
        if isinstance(thread, Writer):
            thread.join()
