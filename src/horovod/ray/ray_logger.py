"""Messages from workers to the driver. A worker calls ``log``; the driver then calls the callbacks of ``run``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horovod.common.contract.worker_env import WORKER

_queue: Any = None


def configure(queue: Any) -> None:
    """Set the destination of log messages. Executors with callbacks call this function automatically.

    Args:
        queue: Object with a method ``put``, or None to discard messages.

    Raises:
        TypeError: If ``queue`` has no method ``put``.
    """
    global _queue
    if queue is not None and not callable(getattr(queue, "put", None)):
        raise TypeError(f"queue must have a method put, as ray.util.queue.Queue has, got {queue!r}")
    _queue = queue


def log(info_dict: Mapping[str, Any]) -> None:
    """Send a copy of ``info_dict`` from rank 0 to the driver's callbacks. Other ranks do nothing.

    Args:
        info_dict: Values to send, by name.

    Raises:
        TypeError: If ``info_dict`` is not a mapping.
    """
    if not isinstance(info_dict, Mapping):
        raise TypeError(f"info_dict must be a dict, got {info_dict!r}")
    unknown = "" if WORKER in os.environ else "0"  # In an elastic job, the rank is unknown before hvd.init().
    if _queue is not None and os.environ.get("HOROVOD_RANK", unknown) == "0":
        _queue.put(dict(info_dict))
