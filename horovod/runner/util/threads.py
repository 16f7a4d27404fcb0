"""Threads."""

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
    """Start `target(*args)` in a thread of its own and return that. `daemon`: it does not keep the process from ending;
    `silent`: what it raises is not shown. Raises ValueError when `args` is no tuple.
    """
    if not isinstance(args, tuple):
        raise ValueError(f"args is of type {type(args).__name__}, accepted is a tuple; a single argument is (arg,)")
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
