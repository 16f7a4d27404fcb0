"""Fault injection: applies the faults in HOROVOD_CHAOS (``horovod.chaos``) to the affected ranks.

A fault occurs at a step of the job or a number of seconds after the job's start, and is logged in one line. Without the
variable, this module installs nothing. At each ``init``, new ranks get the number of steps and the start time from the
other ranks. So a fault does not occur a second time in a process that replaces a lost rank.

Network faults isolate this host or slow down a link. They require Linux tools and the permission to use them.
``horovod.chaos.events`` generates the input for these tools. If a fault cannot be injected, the reason is logged and
the job continues.
"""

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from horovod.chaos import Event, Kind, Plan, events, plan
from horovod.chaos.events import AGAIN, HEAD_START, ON_NETWORKS, Member, Ranks, concerns, host, link, why_not
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import Job
from horovod.common.network import interfaces
from horovod.common.network.interfaces import network_identity
from horovod.common.objects import allgather_object
from horovod.common.training_loop.steps import marks

LIMIT = 5.0
"""Time limit in seconds for one call of a tool."""

_SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
_NET_ADMIN = 12  # CAP_NET_ADMIN
_UNKNOWN = "qdisc kind is unknown"
_PACKAGES = {"nft": "nftables", "tc": "iproute2"}


class InjectionError(Exception):
    """Raised if a fault could not be injected. The message names the reason."""


def inject_on_network(event: Event, ranks: Ranks, report: Callable[[str], None]) -> None:
    """Inject a network fault (``targets.ON_NETWORKS``).

    Args:
        event: The fault.
        ranks: Members of the job.
        report: Function that logs the event's target, or "not done: " and the reason.
    """  # noqa: DOC501
    try:
        if why := why_not(event, ranks):
            raise InjectionError(why)
        if not _may():
            raise InjectionError("this process may not change the network; that takes CAP_NET_ADMIN")
        if event.kind is Kind.CUT:
            _cut(event, ranks, report)
        else:
            _slow(event, ranks, report)
    except InjectionError as error:
        report(f"not done: {error}")


def addresses() -> tuple[str, ...]:
    """Return the addresses at which other hosts can reach this process.

    The result is empty if the kernel does not list them.
    """
    try:
        return tuple(address.text for each in _outward() for address in each.addresses)
    except InjectionError:
        return ()


def _cut(event: Event, ranks: Ranks, report: Callable[[str], None]) -> None:
    try:
        text = events.cut([each.name for each in _outward()], event.lasts)
    except ValueError as error:
        raise InjectionError(str(error)) from None
    _run(["nft", "-f", "-"], events.prepare())
    report(f"host {host(event, ranks)}")
    time.sleep(HEAD_START)  # give the log line time to reach the launcher before the fault occurs
    _run(["nft", "-f", "-"], text)


def _slow(event: Event, ranks: Ranks, report: Callable[[str], None]) -> None:
    one, other = link(event, ranks)
    far = other if ranks.own == one else one
    ways = _ways(ranks.members[far].addresses)
    if not ways:
        raise InjectionError(f"no way to rank {far} on host {ranks.members[far].host} is known")
    slowed: list[str] = []
    try:
        for name, targets in ways.items():
            first, *rest = events.slow(name, targets, event.by or 0.0)
            _run(first)
            slowed.append(name)
            for words in rest:
                _run(words)
        _undo_later([events.slow_no_more(name) for name in slowed], event.lasts)
    except InjectionError:
        for name in slowed:
            _run(events.slow_no_more(name))
        raise
    report(f"packets to rank {far}" if ranks.own == one else f"the other end, packets to rank {far}")


def _ways(targets: Sequence[str]) -> dict[str, list[str]]:
    """Group target addresses by outgoing network interface."""
    owners = {address.text: each.name for each in _outward() for address in each.addresses}
    ways: dict[str, list[str]] = {}
    for target in targets:
        name = owners.get(interfaces.source_address(target) or "")
        if name is not None:
            ways.setdefault(name, []).append(target)
    return ways


def _outward() -> list[interfaces.Interface]:
    try:
        found = [each for each in interfaces.scan() if not each.loopback]
    except OSError as error:
        raise InjectionError(f"the network interfaces are not known: {error}") from None
    if not found:
        raise InjectionError("this process sees no network but the loopback")
    return found


