"""The thread that writes checkpoints, for which Python's end waits.

Python does wait for threads, but only once it has ended concurrent.futures, which then refuses all work: s3fs and
others need that even to look up a host's name. So what is being written would be lost unless it is waited for before.

Python 3.12.0 and 3.12.1 begin no thread any more by then: there, only ``close`` is sure.
"""

import atexit
import contextlib
import threading
from collections.abc import Callable

_once = threading.Lock()
_registered = False


class Writer(threading.Thread):
    """No daemon."""


def start_writer(target: Callable[[], None]) -> threading.Thread:
    """Python's end waits for it."""
    _register()
    writer = Writer(target=target, name="horovod-checkpoint", daemon=False)
    writer.start()
    return writer


def _register() -> None:
    global _registered
    with _once:
        if _registered:
            return
        import concurrent.futures.thread  # noqa: F401 - what is registered first is called last

        # Of Python's own use. Without it what is written to a disk is still waited for.
        register = getattr(threading, "_register_atexit", atexit.register)
        with contextlib.suppress(RuntimeError):  # this process is ending already
            register(_wait)
        _registered = True


def _wait() -> None:
    for thread in threading.enumerate():  # in a process that was forked meanwhile there is none
        if isinstance(thread, Writer):
            thread.join()
