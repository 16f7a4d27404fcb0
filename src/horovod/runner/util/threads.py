"""Helper function that runs a function in a new thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call `target(*args)` in a new thread, and return the thread.

    Args:
        target: Function to call.
        args: Positional arguments of the function.
        name: Name of the thread.
        daemon: True if the process can end while the thread is running.
        silent: True to ignore exceptions in the thread.

    Raises:
        ValueError: If `args` is not a tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args must be a tuple, got {type(args).__name__}; write a single argument as (arg,)")
    thread = threading.Thread(target=_quiet(target) if silent else target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread


def _quiet(target: Callable[..., Any]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        try:
            target(*args)
        except Exception:
            return

    return run
