"""Monitor for a job on a cluster. It prints the launcher's output, explains waiting pods, and detects the job's end.

Threads watch the pods and Jobs, and read the log. They put their results into a queue. The caller's thread reads the
queue and makes all decisions.
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
from horovod.runner.kubernetes.manifests import COMPONENT, LAUNCHER, PATIENCE, PODS, WORKER, selector, workers_name
from horovod.runner.kubernetes.pods import JobOutcome, Judge
from horovod.runner.kubernetes.request import CONTAINER

RECONNECT_SECONDS = 120.0
"""Seconds for which an API server may fail to answer."""
AGAIN = 1.0  # Seconds before a failed request is repeated
PASSING = (410, 429, 500, 502, 503, 504)
"""HTTP statuses that can be temporary: an outdated version, or a server that is busy or restarts."""
# Number of attempts to read the log of a terminated pod
LAST_TRIES = 3
# Seconds for which a message about waiting pods must stay the same before it is shown
SETTLES = 1.0
EVENTS_EVERY = 5.0  # Seconds between two queries for events while pods are missing


class ConnectionLost(RuntimeError):
    """Error raised if the API server can no longer be reached. The job continues on the cluster."""


class Watcher(threading.Thread):
    """Thread that watches all objects of one kind that belong to the job, such as its pods.

    After each change, it puts ``(kind, objects by name)`` into `inbox`. If it gives up, it puts ``(kind, ApiError)``
    there.
    """

    def __init__(self, api: Api, kind: str, name: str, inbox: queue.Queue[tuple[str, Any]]) -> None:
        super().__init__(name=f"watch {kind}", daemon=True)
        self._api = api
        self._kind = kind
        self._selector = selector(name)
        self._inbox = inbox
        self._objects: dict[str, dict[str, Any]] = {}

    def run(self) -> None:
        """Watch until the process exits or the API rejects a request."""
        since = time.monotonic()
        while True:
            try:
                version = self._list()
                since = time.monotonic()
                while version:
                    version = self._watch(version)
                    ended = time.monotonic()
                    if ended - since < AGAIN:  # Some servers end each watch immediately, so limit the rate of requests.
                        time.sleep(AGAIN)
                    since = time.monotonic()
            except ApiError as error:
                passing = isinstance(error, Unreachable) or error.status in PASSING
                if passing and time.monotonic() - since <= RECONNECT_SECONDS:
                    time.sleep(AGAIN)
                    continue
                self._inbox.put((self._kind, Unreachable(str(error)) if passing else error))
                return
            except Exception as error:  # Report any error, because the caller would otherwise wait forever.
                text = f"cannot follow what the API says of {self._kind}s: {type(error).__name__}: {error}"
                self._inbox.put((self._kind, ApiError(text)))
                return

    def _list(self) -> str:
        found = self._api.list(self._kind, labelSelector=self._selector)
        self._objects = {each["metadata"]["name"]: each for each in found["items"]}
        self._publish()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Watch for changes since `version`.

        Returns:
            Version to continue from, or an empty string if all objects must be listed again.
        """
        for event in self._api.watch(self._kind, version, labelSelector=self._selector):
            each = event["object"]
            # An ERROR event means that the server no longer stores changes since `version`.
            if event["type"] == "ERROR":
                return ""
            version = str(each["metadata"]["resourceVersion"])
            if event["type"] == "DELETED":
                self._objects.pop(each["metadata"]["name"], None)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._objects[each["metadata"]["name"]] = each
            else:  # A BOOKMARK event reports a new version number, but no change.
                continue
            self._publish()
        return version

    def _publish(self) -> None:
        self._inbox.put((self._kind, dict(self._objects)))


class LogReader(threading.Thread):
    """Thread that prints each line of the launcher pod's output exactly once.

    At the end of the output, it puts ``("log", None)`` into `inbox`. If the API server forbids reading the log, the
    thread first calls `log` to report this.
    """

    def __init__(
        self,
        api: Api,
        pod: str,
        inbox: queue.Queue[tuple[str, Any]],
        write: Callable[[bytes], None],
        log: Callable[[str], None],
    ) -> None:
        super().__init__(name="log", daemon=True)
        self._api = api
        self._pod = pod
        self._inbox = inbox
        self._write = write
        self._log = log
        self._last = ""  # Timestamp of the last printed line
        self.ended = threading.Event()
        """Set once the pod has ended, so that its log is complete."""

    def run(self) -> None:
        """Print the log. If a connection ends, reconnect and continue after the last printed line."""
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
                        self._log(f"the job's output cannot be shown: {error}")
                        return
                    # Report server errors and timeouts. Other messages already explain why a pod has no log.
                    if failed == LAST_TRIES and (isinstance(error, Unreachable) or error.status >= 500):
                        self._log(f"the job's output cannot be shown, or not yet: {error}")
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
        # Continue after the last printed line. The API accepts a time in whole seconds only, so truncate the fraction,
        # and skip lines whose timestamps show that they were already printed.
        since = done[:19] + done[19:].lstrip(".0123456789")
        for line in self._api.log(self._pod, CONTAINER, since):
            at, text = pods.split_time(line)
            if not at or at > done:
                self._last = at or self._last
                self._write(text)


