"""Events that actors add to the driver's mailbox: a finished call, a lost worker, or a log message."""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod.common.exceptions import HorovodInternalError, NoPlaceError
from horovod.runner.external_workers.mailbox import Mailbox
from horovod.runner.function.outcome import WorkerError, worker_error

Callback = Callable[[dict[str, Any]], Any]
_OWN_FOLDER = os.path.join("horovod", "ray", "")
_LATE = 5.0  # Seconds to wait for the last log messages
ENDED = "its process has ended"


@dataclass(frozen=True)
class CallResult:
    """Event that reports that a call in a worker has finished.

    Attributes:
        turn: Identifier of a batch of calls that were started together, one per worker.
        number: Number of the worker.
        value: Value that the function returned, or None if the call failed.
        error: Exception, or None if the call succeeded.
    """

    turn: str
    number: int
    value: Any = None
    error: BaseException | None = None

    @property
    def victim(self) -> bool:
        """True if the call failed only because another worker failed, or because the worker was removed."""
        return isinstance(self.cause, (HorovodInternalError, NoPlaceError))

    @property
    def died(self) -> bool:
        """True if the worker's process exited during the call."""
        return isinstance(self.error, RayActorError)

    @property
    def cause(self) -> BaseException | None:
        """Exception raised by the called function, or None."""
        return self.error.cause if isinstance(self.error, RayTaskError) else self.error

    def describe(self) -> str:
        """Describe in one line why the call failed."""
        if self.died:
            return f"its process has died: {_reason(str(self.error))}"
        message = str(self.cause)
        if isinstance(self.cause, RayError):  # Remove the colors and internal stack frames from Ray's message.
            message = shortened(message)
        what = f"{type(self.cause).__name__}: {message}"
        return f"what the function has returned cannot be sent: {what}" if self._unsent else what

    @property
    def _unsent(self) -> bool:
        """True if the function's result could not be pickled, because the error was raised in Ray's cloudpickle."""
        found = _FRAME.search(str(self.error)) if isinstance(self.error, RayTaskError) else None
        return found is not None and os.path.basename(found[1]) == "cloudpickle.py"

    def raised(self, who: str, host: str, rank: int | None) -> WorkerError:
        """Return the failure as an exception for the driver.

        Args:
            who: Description of the worker.
            host: Host of the worker.
            rank: Rank of the worker, or None.
        """
        if not isinstance(self.error, RayTaskError):
            return worker_error(f"{who}: {self.describe()}", rank, host)
        text = shortened(str(self.error))
        return worker_error(f"{who}: {self.describe()}\n{text}", rank, host, 1, text, self.cause)


_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_FRAME = re.compile(r'^  File "([^"]*)"', re.MULTILINE)
_CARETS = re.compile(r"\s*[~^]+\s*")
_COMMON = ("The actor died", "class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")


def shortened(text: str) -> str:
    """Remove colors and the frames of Ray and Horovod from Ray's traceback."""
    kept: list[str] = []
    skipping = True  # True while skipping frames of Ray or Horovod
    for line in _COLOUR.sub("", text).rstrip().splitlines():
        if line.startswith("  File "):
            skipping = _OWN_FOLDER in line
        elif not line.startswith(" "):
            skipping = False
            kept.append(line)
            continue
        if not skipping and not (_CARETS.fullmatch(line) and kept and not kept[-1].startswith("  ")):
            kept.append(line)
    return "\n".join(kept)


def _reason(text: str) -> str:
    """Return the informative part of Ray's message about the death of an actor."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    specific = [line for line in lines if not line.startswith(_COMMON)]
    return " ".join(specific or lines).partition(" Some common causes")[0][:500]


@dataclass(frozen=True)
class LostWorker:
    """Event that reports the loss of a worker.

    Attributes:
        number: Number of the worker.
        still: Description of the worker if its process is suspended but still exists, or an empty string if the process
            has exited.
    """

    number: int
    still: str = ""

    @property
    def how(self) -> str:
        """Description of how the worker was lost, for messages."""
        return self.still or ENDED


@dataclass(frozen=True)
class LogMessage:
    """Event that reports a call to ``ray_logger.log`` on rank 0. A ``value`` of None marks the end of the messages."""

    value: Any


Event = CallResult | LostWorker | LogMessage


def watch(ref: Any, turn: str, number: int, box: Mailbox[Any]) -> None:
    """Add a ``CallResult`` to the mailbox when the call finishes."""

    def done(future: Future[Any]) -> None:
        error = future.exception()
        box.put(CallResult(turn, number, None if error is not None else future.result(), error))

    ref.future().add_done_callback(done)


class CallbackListener:
    """Receiver that passes the workers' log messages to the callbacks of one ``run``."""

    def __init__(self, callbacks: Sequence[Callback] | None, box: Mailbox[Any]) -> None:
        """Create a queue for log messages if there are callbacks.

        Args:
            callbacks: Functions to call with each log message, which is a dict, or None.
            box: Mailbox that receives a ``LogMessage`` for each message.

        Raises:
            TypeError: If a callback is not callable.
        """
        if callable(callbacks):
            raise TypeError(f"callbacks must be a list of functions of a dict, got {callbacks!r}")
        self._callbacks = list(callbacks or ())
        for one in self._callbacks:
            if not callable(one):
                raise TypeError(f"callbacks must contain functions of a dict, got {one!r}")
        self._box = box
        self._end = uuid.uuid4().hex
        self.queue = Queue(actor_options=_beside_us()) if self._callbacks else None
        """Queue for ``BaseHorovodWorker.set_queue``, or None."""
        if self.queue is not None:
            self._listen()

    def _listen(self) -> None:
        queue = self.queue
        if queue is None:  # Another thread has closed the queue.
            return

        def receive(future: Future[Any]) -> None:
            if future.exception() is None:  # An exception means that the queue was shut down.
                value = future.result()
                self._box.put(LogMessage(None if value == self._end else value))
                if value != self._end:
                    self._listen()

        queue.actor.get.remote().future().add_done_callback(receive)

    def notify(self, event: LogMessage) -> None:
        """Call all callbacks with the message's value."""
        if event.value is not None:
            for callback in self._callbacks:
                callback(event.value)

    def finish(self, pass_on: Callable[[Any], None] = lambda event: None) -> None:
        """Deliver the last messages after all workers have returned.

        Other events that arrive in the meantime are passed to ``pass_on``.
        """
        if self.queue is None:
            return
        # Call the actor directly, because `Queue.put` would wait without a time limit.
        self.queue.actor.put.remote(self._end)
        until, waits = time.monotonic() + _LATE, True
        while waits and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                if isinstance(event, LogMessage):
                    self.notify(event)
                    waits = waits and event.value is not None
                else:
                    pass_on(event)

    def close(self) -> None:
        """Stop the actor that implements the queue. Can be called repeatedly."""
        if self.queue is not None:
            with contextlib.suppress(RayActorError):
                ray.kill(self.queue.actor)
            self.queue = None


def _beside_us() -> dict[str, Any]:
    """Return actor options that place an actor on the node of this program.

    On another node, the actor could be lost while all workers are alive. Logging would then raise an exception.
    """
    node = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