def _may() -> bool:
    try:
        with open("/proc/thread-self/status") as file:
            mask = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        # If the capabilities are unknown, assume that they suffice. If not, the network command reports an error.
        return True
    return bool(int(mask, 16) >> _NET_ADMIN & 1)


def _program(name: str) -> str:
    path = shutil.which(name, path=_SEARCH)
    if path is None:
        raise InjectionError(f"there is no program {name} here (package {_PACKAGES[name]})")
    return path


def _run(arguments: Sequence[str], text: str = "") -> None:
    command = [_program(arguments[0]), *arguments[1:]]
    try:
        run = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise InjectionError(f"{shlex.join(arguments)} did not end within {LIMIT:g} s") from None
    except OSError as error:
        raise InjectionError(f"{shlex.join(arguments)}: {error.strerror}") from None
    if run.returncode:
        complaint = (run.stderr.strip() or run.stdout.strip() or f"exit code {run.returncode}").splitlines()[0]
        lacks = "this kernel lacks a part that it takes (sch_prio, sch_netem): " if _UNKNOWN in complaint else ""
        raise InjectionError(f"{lacks}{shlex.join(arguments)}: {complaint}")


_held: set[int] = set()
"""Descriptors of this process. When they are closed, its slowdowns are removed."""


def _let_go(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def _not_in_children() -> None:
    """Close the descriptors in a forked child, such as a data loader worker, which can outlive its parent."""
    for descriptor in list(_held):
        _let_go(descriptor)


os.register_at_fork(after_in_child=_not_in_children)


def _undo_later(commands: Sequence[Sequence[str]], lasts: float | None) -> None:
    """Run ``commands`` after ``lasts`` seconds, or as soon as this process exits.

    A detached shell waits and then runs the commands. It runs in its own session, so it outlives this process.

    Raises:
        InjectionError: If the shell does not start.
    """
    reading, writing = os.pipe()
    _held.add(writing)
    undo = "; ".join(shlex.join([_program(words[0]), *words[1:]]) for words in commands)
    waiting = f"trap exit TERM INT HUP; trap {shlex.quote(undo)} EXIT; read nothing <&{reading}"
    try:
        subprocess.Popen(
            ["/bin/sh", "-c", f"({waiting}) >/dev/null 2>&1 </dev/null &"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(reading,),
            start_new_session=True,
        ).wait(LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        _let_go(writing)
        raise InjectionError(f"a shell that would undo it does not start: {error}") from None
    finally:
        os.close(reading)
    if lasts is not None:
        timer = threading.Timer(lasts, _let_go, (writing,))
        timer.daemon = True
        timer.start()


FAILURE = 1
"""Exit code of an exit fault without a code. Not 0, which would end the job successfully."""


class ChaosError(RuntimeError):
    """Raised by the fault ``raise``."""


class Faults:
    """Faults to inject into this process.

    Args:
        plan: Plan of all faults (events) of the job.
        act: Function that injects the fault of one event into this rank. Its second argument has the members of the
            epoch.
    """

    def __init__(self, plan: Plan, act: Callable[[Event, Ranks], None]) -> None:
        self._plan = plan
        self._act = act
        self._lock = threading.Lock()
        self._ranks = Ranks(-1, ())  # members of the most recent epoch
        self.steps = 0
        """Number of steps of the job so far, as far as this rank knows."""
        self.began: float | None = None
        """Start time of the job's first epoch, in seconds since 1970."""
        self._committed = 0  # value of `steps` at the last commit
        self._timer: threading.Thread | None = None

    def begin(self, ranks: Ranks, steps: int, began: float, first: bool) -> None:
        """Begin an epoch of the job.

        Args:
            ranks: Members of the epoch.
            steps: Number of steps that the job has already completed.
            began: Start time of the job's first epoch, in seconds since 1970.
            first: True if this is the job's first epoch.
        """
        with self._lock:
            if not self._ranks.members:
                self._committed = steps  # a process that joins a running job starts from the other ranks' state
            before, self._ranks = self._ranks, ranks
            missed, self.steps, self.began = range(self.steps + 1, steps + 1), steps, began
        if self._timer is None:
            self._timer = threading.Thread(target=self._run, args=(began,), name="horovod-chaos", daemon=True)
            self._timer.start()
        if first:
            self._at_step(0, ranks)
        for step in missed:  # inject the faults of steps that this rank missed while it recovered from a lost rank
            self._at_step(step, before)

    def step(self) -> None:
        """Count a step of the program, and inject the faults that are planned for this step."""
        self.steps += 1
        self._at_step(self.steps, self._ranks)

    def committed(self) -> None:
        """Record that the program has committed at the current step."""
        self._committed = self.steps

    def again(self, teller: int, steps: int | None) -> None:
        """Log how many steps the program must repeat after a failure.

        Args:
            teller: Rank from whose state the program continues. Only this rank writes the log line.
            steps: Number of steps to repeat. None means all steps since the last commit. Nothing is logged if Horovod
                does not detect the program's steps.
        """
        own, made = self._ranks.own, self.steps
        lost = made - self._committed if steps is None else steps
        self._committed = made if steps is None else self._committed
        if own == teller and made:
            _log(AGAIN.format(lost))

    def _at_step(self, step: int, ranks: Ranks) -> None:
        """Inject the faults planned for ``step``. ``ranks`` is empty for steps before this process joined the job."""
        for event in self._plan.events if ranks.members else ():
            if event.step == step and concerns(event, ranks):
                self._act(event, ranks)

    def _run(self, began: float) -> None:
        for event in self._timed(time.time() - began):
            time.sleep(max(0.0, began + (event.after or 0.0) - time.time()))
            with self._lock:
                ranks = self._ranks
            if concerns(event, ranks):
                self._act(event, ranks)

    def _timed(self, since: float) -> Iterator[Event]:
        """Yield the timed faults, starting ``since`` seconds after the start of the job."""
        if since < 1.0:  # skip faults that were due before this process joined the job
            yield from (event for event in self._plan.events if event.step is None and event.after is None)
        for event in self._plan.by_time():
            if (event.after or 0.0) > since:
                yield event


def act(event: Event, ranks: Ranks) -> None:
    """Inject a fault into this process or its network.

    A fault at a step is injected in the main thread. A timed fault is injected from another thread and can interrupt
    the main thread at any point.

    Raises:
        ChaosError: If the fault is ``raise``.
    """
    if event.kind in ON_NETWORKS:
        inject_on_network(event, ranks, lambda remark: _log(f"{event} ({remark})"))
        return
    _log(str(event))
    me = os.getpid()
    if event.kind is Kind.KILL:
        os.kill(me, signal.SIGKILL)
    elif event.kind is Kind.PREEMPT:
        os.kill(me, signal.SIGTERM)
    elif event.kind is Kind.STOP:
        # A stopped process cannot resume itself, so another process sends SIGCONT.
        subprocess.Popen(
            ["/bin/sh", "-c", f"sleep {event.lasts or 0:.3f}; kill -CONT {me}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.kill(me, signal.SIGSTOP)
    elif threading.current_thread() is threading.main_thread():
        if event.kind is Kind.EXIT:
            sys.exit(event.code or FAILURE)
        raise ChaosError(str(event))
    elif event.kind is Kind.EXIT:
        os._exit(event.code or FAILURE)
    else:
        main = ctypes.c_ulong(threading.main_thread().ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(ChaosError))


def _log(what: str) -> None:
    sys.stderr.write(f"chaos: {what}\n")  # two threads can log at the same time, so use a single write
    sys.stderr.flush()


_faults: Faults | None = None


def prepare(text: str) -> None:
    """Set up fault injection before this process joins its first job.

    Raises:
        ValueError: If ``text`` is not a valid fault plan.
    """
    global _faults
    if _faults is None:
        _faults = Faults(plan(text), act)
        marks.beside, marks.kept, marks.back = _faults.step, _faults.committed, _faults.again


def begin(job: Job) -> None:
    """Begin an epoch. Ranks that joined earlier provide the job's step count and start time."""
    assert _faults is not None
    new, began = _faults.began is None, time.time() if _faults.began is None else _faults.began
    own = _faults.steps, began, network_identity(), addresses(), new
    try:
        rows = allgather_object(own, name="horovod.chaos")
    except HorovodInternalError:  # ignore a lost rank, because the program's next operation reports it too
        _faults.began = began
        return
    hosts = job.hosts or ("",) * job.size
    members = tuple(Member(host, one[2], one[3]) for host, one in zip(hosts, rows, strict=True))
    steps, began, first = max(one[0] for one in rows), min(one[1] for one in rows), all(one[4] for one in rows)
    _faults.begin(Ranks(job.rank, members), steps, began, first)
