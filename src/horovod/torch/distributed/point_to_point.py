"""Point-to-point messages: broadcasts within a process set of two ranks, which is created on first use."""

import time
from collections.abc import Callable
from typing import Any

from horovod._core import KIND_BROADCAST
from horovod.common.exceptions import HorovodInternalError
from horovod.torch.distributed import engine
from horovod.torch.distributed.engine import Flat
from horovod.torch.distributed.members import MemberSet


class Message:
    """Work of one message, with the methods ``wait`` and ``done`` of the engine's Work. Creating it never blocks."""

    def __init__(self, pair: MemberSet, submitter: Callable[..., Any], values: Flat, root: int, name: str) -> None:
        """Submit the message as soon as both ranks have requested the process set.

        Args:
            pair: Process set of the two ranks.
            submitter: ``Engine.submit`` with the number of a frontend.
            values: Tensor to send, or tensor that receives the message.
            root: Rank of the sender in the job.
            name: Name of the operation; equal on both ranks.
        """
        self._pair, self._submitter, self._values, self._root, self._name = pair, submitter, values, root, name
        self._work: Any = None
        self._error: Exception | None = None
        pair.then(self._start)

    def _start(self, number: int | None, error: Exception | None) -> None:
        self._error = error
        if number is None:
            return
        values = self._values
        try:
            self._work = engine.submit(
                self._submitter, KIND_BROADCAST, values, values, number, root=self._root, name=self._name
            )
        except (ValueError, HorovodInternalError) as why:
            self._error = why

    def wait(self, timeout: float = -1.0) -> bool:
        """Wait for the message; return False after the timeout."""
        deadline = time.monotonic() + timeout
        if not self._pair.wait(timeout):
            return False
        if self._error is not None:
            raise self._error
        return bool(self._work.wait(max(0.0, deadline - time.monotonic()) if timeout >= 0 else timeout))

    def done(self) -> bool:
        """Return True if the message has completed or failed."""
        return self._pair.done() and (self._error is not None or self._work.done())
