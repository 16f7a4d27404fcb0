"""Facts about a waiting job: its missing ranks, what each rank is doing, and operation names.

The engine names an operation ``<kind>.<name>``, or ``<kind>.noname.<number>`` if the program has not named it. The
PyTorch frontend names its internal operations after the first gradient that they contain
(``gradients.bucket.<name>``). Gradients that the program has not named are called ``allreduce.noname.<group>.<index>``.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from horovod.common.telemetry import stacks
from horovod.common.telemetry.stacks import Thread

_SYSTEM_CALLS = {
    "x86_64": {
        0: "read", 1: "write", 7: "poll", 17: "pread", 18: "pwrite", 23: "select", 35: "nanosleep", 42: "connect",
        43: "accept", 44: "send", 45: "recv", 46: "sendmsg", 47: "recvmsg", 61: "wait", 74: "fsync", 75: "fdatasync",
        202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 270: "pselect", 271: "ppoll",
        281: "epoll_pwait", 441: "epoll_pwait", 56: "clone", 58: "vfork", 435: "clone3",
    },
    "aarch64": {
        22: "epoll_pwait", 63: "read", 64: "write", 67: "pread", 68: "pwrite", 72: "pselect", 73: "ppoll", 82: "fsync",
        83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 202: "accept",
        203: "connect", 206: "send", 207: "recv", 211: "sendmsg", 212: "recvmsg", 260: "wait",
        220: "clone", 435: "clone3",
    },
}.get(platform.machine(), {})  # fmt: skip
_SWAPPING = 20.0
"""Pages per second read from disk, or swapped out, from which a partly swapped-out process counts as swapping."""
_PAGE_KIB = 4
_BUSY = 0.5  # fraction of a core above which the main thread counts as busy
_STARTING = ("clone", "clone3", "vfork")
_NAME = 87
"""Bytes of a name that flight recorders keep (core/trace/recorder.h)."""


@dataclass(frozen=True)
class WaitingOperation:
    """Operation that some ranks have submitted and others have not."""

    name: str
    set: int
    age: float
    """Seconds since a rank first submitted the operation."""
    ready: tuple[int, ...]
    missing: tuple[int, ...]

    @classmethod
    def read(cls, report: Mapping[str, Any]) -> "list[WaitingOperation]":
        """Read the waiting operations from a TOPIC_WAITING message of ``_core.Mailbox.take``, oldest first."""
        made = [
            cls(one["name"], one["set"], one["age"], tuple(one["ready"]), tuple(one["missing"]))
            for one in report["waiting"]
        ]
        return sorted(made, key=lambda one: -one.age)


@dataclass
class Rank:
    """State of one rank of a stalled job: its process, its stacks and its last operations."""

    rank: int
    host: str = ""
    pid: int = 0
    responded: bool = False
    """True if the rank's engine has answered. If False, ``state`` comes from another rank on the same host."""
    looked_at: bool = False
    forced: bool = False
    """True if the rank's Python did not run, so the engine obtained the stacks without it."""
    text: str = ""
    """Stacks in faulthandler's format."""
    threads: list[Thread] = field(default_factory=list)
    main: Thread | None = None
    source: dict[str, str] = field(default_factory=dict)
    """Text of source lines, by "path:number"."""
    loaders: dict[str, list[Any]] = field(default_factory=dict)
    """"live": [[batches given, total batches]] of data loader iterators; "lengths": of all data loaders."""
    before: dict[str, Any] | None = None
    state: dict[str, Any] | None = None
    steps: int = 0
    """Number of steps, from the optimizer or ``hvd.step``, or 0 if unknown."""
    recent: list[dict[str, Any]] = field(default_factory=list)
    """Last entries of the rank's flight recorder."""

    def record_reply(self, data: Mapping[str, Any]) -> None:
        """Store the diagnostic data that the rank's engine has sent (see ``Answerer`` in core/trace/answer.h)."""
        self.responded = True
        self.forced = data["forced"]
        self.text = data["stacks"]
        python = data["python"] or {}
        self.threads = stacks.parse(self.text)
        self.main = stacks.main_thread(self.threads, python.get("main"))
        self.source = python.get("source", {})
        self.loaders = python.get("loaders", {})
        self.steps = data.get("steps", 0)
        self.before, self.state, self.recent = data["before"], data["state"], data["recent"]

    def seen(self, before: dict[str, Any] | None, state: dict[str, Any] | None) -> None:
        """Store two snapshots that another rank took of the rank's process. None means that the process is gone."""
        self.looked_at = True
        self.before, self.state = before, state

    @property
    def label(self) -> str:
        """Label of the rank in messages, with its host and process id."""
        return f"rank {self.rank} (host {self.host}, pid {self.pid})" if self.host else f"rank {self.rank}"

    @property
    def place(self) -> str:
        """Position of the rank's main thread in the user's program, or "" if unknown."""
        return stacks.place(self.main, self.own_source)

    @property
    def own_source(self) -> str:
        """Source line that the main thread is executing in the user's program, or "" if unknown."""
        own = self.main.own if self.main is not None else None
        if self.main is None or own is None:
            return ""
        frame = self.main.frames[own]
        return self.source.get(f"{frame.path}:{frame.line}", "")

    @property
    def condition(self) -> tuple[str, str]:
        """Condition of the rank's process: a keyword and a description.

        The keyword is gone, silent, stopped, debugger, swapping, blocked, locked, busy or sleeping.
        """
        if self.state is None:
            return ("gone", "there is no such process any more") if self.looked_at else ("silent", "it does not answer")
        main = (self.state["threads"] or [{"state": "?", "call": -1, "wait": "", "file": "", "cpu": 0}])[0]
        if main["state"] in ("Z", "X"):
            return "gone", "its process has ended"
        if self.state["tracer"] or main["state"] == "t":
            return "debugger", f"a debugger has it (pid {self.state['tracer']})"
        if main["state"] == "T":
            return "stopped", "its process is stopped (SIGSTOP or Ctrl-Z)"
        seconds, faults, cpu = self._rates(main)
        if self.before and self.state["swapped_kib"] and seconds:
            swapped = f"it swaps: {self.state['swapped_kib'] >> 10} MiB are swapped out"
            if faults >= _SWAPPING * seconds:
                return "swapping", f"{swapped}, {faults / seconds:.0f} pages a second come back"
            out = (self.state["swapped_kib"] - self.before["swapped_kib"]) / _PAGE_KIB
            if out >= _SWAPPING * seconds:
                return "swapping", f"{swapped}, and {out / seconds:.0f} pages more each second"
        if main["state"] == "D" and _SYSTEM_CALLS.get(main["call"]) in _STARTING:
            return "blocked", "it waits for a process that it starts to begin its program (vfork)"
        if main["state"] == "D":
            return "blocked", f"it is blocked in I/O{_what(main)}"
        if self.forced:
            return "locked", "it is in code that holds Python's interpreter lock"
        if cpu >= _BUSY or (main["state"] == "R" and not seconds):
            return "busy", "it computes"
        if main["state"] == self._state_before == "R":
            return "busy", f"it computes, with {100 * cpu:.0f}% of a core"
        return "sleeping", f"it sleeps{_what(main)}"

    @property
    def _state_before(self) -> str:
        return self.before["threads"][0]["state"] if self.before and self.before["threads"] else "?"

    def _rates(self, main: Mapping[str, Any]) -> tuple[float, int, float]:
        """Return what changed between the two snapshots of the rank's process.

        The result is (seconds, pages read from disk, fraction of the time that the main thread used the CPU).
        """
        if self.before is None or self.state is None or not self.before["threads"]:
            return 0.0, 0, 0.0
        seconds = (self.state["at"] - self.before["at"]) * 1e-9
        if seconds <= 0:
            return 0.0, 0, 0.0
        cpu = (main["cpu"] - self.before["threads"][0]["cpu"]) * 0.01 / seconds
        return seconds, self.state["faults"] - self.before["faults"], cpu

    @property
    def last_finished(self) -> dict[str, Any] | None:
        """Flight recorder entry of the last completed operation, or None."""
        return next((entry for entry in reversed(self.recent) if entry["what"] == "carried out"), None)

    def age(self, entry: Mapping[str, Any]) -> float:
        """Return the seconds since the end of the operation that ``entry`` describes."""
        return max(0.0, (self.state["at"] - entry["end"]) * 1e-9) if self.state is not None else 0.0

    def entry(self, name: str) -> dict[str, Any] | None:
        """Return the last flight recorder entry about the named operation (submitted or executed), or None."""
        kept = name.encode(errors="replace")[:_NAME].decode(errors="replace").rstrip("\ufffd")
        # Append U+FFFD if the engine has truncated the name in the middle of a UTF-8 character.
        rest = "\ufffd" if kept != name else ""
        known = (one for one in reversed(self.recent) if one["what"] in ("announced", "carried out"))
        return next((one for one in known if one["name"].rstrip(rest) == kept), None)


