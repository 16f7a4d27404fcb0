"""Calls in actors, as events of one mailbox: a result, an exception, a worker that is gone, something logged."""

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
from horovod.runner.function.worker_error import WorkerError, worker_error
from horovod.runner.resident.mailbox import Mailbox

Callback = Callable[[dict[str, Any]], Any]
_OURS = os.path.join("horovod", "ray", "")
_LATE = 5.0  # s for what was logged to come
ENDED = "its process has ended"


@dataclass(frozen=True)
class Done:
    """A call has ended. ``turn``: which one; ``number``: of the worker; ``error``: None where there is a ``value``."""

    turn: str
    number: int
    value: Any = None
    error: BaseException | None = None

    @property
    def victim(self) -> bool:
        """Has it failed only because others have, or was it told that it has no place any more?"""
        return isinstance(self.cause, (HorovodInternalError, NoPlaceError))

    @property
    def died(self) -> bool:
        """Is there no process any more?"""
        return isinstance(self.error, RayActorError)

    @property
    def cause(self) -> BaseException | None:
        """What the function has raised."""
        return self.error.cause if isinstance(self.error, RayTaskError) else self.error

    def words(self) -> str:
        """How it has failed, on a line."""
        if self.died:
            return f"its process has died: {_reason(str(self.error))}"
        said = str(self.cause)
        if isinstance(self.cause, RayError):  # whose texts are for terminals
            said = shortened(said)
        what = f"{type(self.cause).__name__}: {said}"
        return f"what the function has returned cannot be sent: {what}" if self._unsent else what

    @property
    def _unsent(self) -> bool:
        """Did it fail when it had returned? Then Ray's pickle is what was called first."""
        found = _FRAME.search(str(self.error)) if isinstance(self.error, RayTaskError) else None
        return found is not None and os.path.basename(found[1]) == "cloudpickle.py"

    def raised(self, who: str, host: str, rank: int | None) -> WorkerError:
        """The same as an exception of the driver's. ``who``: in words."""
        if not isinstance(self.error, RayTaskError):
            return worker_error(f"{who}: {self.words()}", rank, host)
        text = shortened(str(self.error))
        return worker_error(f"{who}: {self.words()}\n{text}", rank, host, 1, text, self.cause)


_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_FRAME = re.compile(r'^  File "([^"]*)"', re.MULTILINE)
_CARETS = re.compile(r"\s*[~^]+\s*")
_COMMON = ("The actor died", "class_name:", "actor_id:", "pid:", "namespace:", "ip:", "name:")


def shortened(text: str) -> str:
    """Of a traceback as Ray shows it, what is the user's: without colours, frames of ours, and what Ray leaves of
    frames of its own."""
    kept: list[str] = []
    ours = True  # the header comes first, then what is left of Ray's frames
    for line in _COLOUR.sub("", text).rstrip().splitlines():
        if line.startswith("  File "):
            ours = _OURS in line
        elif not line.startswith(" "):
            ours = False
            kept.append(line)
            continue
        if not ours and not (_CARETS.fullmatch(line) and kept and not kept[-1].startswith("  ")):
            kept.append(line)
    return "\n".join(kept)


def _reason(text: str) -> str:
    """What Ray says of how an actor has died, without what it says always."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(_COMMON)]
    return " ".join(told or lines).partition(" Some common causes")[0][:500]


@dataclass(frozen=True)
class Gone:
    """The worker's process has ended; or it lives, and stands still, which ``still`` says in words."""

    number: int
    still: str = ""

    @property
    def how(self) -> str:
        """In words."""
        return self.still or ENDED


@dataclass(frozen=True)
class Logged:
    """``ray_logger.log`` was called in rank 0. ``value`` None: nothing more comes."""

    value: Any


Event = Done | Gone | Logged


def watch(ref: Any, turn: str, number: int, box: Mailbox[Any]) -> None:
    """Puts a ``Done`` into the box when the call has ended."""

    def done(future: Future[Any]) -> None:
        error = future.exception()
        box.put(Done(turn, number, None if error is not None else future.result(), error))

    ref.future().add_done_callback(done)


class Ear:
    """Hears what workers log, for the callbacks of one ``run``; without any it is deaf and costs nothing."""

    def __init__(self, callbacks: Sequence[Callback] | None, box: Mailbox[Any]) -> None:
        """Raises TypeError naming a callback that cannot be called."""
        if callable(callbacks):
            raise TypeError(f"callbacks is {callbacks!r}, accepted is a list of callables that take a dict")
        self._callbacks = list(callbacks or ())
        for one in self._callbacks:
            if not callable(one):
                raise TypeError(f"callbacks has {one!r}, accepted are callables that take a dict")
        self._box = box
        self._end = uuid.uuid4().hex
        self.queue = Queue(actor_options=_beside_us()) if self._callbacks else None
        """For ``BaseHorovodWorker.set_queue``."""
        if self.queue is not None:
            self._listen()

    def _listen(self) -> None:
        queue = self.queue
        if queue is None:  # closed, in another thread
            return

        def heard(future: Future[Any]) -> None:
            if future.exception() is None:  # else the queue was ended
                told = future.result()
                self._box.put(Logged(None if told == self._end else told))
                if told != self._end:
                    self._listen()

        queue.actor.get.remote().future().add_done_callback(heard)

    def tell(self, event: Logged) -> None:
        """Calls the callbacks."""
        if event.value is not None:
            for callback in self._callbacks:
                callback(event.value)

    def finish(self, pass_on: Callable[[Any], None] = lambda event: None) -> None:
        """All workers are done: what they have logged before comes still. ``pass_on``: gets what else happens
        meanwhile."""
        if self.queue is None:
            return
        self.queue.actor.put.remote(self._end)  # `Queue.put` would wait for it, without a deadline
        until, waits = time.monotonic() + _LATE, True
        while waits and time.monotonic() < until:
            for event in self._box.take(until)[0]:
                if isinstance(event, Logged):
                    self.tell(event)
                    waits = waits and event.value is not None
                else:
                    pass_on(event)

    def close(self) -> None:
        """Ends the queue. May be called again."""
        if self.queue is not None:
            with contextlib.suppress(RayActorError):
                ray.kill(self.queue.actor)
            self.queue = None


def _beside_us() -> dict[str, Any]:
    """Options of an actor on the node of this program. On any other node it could be lost while all workers are well,
    and what they log would raise."""
    node = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