def write_line(line: bytes) -> None:
    """Write a log line to stdout, or to stderr if the launcher wrote the line to stderr."""
    stream = sys.stderr if line.startswith(b"horovodrun: ") or b"]<stderr>:" in line[:80] else sys.stdout
    with contextlib.suppress(BrokenPipeError):
        stream.buffer.write(line + b"\n")
        stream.buffer.flush()


def _component(thing: Mapping[str, Any]) -> str:
    return str(thing["metadata"].get("labels", {}).get(COMPONENT, ""))


def _launchers(found: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (each for each in found.values() if _component(each) == LAUNCHER)


class Follower:
    """Monitor for one job. It calls `log` with messages for the user."""

    def __init__(
        self, api: Api, name: str, log: Callable[[str], None], write: Callable[[bytes], None] = write_line
    ) -> None:
        self._api = api
        self._name = name
        self._log_line = log
        self._write = write
        self._inbox: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._pods: dict[str, Any] | None = None
        self._jobs: dict[str, Any] | None = None
        self._events: list[Mapping[str, Any]] = []
        self._events_at = 0.0
        # Last known states of the pods whose container images could not be pulled, by pod name
        self._pulled: dict[str, pods.View] = {}
        self._log: LogReader | None = None
        self._log_read = False
        self._line, self._line_at, self._reported = "", 0.0, ""

    def run(self) -> JobOutcome:
        """Follow the job until it has ended or is found to be unable to start.

        Raises ApiError if the API server rejects a request, or Lost if it can no longer be reached.
        """
        job = self._api.get("Job", self._name)
        annotations = job["metadata"].get("annotations") or {}
        expected = int(annotations.get(PODS, 0)) or int(
            self._api.get("Job", workers_name(self._name))["spec"]["completions"]
        )
        patience, age = float(annotations.get(PATIENCE, "600")), pods.active_seconds(job, time.time())
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
        if self._line != self._reported:
            times.append(self._line_at + SETTLES)
        if self._events_at:
            times.append(self._events_at)
        soonest = min((each for each in times if each is not None), default=None)
        return None if soonest is None else max(0.05, soonest - time.monotonic())

    def _take(self, judge: Judge, seconds: float | None) -> None:
        """Process all queued results of the watcher threads, one by one.

        `judge` must see each intermediate state, such as a terminated pod before the pod's removal.

        Raises:
            ConnectionLost: If the API server cannot be reached.
        """
        with contextlib.suppress(queue.Empty):
            kind, found = self._inbox.get(timeout=seconds)
            while True:
                if isinstance(found, Unreachable):
                    raise ConnectionLost(str(found))
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
            self._log = LogReader(self._api, launcher.name, self._inbox, self._write, self._log_line)
            self._log.start()
        if self._log is not None and (launcher is None or launcher.ended):
            self._log.ended.set()

    def _look_at_events(self, views: list[pods.View], expected: int) -> None:
        """Query the job's events, which explain why pods could not be created."""
        now = time.monotonic()
        missing = sum(each.component == WORKER for each in views) < expected
        if not missing or self._log_read:
            self._events_at = 0.0
        elif not self._events_at:
            self._events_at = now + SETTLES
        elif now >= self._events_at:
            self._events_at = now + EVENTS_EVERY
            with contextlib.suppress(ApiError):  # Some users do not have permission to read events.
                of_job = f"involvedObject.kind=Job,involvedObject.name={workers_name(self._name)}"
                self._events = self._api.list("Event", fieldSelector=of_job)["items"]

    def _report(self, views: list[pods.View], expected: int) -> None:
        line = "; ".join(filter(None, [pods.waiting_line(views, expected), *pods.not_created(self._events)]))
        now = time.monotonic()
        if line != self._line:
            self._line, self._line_at = line, now
        elif line != self._reported and now - self._line_at >= SETTLES:
            self._reported = line
            self._log_line(line or "all pods have started")
