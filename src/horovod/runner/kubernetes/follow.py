"""Follower of a job on the cluster: shows why its pods wait, prints the launcher's output, and detects its end.

Threads watch pods and Jobs and read the log. They pass what they find to the caller's thread, which makes all
decisions.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from horovod.runner.kubernetes import pods
from horovod.runner.kubernetes.api import Api, ApiError, Unreachable
from horovod.runner.kubernetes.judge import Judge, Outcome
from horovod.runner.kubernetes.manifests import COMPONENT, LAUNCHER, PATIENCE, PODS, WORKER, selector, workers_name
from horovod.runner.kubernetes.request import CONTAINER

AWAY_SECONDS = 120.0
"""Seconds for which an API server may fail to answer."""
AGAIN = 1.0  # Seconds until the next attempt.
PASSING = (410, 429, 500, 502, 503, 504)
"""HTTP statuses that can be temporary: an outdated version, or a server that is busy or restarts."""
LAST_TRIES = 3  # Attempts to read the log of a pod that has ended. If all fail, the reason is shown.
SETTLES = 1.0  # Seconds for which a line about waiting pods must stay the same before it is shown.
EVENTS_EVERY = 5.0  # Seconds between queries for events while pods are missing.


class Lost(RuntimeError):
    """Error if the API server cannot be reached any more. The job continues."""


class Watcher(threading.Thread):
    """Thread that watches all objects of one kind that belong to the job.

    It puts ``(kind, objects by name)`` into `inbox` after each change, or ``(kind, ApiError)`` when it gives up.
    """

    def __init__(self, api: Api, kind: str, name: str, inbox: queue.Queue[tuple[str, Any]]) -> None:
        super().__init__(name=f"watch {kind}", daemon=True)
        self._api = api
        self._kind = kind
        self._selector = selector(name)
        self._inbox = inbox
        self._objects: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Watch until the process ends or the API refuses a request."""
        since = time.monotonic()
        while True:
            try:
                version = self._list()
                since = time.monotonic()
                while version:
                    version = self._watch(version)
                    ended = time.monotonic()
                    if ended - since < AGAIN:  # some servers end each watch at once, so pause before the next one
                        time.sleep(AGAIN)
                    since = time.monotonic()
            except ApiError as error:
                passing = isinstance(error, Unreachable) or error.status in PASSING
                if passing and time.monotonic() - since <= AWAY_SECONDS:
                    time.sleep(AGAIN)
                    continue
                self._inbox.put((self._kind, Unreachable(str(error)) if passing else error))
                return
            except Exception as error:  # report every failure, because the caller waits for this thread
                text = f"cannot follow what the API says of {self._kind}s: {type(error).__name__}: {error}"
                self._inbox.put((self._kind, ApiError(text)))
                return

    def _list(self) -> str:
        found = self._api.list(self._kind, labelSelector=self._selector)
        self._objects = {each["metadata"]["name"]: each for each in found["items"]}
        self._tell()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Watch from this version. Returns the version to continue from, or an empty string if a new list is needed."""
        for event in self._api.watch(self._kind, version, labelSelector=self._selector):
            each = event["object"]
            if event["type"] == "ERROR":  # the version is too old
                return ""
            version = str(each["metadata"]["resourceVersion"])
            if event["type"] == "DELETED":
                self._objects.pop(each["metadata"]["name"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._objects[each["metadata"]["name"]] = each
            else:  # BOOKMARK
                continue
            self._tell()
        return version

    def _tell(self) -> None:
        self._inbox.put((self._kind, dict(self._objects)))


class LogReader(threading.Thread):
    """Thread that prints the output of the launcher's pod, each line once.

    It puts ``("log", None)`` into `inbox` at the end of the output. If reading the log is forbidden,
    `say` reports that first.
    """

    def __init__(
        self,
        api: Api,
        pod: str,
        inbox: queue.Queue[tuple[str, Any]],
        write: Callable[[bytes], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(name="log", daemon=True)
        self._api = api
        self._pod = pod
        self._inbox = inbox
        self._write = write
        self._say = say
        self._last = ""  # timestamp of the last line
        self.ended = threading.Event()
        """Set once the pod has ended, so that its log is complete."""

    def run(self) -> None:
        """Read the log. If a connection ends, continue after the last line."""
        tries, failed = LAST_TRIES, 0
        try:
            while True:
                over = self.ended.is_set()
                try:
                    self._read()
                    failed = 0
                except ApiError as error:
                    failed += 1
                    if error.status in (401, 403):
                        self._say(f"the job's output cannot be shown: {error}")
                        return
                    # For example, the launcher's node does not answer. Other messages cover a pod without a log.
                    if failed == LAST_TRIES and (isinstance(error, Unreachable) or error.status >= 500):
                        self._say(f"the job's output cannot be shown, or not yet: {error}")
                    tries -= over
                    if over and tries:
                        time.sleep(AGAIN)
                        continue
                if over:
                    return
                self.ended.wait(AGAIN)
        finally:
            self._inbox.put(("log", None))

    def _read(self) -> None:
        done = self._last
        # The API accepts only whole seconds, so some lines arrive again. They are recognized by their timestamps, which
        # never decrease for one writer. After the seconds follows the UTC offset of the node.
        since = done[:19] + done[19:].lstrip(".0123456789")
        for line in self._api.log(self._pod, CONTAINER, since):
            at, text = pods.split_time(line)
            if not at or at > done:
                self._last = at or self._last
                self._write(text)


def write_line(line: bytes) -> None:
    """Write a line to stdout, or to stderr if the launcher wrote it to stderr."""
    stream = sys.stderr if line.startswith(b"horovodrun: ") or b"]<stderr>:" in line[:80] else sys.stdout
    with contextlib.suppress(BrokenPipeError):
        stream.buffer.write(line + b"\n")
        stream.buffer.flush()


def _component(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"].get("labels", {}).get(COMPONENT, ""))


def _launchers(found: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (each for each in found.values() if _component(each) == LAUNCHER)


class Follower:
    """Follower of one job. `say` is called with messages for the user."""

    def __init__(
        self, api: Api, name: str, say: Callable[[str], None], write: Callable[[bytes], None] = write_line
    ) -> None:
        self._api = api
        self._name = name
        self._say = say
        self._write = write
        self._inbox: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._pods: dict[str, Any] | None = None
        self._jobs: dict[str, Any] | None = None
        self._events: list[Mapping[str, Any]] = []
        self._events_at = 0.0
        self._pulled: dict[str, pods.View] = {}  # states of pods whose images could not be pulled, see `pods.steady`
        self._log: LogReader | None = None
        self._log_read = False
        self._line, self._line_at, self._said = "", 0.0, ""

    def run(self) -> Outcome:
        """Follow the job until it has ended or cannot start. Raises ApiError or Lost."""
        job = self._api.get("Job", self._name)
        told = job["metadata"].get("annotations") or {}
        expected = int(told.get(PODS, 0)) or int(self._api.get("Job", workers_name(self._name))["spec"]["completions"])
        patience, age = float(told.get(PATIENCE, "600")), pods.active_seconds(job, time.time())
        judge = Judge(self._name, expected, patience, time.monotonic(), age)
        for kind in ("Pod", "Job"):
            Watcher(self._api, kind, self._name, self._inbox).start()
        while True:
            self._take(judge, self._pause(judge))
            if self._pods is None or self._jobs is None:
                continue
            views = pods.steady(pods.views(self._pods.values()), self._pulled)
            self._follow_log(views)
            self._look_at_events(views, expected)
            jobs = {_component(each): each for each in self._jobs.values()}
            outcome = judge.outcome(views, jobs, self._events, time.monotonic(), self._log_read)
            if outcome is not None:
                return outcome
            self._report(views, expected)

    def _pause(self, judge: Judge) -> float | None:
        times = [judge.next_time()]
        if self._line != self._said:
            times.append(self._line_at + SETTLES)
        if self._events_at:
            times.append(self._events_at)
        soonest = min((each for each in times if each is not None), default=None)
        return None if soonest is None else max(0.05, soonest - time.monotonic())

    def _take(self, judge: Judge, seconds: float | None) -> None:
        """Process all results of the threads.

        The judge also sees intermediate states, such as an end before a removal.
        """
        with contextlib.suppress(queue.Empty):
            kind, found = self._inbox.get(timeout=seconds)
            while True:
                if isinstance(found, Unreachable):
                    raise Lost(str(found))
                if isinstance(found, ApiError):
                    raise found
                if kind == "log":
                    self._log_read = True
                elif kind == "Pod":
                    self._pods = found
                    judge.remember(next(map(pods.view, _launchers(found)), None), None)
                else:
                    self._jobs = found
                    judge.remember(None, next(_launchers(found), None))
                kind, found = self._inbox.get_nowait()

    def _follow_log(self, views: list[pods.View]) -> None:
        launcher = next((each for each in views if each.component == LAUNCHER), None)
        if self._log is None and launcher is not None and launcher.state != "waiting":
            self._log = LogReader(self._api, launcher.name, self._inbox, self._write, self._say)
            self._log.start()
        if self._log is not None and (launcher is None or launcher.ended):
            self._log.ended.set()

    def _look_at_events(self, views: list[pods.View], expected: int) -> None:
        """Query events. No other source explains why pods could not be created."""
        now = time.monotonic()
        missing = sum(each.component == WORKER for each in views) < expected
        if not missing or self._log_read:
            self._events_at = 0.0
        elif not self._events_at:
            self._events_at = now + SETTLES
        elif now >= self._events_at:
            self._events_at = now + EVENTS_EVERY
            with contextlib.suppress(ApiError):  # users can lack permission for events
                of_job = f"involvedObject.kind=Job,involvedObject.name={workers_name(self._name)}"
                self._events = self._api.list("Event", fieldSelector=of_job)["items"]

    def _report(self, views: list[pods.View], expected: int) -> None:
        line = "; ".join(filter(None, [pods.waiting_line(views, expected), *pods.not_created(self._events)]))
        now = time.monotonic()
        if line != self._line:
            self._line, self._line_at = line, now
        elif line != self._said and now - self._line_at >= SETTLES:
            self._said = line
            self._say(line or "all pods have started")
