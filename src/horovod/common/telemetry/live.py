"""Source of the live page's data: rank 0 sends figures to the launcher once a second if the page is enabled."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.contract import live
from horovod.common.contract.reasons import PIPE, ReportPipe
from horovod.common.telemetry.message_bus import MessageBus

if TYPE_CHECKING:
    from horovod.common.telemetry.account import Account

# Seconds between messages.
INTERVAL = 1.0
# Minimum time in seconds that an operation has waited before the page shows it.
_AGE = 0.5
# Maximum number of unread bytes in the pipe. The rest of its 64 KiB is reserved for other reports.
_ROOM = 32 << 10
# Seconds to wait for the thread to end.
_PATIENCE = 0.5


class Live:
    """Sender of the live page's data. Its own thread also sends before the first step and while no step ends."""

    def __init__(self, bus: MessageBus, account: "Callable[[], Account | None]", why: Callable[[], str]) -> None:
        """Start sending data to the launcher.

        Args:
            bus: Message bus to the other ranks.
            account: Function that returns the job's step statistics, or None before the first step.
            why: Function that returns the last sentence that explained why operations are waiting.
        """
        self._bus, self._account, self._why = bus, account, why
        self._teller = ReportPipe(os.environ.get(PIPE, ""))
        self._at = time.monotonic()
        self._waiting: list[dict[str, Any]] = []
        self._next = 0  # index of the first per-rank message that did not fit into the pipe last time
        self._wake, self._closed = threading.Event(), threading.Event()
        bus.on_waiting(self._hear)
        self._thread = threading.Thread(target=self._run, name="hvd-live", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Wake the sender because the step statistics have new figures."""
        self._at = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """Do nothing, because the sender must run until ``finish``."""

    def finish(self) -> None:
        """Stop the sender after the job's end and send the final figures."""
        self._closed.set()
        self._wake.set()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self._waiting = []
            self._tell()
            self._teller.close()
            # Break a reference cycle: both functions hold references to this object and the engine.
            self._account, self._why = lambda: None, str

    def leave_in_child(self) -> None:
        """Close the pipe in a forked child, where the sender's thread does not exist."""
        self._teller.close()

    def _hear(self, report: dict[str, Any]) -> None:
        if report["asked"]:
            self._waiting = [one for one in report["waiting"] if one["age"] >= _AGE]

    def _run(self) -> None:
        while not self._closed.is_set():
            self._tell()
            self._bus.ask_who_waits()
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def _tell(self) -> None:
        try:
            self._send(self._messages())
        except Exception as error:  # an error in telemetry must not end the job
            logging.getLogger("horovod").debug("live page: %s: %s", type(error).__name__, error)

    def _messages(self) -> list[bytes]:
        """Return the messages to send, most important first."""
        waiting = self._waiting
        made = [live.encode(live.of_waits(waiting, self._why() if waiting else ""))]
        account = self._account()
        if account is None:
            return made
        job = account.job()
        made.append(live.encode(live.of_job(job, self._at)))
        more = live.packed(live.of_ranks(job["ranks"]), live.of_values(job["ranks"]))
        start = self._next % len(more) if more else 0
        return made + more[start:] + more[:start]

    def _send(self, messages: list[bytes]) -> None:
        for number, message in enumerate(messages):
            if self._teller.waiting() > _ROOM or not self._teller.write(message):
                self._next += max(0, number - 2)
                return
        self._next = 0
