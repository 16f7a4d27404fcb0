"""Hang diagnosis: asks all ranks what they are doing and explains why the job is waiting.

Rank 0 collects the facts. Each rank's engine can answer even while Python is blocked. If no answer arrives,
another rank on the same host reports what the kernel knows about its process. ``explain`` turns the facts into a
report, which goes to a file, and a summary for the terminal.

``horovodrun --explain`` asks a running job through ``ExplainListener``, an abstract Unix socket in rank 0's process.
The listener sends the report only to processes of the same user and of root, and closes the connection.
"""

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from horovod.common.contract import kernel
from horovod.common.contract.reports import new_socket_name
from horovod.common.frontends import Job
from horovod.common.telemetry import explain
from horovod.common.telemetry.facts import Facts, Rank, WaitingOperation
from horovod.common.telemetry.message_bus import ALL_RANKS, MessageBus
from horovod.common.telemetry.stacks import StackReporter

if TYPE_CHECKING:
    from horovod._core import Engine

REPLY_SECONDS = 2.5
"""Seconds for the ranks to answer. The inspection of silent ranks can take half as long."""
_MAX_MISSING = 16
_MAX_READY = 4
_BETWEEN_LOOKS = 0.2  # seconds between the two snapshots of a process
NAME = "hang.txt"