def _what(thread: Mapping[str, Any]) -> str:
    call = _SYSTEM_CALLS.get(thread["call"], "")
    if call and thread["file"]:
        return f" ({call} of {thread['file']})"
    return f" ({call or thread['wait']})" if call or thread["wait"] else ""


@dataclass
class Facts:
    """All collected facts about a waiting job.

    Attributes:
        ranks: Facts about each queried rank, by rank number.
    """

    stalled: list[WaitingOperation]
    """Stalled operations, oldest first, or all waiting operations if a user has requested the report."""
    waiting: list[WaitingOperation]
    """All waiting operations."""
    ranks: dict[int, Rank]
    size: int
    on_request: bool = False
    suspects: list[int] = field(default_factory=list)
    """Ranks whose engines do not answer."""
    unnoticed: str = ""
    """Text from a rank's own watchdog, or "" if there is none."""
    at: float = 0.0
    """Monotonic time in seconds at which the ages of operations were taken."""


_KINDS = "allreduce|allgather|broadcast|alltoall|reducescatter|barrier|join"
_UNNAMED = re.compile(rf"((?:grouped_)?(?:{_KINDS}))\.noname(?:\.|$)")
_UNNAMED_GRADIENT = re.compile(r"allreduce\.noname\.(\d+)\.(\d+)")
_OF_GRADIENTS = {
    "gradients.bucket.": "the gradient bucket",
    "gradients.ready.": "the readiness flags of gradients",
    "gradients.order.": "the agreed order of gradients",
}
_ALONE = ("barrier", "join")
"""Kinds whose name adds no information."""


