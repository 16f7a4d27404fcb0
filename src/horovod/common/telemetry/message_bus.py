"""Message bus for observers of a job's ranks: messages have names, and a thread calls their handlers.

Rank 0 sends messages to one rank or to all ranks; the others send to rank 0. The engine transfers the messages together
with its own (core/engine/observers.h). So they cost nothing when unused, arrive in order, and work under every
launcher. The bus is meant for short, occasional messages. Handlers must return quickly, and no code may rely on the
arrival of a message.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod._core import Engine, Mailbox

ALL_RANKS = -1
_PATIENCE = 2.0  # seconds to wait for the thread to end, which may be in a handler

Handler = Callable[[int, dict[str, Any]], None]
"""Called with the sending rank and the content."""


class MessageBus:
    """Message bus of this rank. Register all handlers before calling ``start``."""

    def __init__(self, engine: "Engine", rank: int) -> None:
        from horovod import _core

        self.rank = rank
        self._engine = engine
        self._box = engine.mailbox(rank)
        self._topic, self._waiting_topic = _core.TOPIC_PYTHON, _core.TOPIC_WAITING
        self._handlers: dict[str, Handler] = {}
        self._waiting: list[Callable[[dict[str, Any]], None]] = []
        self._topics: dict[int, Callable[[int, bytes], None]] = {}
        self._thread: threading.Thread | None = None

    def on(self, kind: str, handler: Handler) -> None:
        """Register the handler of messages with this name. There can be only one per name."""
        assert kind not in self._handlers, kind
        self._handlers[kind] = handler

    def on_topic(self, topic: int, handler: Callable[[int, bytes], None]) -> None:
        """Register the handler of engine messages with this topic (TOPIC_* of ``_core``).

        The handler gets the rank and the body. There can be only one per topic.
        """
        assert topic not in self._topics, topic
        self._topics[topic] = handler

    @property
    def box(self) -> "Mailbox":
        """Engine's mailbox with the received messages."""
        return self._box

    def on_waiting(self, handler: Callable[[dict[str, Any]], None]) -> None:
        """Register a handler that gets the list of waiting operations (``_core.Mailbox.take``); rank 0 only.

        It is called at each stall warning and after ``ask_who_waits``.
        """
        self._waiting.append(handler)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._read, name="hvd-telemetry", daemon=True)
        self._thread.start()

    def send(self, kind: str, to: int = ALL_RANKS, **what: Any) -> bool:
        """Send a message. Thread-safe.

        Args:
            kind: Name of the message.
            to: Receiving rank, or ALL_RANKS, which includes rank 0 itself. Ranks other than 0 always send to rank 0.
            **what: Content; must be serializable as JSON.

        Returns:
            True if it was sent; see ``Engine.leave_note``.
        """
        body = json.dumps([kind, what], separators=(",", ":")).encode()
        return self._engine.leave_note(to, self._topic, body)

    def ask_who_waits(self) -> None:
        """Ask the engine to pass all waiting operations to the ``on_waiting`` handlers; rank 0 only."""
        self._engine.ask_who_waits()

    def tell_own(self, kind: str, **what: Any) -> None:
        """Deliver a message to this rank's own handler, which the thread of the bus calls."""
        self._box.put(json.dumps([kind, what]).encode())

    def close(self) -> None:
        """Stop handling messages; wait up to 2 s for a running handler."""
        self._box.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        # Break the cycle, because handlers reference this object. Files in memory are then closed without garbage
        # collection.
        self._handlers, self._topics, self._waiting = {}, {}, []

    def _read(self) -> None:
        while True:
            message = self._box.take()
            if message is None:
                if self._box.closed:
                    return
                continue
            try:
                self._handle(*message)
            except Exception as error:  # an error in observation must not end the job
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
        elif topic in self._topics:
            self._topics[topic](rank, body)
