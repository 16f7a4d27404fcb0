"""Run a module of this package in a process that ends with the one that has started it.

Standard input is one end of a pair of sockets whose other end the caller has. This process ends when the caller does,
or closes its end, from the first moment on: also while it imports a framework, which takes seconds.
"""

import contextlib
import importlib
import os
import select
import sys
import threading

READY, GO = b"r", b"g"


def main() -> None:
    """Run ``main()`` of the module that the first argument names, with the arguments behind it."""
    waiting = select.poll()
    waiting.register(0, select.POLLHUP)
    with contextlib.suppress(AttributeError, OSError):  # before Linux 5.3
        # A child that the caller has forked holds its end of the pair, too.
        waiting.register(os.pidfd_open(os.getppid()), select.POLLIN)
    threading.Thread(target=_end_with_caller, args=(waiting,), daemon=True).start()
    importlib.import_module(sys.argv.pop(1)).main()


def wait_for_go() -> None:
    """Tell the caller that this process is ready, and return when the caller says so."""
    os.write(0, READY)
    if os.read(0, 1) != GO:
        os._exit(1)


def _end_with_caller(waiting: "select.poll") -> None:
    waiting.poll()
    os._exit(1)
