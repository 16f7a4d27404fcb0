"""What a worker tells the driver while it trains: ``log`` in the function, callbacks of ``run`` on the other side."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from horovod.common.contract.worker_env import WORKER

_queue: Any = None


def configure(queue: Any) -> None:
    """What is logged from now on goes to ``queue``, anything with a method ``put``; None: nowhere. An executor that is
    given callbacks does this itself."""
    global _queue
    if queue is not None and not callable(getattr(queue, "put", None)):
        raise TypeError(f"queue is {queue!r}, accepted is an object with a method put, such as ray.util.queue.Queue")
    _queue = queue


def log(info_dict: Mapping[str, Any]) -> None:
    """Gives a copy of this to the callbacks, if this is rank 0 and there are any. Other ranks may call it as well, and
    nothing happens. Raises TypeError when it is no mapping."""
    if not isinstance(info_dict, Mapping):
        raise TypeError(f"info_dict is {info_dict!r}, accepted is a dict")
    unknown = "" if WORKER in os.environ else "0"  # in an elastic job, before hvd.init()
    if _queue is not None and os.environ.get("HOROVOD_RANK", unknown) == "0":
        _queue.put(dict(info_dict))
