"""Message bus between the telemetry of a job's ranks. Messages have names, and a thread calls their handlers.

Rank 0 sends messages to one rank or to all ranks. The other ranks send only to rank 0. The engine transfers the
messages together with its own (core/engine/observers.h). An unused bus therefore costs nothing, messages arrive in
order, and the bus works under every launcher. Use the bus for short, occasional messages. Handlers must return quickly,
and no code can rely on the arrival of a message.
"""

import json
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod._core import Engine, Mailbox

ALL_RANKS = -1
_PATIENCE = 2.0  # seconds to wait for the thread to stop, because it can be busy in a handler

Handler = Callable[[int, dict[str, Any]], None]
"""Function that is called with the sending rank and the message's content."""


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
        """Register the handler for messages with this name. Each name has one handler."""
        assert kind not in self._handlers, kind
        self._handlers[kind] = handler

    def on_topic(self, topic: int, handler: Callable[[int, bytes], None]) -> None:
        """Register the handler for the engine's messages on a topic (TOPIC_* in ``_core``).

        The handler gets the sending rank and the message body.
        """
        assert topic not in self._topics, topic
        self._topics[topic] = handler

    @property
    def box(self) -> "Mailbox":
        """Mailbox in which the engine stores received messages."""
        return self._box

    def on_waiting(self, handler: Callable[[dict[str, Any]], None]) -> None:
        """Register a handler for rank 0's list of waiting operations (``_core.Mailbox.take``).

        The handler runs after each stall warning and after ``ask_who_waits``.
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
            **what: Content of the message, which must be serializable as JSON.

        Returns:
            True if the message was accepted for sending; see ``Engine.leave_note``.
        """
        body = json.dumps([kind, what], separators=(",", ":")).encode()
        return self._engine.leave_note(to, self._topic, body)

    def ask_who_waits(self) -> None:
        """Ask rank 0's engine to pass all waiting operations to the ``on_waiting`` handlers."""
        self._engine.ask_who_waits()

    def send_to_self(self, kind: str, **what: Any) -> None:
        """Queue a message for this rank's own handler, which runs in the bus's thread."""
        self._box.put(json.dumps([kind, what]).encode())

    def close(self) -> None:
        """Stop handling messages, and wait up to 2 s for a running handler."""
        self._box.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)
        # Break the reference cycle between handlers and bus, so that in-memory files close without garbage collection.
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
            except Exception as error:  # a telemetry error must not end the job
                logging.getLogger("horovod").debug("telemetry: %s: %s", type(error).__name__, error)

    def _handle(self, rank: int, topic: int, body: bytes) -> None:
        if topic == self._waiting_topic:
            report = json.loads(body)
            for callback in self._waiting:
                callback(report)
        elif topic == self._topic:
            kind, what = json.loads(body)
            handler = self._handlers.get(kind)
            if handler is not None:
                handler(rank, what)
        elif topic in self._topics:
            self._topics[topic](rank, body)
