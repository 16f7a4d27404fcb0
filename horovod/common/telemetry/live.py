"""What rank 0 sends the launcher for the live page, about once a second, when somebody has asked for one."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.contract import live
from horovod.common.contract.reasons import PIPE, Teller
from horovod.common.telemetry.post import Post

if TYPE_CHECKING:
    from horovod.common.telemetry.account import Account

INTERVAL = 1.0  # s
_AGE = 0.5  # s that an operation waits before it is worth a word
_ROOM = 32 << 10  # bytes that wait in the pipe, of 64 KiB: the rest is for reports of ranks that end
_PATIENCE = 0.5  # s for the thread to end


class Live:
    """An Outlet with a thread of its own, for there is something to tell before the first step, and when none ends."""

    def __init__(self, post: Post, account: "Callable[[], Account | None]", why: Callable[[], str]) -> None:
        """``account``: the job's, once there is one. ``why``: the last guess why operations wait."""
        self._post, self._account, self._why = post, account, why
        self._teller = Teller(os.environ.get(PIPE, ""))
        self._at = time.monotonic()
        self._waiting: list[dict[str, Any]] = []
        self._next = 0  # of the messages about ranks, that for which there was no room last time
        self._wake, self._closed = threading.Event(), threading.Event()
        post.on_waiting(self._hear)
        self._thread = threading.Thread(target=self._run, name="hvd-live", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """The account has heard something new."""
        self._at = time.monotonic()
        self._wake.set()

    def close(self) -> None:
        """The account is closed; this goes on until ``finish``."""

    def finish(self) -> None:
        """The job is over: tells the last."""
        self._closed.set()
        self._wake.set()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self._waiting = []
            self._tell()
            self._teller.close()
            self._account, self._why = lambda: None, str  # they know who knows this, and the engine

    def leave_in_child(self) -> None:
        """In a forked child, which has no such thread."""
        self._teller.close()

    def _hear(self, report: dict[str, Any]) -> None:
        if report["asked"]:
            self._waiting = [one for one in report["waiting"] if one["age"] >= _AGE]

    def _run(self) -> None:
        while not self._closed.is_set():
            self._tell()
            self._post.ask_who_waits()
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def _tell(self) -> None:
        try:
            self._send(self._messages())
        except Exception as error:  # what observes a job must not end it
            logging.getLogger("horovod").debug("live page: %s: %s", type(error).__name__, error)

    def _messages(self) -> list[bytes]:
        """First what is most wanted."""
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