def described(kind: str, name: str) -> str:
    """Return a phrase that describes an operation, for use in a sentence.

    Args:
        kind: Kind of the operation, for example "allreduce", or "" if unknown.
        name: Name that the engine uses, possibly truncated.

    Returns:
        For example "allreduce 'loss'", "an unnamed allreduce" or "the gradient bucket from 'fc.weight' on".
    """
    for prefix, text in _OF_GRADIENTS.items():
        if name.startswith(prefix):
            return f"{text} from {short(name.removeprefix(prefix))} on"
    if _UNNAMED_GRADIENT.fullmatch(name):
        return short(name)
    if found := _UNNAMED.match(name):
        return found[1] if found[1] in _ALONE else f"an unnamed {found[1]}"
    return f"{kind} {_quoted(name.removeprefix(f'{kind}.'))}" if kind else _quoted(name)


def short(name: str) -> str:
    """Return an operation's quoted name without its kind, or a description of an unnamed operation."""
    if found := _UNNAMED_GRADIENT.fullmatch(name):
        return f"gradient {found[2]} of parameter group {found[1]} (no name)"
    if name.startswith(tuple(_OF_GRADIENTS)) or _UNNAMED.match(name):
        return described("", name)
    return _quoted(re.sub(rf"^(?:{_KINDS})\.", "", name))


def _quoted(name: str) -> str:
    """Return the name in quotes, with unprintable characters escaped."""
    if not name.isprintable():
        name = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    return f"'{name}'"
