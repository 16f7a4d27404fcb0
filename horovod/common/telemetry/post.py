"""Notes between the ranks of a job, for whoever observes it: said by name, heard by handlers in a thread of their own.

Rank 0 speaks to one rank or to all, the others to rank 0. The engine carries notes beside its own messages
(core/engine/notes.h), so they cost nothing where nothing is said, arrive in order, and work under every launcher. They
are for a few words now and then; what handlers do must be short, and nothing depends on a note's arrival.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod._core import Engine, Mailbox

EVERYBODY = -1
_PATIENCE = 2.0  # s for the thread to end, which may be within a handler

Handler = Callable[[int, dict[str, Any]], None]
"""Called with the rank that spoke and what it said."""


class Post:
    """This rank's: ``on`` everything first, then ``start``."""

    def __init__(self, engine: "Engine", rank: int) -> None:
        from horovod import _core

        self.rank = rank
        self._engine = engine
        self._box = engine.mailbox(rank)
        self._topic, self._waiting_topic = _core.TOPIC_PYTHON, _core.TOPIC_WAITING
        self._handlers: dict[str, Handler] = {}
        self._waiting: list[Callable[[dict[str, Any]], None]] = []
        self._letters: dict[int, Callable[[int, bytes], None]] = {}
        self._thread: threading.Thread | None = None

    def on(self, kind: str, handler: Handler) -> None:
        """``handler`` gets what is said under this name. One for each name."""
        assert kind not in self._handlers, kind
        self._handlers[kind] = handler

    def on_letter(self, topic: int, handler: Callable[[int, bytes], None]) -> None:
        """``handler`` gets the rank and the body of what comes with this topic (TOPIC_* of ``_core``), said by the
        engine's own observers. One for each topic."""
        assert topic not in self._letters, topic
        self._letters[topic] = handler

    @property
    def box(self) -> "Mailbox":
        """Where what this rank hears comes in."""
        return self._box

    def on_waiting(self, handler: Callable[[dict[str, Any]], None]) -> None:
        """Rank 0: ``handler`` gets who waits for whom, as ``_core.Mailbox.take`` says, with each warning about a stall
        and after ``ask_who_waits``."""
        self._waiting.append(handler)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._read, name="hvd-telemetry", daemon=True)
        self._thread.start()

    def say(self, kind: str, to: int = EVERYBODY, **what: Any) -> bool:
        """``what`` (JSON) under the name ``kind``, to rank ``to`` or all by rank 0, which hears it too; by other ranks
        to rank 0. Any thread. False: not sent, see ``Engine.leave_note``."""
        body = json.dumps([kind, what], separators=(",", ":")).encode()
        return self._engine.leave_note(to, self._topic, body)

    def ask_who_waits(self) -> None:
        """Rank 0: handlers of ``on_waiting`` are called soon, with all that waits."""
        self._engine.ask_who_waits()

    def tell_own(self, kind: str, **what: Any) -> None:
        """The same without leaving this rank: has its handler called in the thread of all handlers."""
        self._box.put(json.dumps([kind, what]).encode())

    def close(self) -> None:
        """Nothing is handled any more. Waits for a handler that is at work, up to a moment."""
        self._box.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        # Handlers know this, and what they hold (memory files) should not wait for the garbage collector.
        self._handlers, self._letters, self._waiting = {}, {}, []

    def _read(self) -> None:
        while True:
            letter = self._box.take()
            if letter is None:
                if self._box.closed:
                    return
                continue
            try:
                self._handle(*letter)
            except Exception as error:  # what observes a job must not end it
                logging.getLogger("horovod").debug("telemetry: %s: %s", type(error).__name__, error)

    def _handle(self, rank: int, topic: int, body: bytes) -> None:
        if topic == self._waiting_topic:
            report = json.loads(body)
            for told in self._waiting:
                told(report)
        elif topic == self._topic:
            kind, what = json.loads(body)
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(rank, what)
        elif topic in self._letters:
            self._letters[topic](rank, body)
