"""Runner of a module in a process that ends together with its caller.

Standard input is one end of a socket pair whose other end the caller holds. This process ends when the caller ends or
closes its end. That works from the first moment on, even while a framework is imported, which takes seconds.
"""

import contextlib
import importlib
import os
import select
import sys
import threading

READY, GO = b"r", b"g"


def main() -> None:
    """Run ``main()`` of the module named by the first argument, with the remaining arguments."""
    waiting = select.poll()
    waiting.register(0, select.POLLHUP)
    with contextlib.suppress(AttributeError, OSError):  # not available before Linux 5.3
        # Children forked by the caller hold its end of the pair too, so the end of the caller itself is also watched.
        waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    threading.Thread(target=_end_with_caller, args=(waiting,), daemon=True).start()
    importlib.import_module(sys.argv.pop(1)).main()


def wait_for_go() -> None:
    """Tell the caller that this process is ready, and wait for its permission to continue."""
    os.write(0, READY)
    if os.read(0, 1) != GO:
        os._exit(1)


def _end_with_caller(waiting: "select.poll") -> None:
    waiting.poll()
    os._exit(1)