class Hangs:
    """One rank's side of hang diagnosis. Rank 0 collects all ranks' answers."""

    def __init__(
        self, bus: MessageBus, engine: "Engine", job: Job, stack_reporter: StackReporter, warn: Callable[[str], None]
    ) -> None:
        """Register handlers for the messages of hang diagnosis.

        Args:
            bus: Message bus to the other ranks.
            engine: Engine of the job.
            job: The job.
            stack_reporter: Stack reporter of this process.
            warn: Function that shows a warning to the user.
        """
        from horovod import _core

        self._bus, self._engine, self._job, self._stack_reporter, self._warn = bus, engine, job, stack_reporter, warn
        self._question = _core.TOPIC_EXPLAIN
        self._lock = threading.Condition()
        self._busy = False
        self._number = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._looks: dict[int, list[dict[str, Any] | None]] = {}
        self._all: list[WaitingOperation] | None = None
        self.last_guess = ""
        """Last sentence that explained why the job is waiting."""
        # The most informative explanation so far of why the job is waiting, and the facts behind it.
        self._best: tuple[Facts, explain.Guess] | None = None
        self._unwritable = False
        self._rank_0_seen_at = 0.0
        bus.on("look", self._look)
        bus.on("explaining", self._rank_0_is_there)
        bus.on_topic(_core.TOPIC_UNNOTICED, self._unnoticed)
        if job.rank == 0:
            engine.set_report("")  # an empty string tells the engine that rank 0 will write a report
            bus.on("seen", self._seen)
            bus.on("unnoticed", self._unnoticed_elsewhere)
            bus.on_waiting(self._waits)
            bus.on_topic(_core.TOPIC_ANSWER, self._on_reply)

        # The methods below run on all ranks.

    def _look(self, _: int, what: dict[str, Any]) -> None:
        """Take snapshots of an unresponsive rank's process, which runs on this host.

        A separate thread does the work, so that this rank can still answer questions.
        """

        def look() -> None:
            self._bus.send("seen", number=what["number"], rank=what["rank"], states=look_at(what["pid"]))

        threading.Thread(target=look, name="hvd-look", daemon=True).start()

    def _rank_0_is_there(self, *_: Any) -> None:
        self._rank_0_seen_at = time.monotonic()

    def _unnoticed(self, _: int, body: bytes) -> None:
        """Handle an operation of this rank that has waited too long although rank 0 has reported no stall."""
        report = json.loads(body)
        if self._job.rank == 0:
            self._start(None, report["silent"], report["text"])
            return
        self._bus.send("unnoticed", text=report["text"], silent=report["silent"])
        if self._same_host(0):
            threading.Thread(target=self._without_rank_0, name="hvd-explain", daemon=True).start()

    def _without_rank_0(self) -> None:
        begin = time.monotonic()
        time.sleep(REPLY_SECONDS + 1)
        if self._rank_0_seen_at >= begin:
            return
        zero = self._rank(0)
        zero.seen(*look_at(zero.pid))
        if zero.condition[0] not in ("sleeping", "busy"):
            facts = Facts([], [], {0: zero}, self._job.size, suspects=[0])
            self._warn(explain.summary(facts, explain.guess(facts).text, ""))

    def _same_host(self, rank: int) -> bool:
        hosts = self._job.hosts
        return bool(hosts) and hosts[rank] == hosts[self._job.rank]

    def _rank(self, rank: int) -> Rank:
        job = self._job
        return Rank(rank, job.hosts[rank], job.pids[rank]) if job.hosts else Rank(rank)

    # The methods below run only on rank 0.

    def _waits(self, report: dict[str, Any]) -> None:
        self._stack_reporter.answerer.noticed()
        waiting = WaitingOperation.read(report)
        with self._lock:
            if report["asked"]:
                self._all = waiting
                self._lock.notify_all()
        if not report["asked"]:
            self._start(waiting, [], "")

    def _unnoticed_elsewhere(self, _: int, what: dict[str, Any]) -> None:
        self._start(None, what["silent"], what["text"])

    def _on_reply(self, rank: int, body: bytes) -> None:
        answer = json.loads(body)
        with self._lock:
            if answer["number"] == self._number:
                self._replies[rank if rank != 0 else answer["rank"]] = answer
                self._lock.notify_all()

    def _seen(self, _: int, what: dict[str, Any]) -> None:
        with self._lock:
            if what["number"] == self._number:
                self._looks.setdefault(what["rank"], what["states"])
                self._lock.notify_all()

    def _start(self, stalled: list[WaitingOperation] | None, suspects: list[int], unnoticed: str) -> None:
        """Start a thread that explains the wait, unless an explanation is already in progress."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        arguments = (stalled, suspects, unnoticed)
        threading.Thread(target=self._explain, args=arguments, name="hvd-explain", daemon=True).start()

    def _explain(self, stalled: list[WaitingOperation] | None, suspects: list[int], unnoticed: str) -> None:
        try:
            facts = self._collect(stalled, suspects, unnoticed)
            why = self._why(facts)
            path = self._write(facts, why)
            repeated = why == self.last_guess
            self._warn(f"why the job still waits: {why}" if repeated else explain.summary(facts, why, path))
            self.last_guess = why
        except Exception as error:  # a diagnosis error must neither end the job nor print a traceback
            logging.getLogger("horovod").debug("telemetry: %s: %s", type(error).__name__, error)
        finally:
            with self._lock:
                self._busy = False
                self._lock.notify_all()

    def explain(self) -> str:
        """Return rank 0's report of the current state, even if no operation has stalled. This takes up to 5 s.

        Raises:
            TimeoutError: If an earlier report is still in progress after that time.
        """
        with self._lock:
            if not self._lock.wait_for(lambda: not self._busy, 2 * REPLY_SECONDS):
                raise TimeoutError
            self._busy = True
        try:
            facts = self._collect(None, [], "")
            facts.on_request = True
            why = self._why(facts)
            path = self._write(facts, why)
            return explain.report(facts, why, _now()) + (f"\nThis report: {path}\n" if path else "")
        finally:
            with self._lock:
                self._busy = False
                self._lock.notify_all()

    def _why(self, facts: Facts) -> str:
        """Return why the job is waiting, or an earlier, more informative guess about the same wait.

        Ranks can answer late or not at all, and such incomplete facts must not replace a better guess.
        """
        guess = explain.guess(facts)
        if self._best is not None and guess.knows < self._best[1].knows and explain.same_wait(self._best[0], facts):
            return self._best[1].text
        self._best = facts, guess
        return guess.text

    def _write(self, facts: Facts, why: str) -> str:
        """Write the report to a file and return its path, or "" if it cannot be written."""
        if not self._engine.report_dir:
            return ""
        try:
            path = self._engine.write_report(NAME, explain.report(facts, why, _now()).encode(errors="replace"))
        except OSError as error:
            if not self._unwritable:
                self._warn(f"the report about the hang cannot be written: {error}")
            self._unwritable = True
            return ""
        self._engine.set_report(path)
        return path

    def _collect(self, stalled: list[WaitingOperation] | None, suspects: list[int], unnoticed: str) -> Facts:
        at = time.monotonic()
        self._bus.send("explaining")
        waiting = self._who_waits()
        named = waiting if stalled is None else stalled
        missing = list(dict.fromkeys([*suspects, *(rank for one in named for rank in one.missing)]))
        ready = list(dict.fromkeys(rank for one in named for rank in one.ready if rank not in missing))
        queried = [*missing[:_MAX_MISSING], *ready[:_MAX_READY]] or list(range(min(self._job.size, _MAX_MISSING)))
        if suspects and 0 not in queried:
            queried.append(0)
        ranks = {rank: self._rank(rank) for rank in queried}
        with self._lock:
            self._number += 1
            number = self._number
            self._replies, self._looks = {}, {}
        self._engine.leave_note(ALL_RANKS, self._question, f"{number};{','.join(map(str, queried))};".encode())
        with self._lock:
            self._lock.wait_for(lambda: len(self._replies) >= len(queried), REPLY_SECONDS)
            replies = dict(self._replies)
        for rank, answer in replies.items():
            if rank in ranks:
                ranks[rank].record_reply(answer)
        silent = [one for one in ranks.values() if not one.responded]
        # The waiting rank does not know which ranks are missing, so suspect all silent ones.
        if unnoticed and not missing:
            suspects = [one.rank for one in silent]
        self._look_at_silent(number, silent, list(replies))
        return Facts(named, waiting, ranks, self._job.size, suspects=suspects, unnoticed=unnoticed, at=at)

    def _who_waits(self) -> list[WaitingOperation]:
        with self._lock:
            self._all = None
            self._bus.ask_who_waits()
            self._lock.wait_for(lambda: self._all is not None, REPLY_SECONDS / 2)
            return self._all or []

    def _look_at_silent(self, number: int, silent: list[Rank], there: list[int]) -> None:
        """Ask same-host peers about the process of each rank that has not answered."""
        queried = []
        for one in silent:
            if self._same_host(one.rank):
                one.seen(*look_at(one.pid))
                continue
            neighbours = [rank for rank in there if self._job.hosts and self._job.hosts[rank] == one.host]
            others = [rank for rank in range(self._job.size) if self._job.hosts and self._job.hosts[rank] == one.host]
            for rank in list(dict.fromkeys([*neighbours, *(rank for rank in others if rank != one.rank)]))[:2]:
                self._bus.send("look", rank, number=number, rank=one.rank, pid=one.pid)
                queried.append(one)
        if not queried:
            return
        with self._lock:
            self._lock.wait_for(lambda: all(one.rank in self._looks for one in queried), REPLY_SECONDS / 2)
            for one in queried:
                if one.rank in self._looks:
                    one.seen(*self._looks[one.rank])


def look_at(pid: int) -> "list[dict[str, Any] | None]":
    """Take two snapshots of a process on this host, 0.2 s apart. A snapshot is None if the process is gone."""
    from horovod import _core

    states = []
    for pause in (0.0, _BETWEEN_LOOKS):
        time.sleep(pause)
        text = _core.process_state(pid)
        states.append(json.loads(text) if text else None)
    return states


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


# Time limit in seconds for sending the explanation to the peer.
_PATIENCE = 5.0
# Maximum seconds for which the shutdown waits until the current answer has been sent.
_LEAVING = 2.0


class ExplainListener:
    """Socket on which rank 0 answers ``horovodrun --explain``, one connection at a time, in a daemon thread."""

    def __init__(self, explain: Callable[[], str]) -> None:
        self._explain = explain
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(new_socket_name())
            self._socket.listen(4)
        except OSError:  # if file descriptors or memory are exhausted, the job runs without this socket
            self._socket.close()
            self._socket = None
            return
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="hvd-explain-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and release the references that would keep the engine alive."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # the shutdown wakes the thread that accepts connections
            self._thread.join(_LEAVING)
            self._socket.close()
            self._socket = None

    def leave_in_child(self) -> None:
        """Close the inherited socket in a forked child, because no thread of the child serves it."""
        if self._socket is not None:
            self._socket.close()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(Exception):
                connection.settimeout(_PATIENCE)
                if not kernel.is_this_user_or_root(connection):
                    continue
                try:
                    text = self._explain()
                except TimeoutError:
                    text = "another report is being made; try again\n"
                connection.sendall(text.encode(errors="replace"))
