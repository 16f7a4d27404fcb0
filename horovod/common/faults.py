"""Faults on purpose, in the rank that they are meant for: what HOROVOD_CHAOS says (``horovod.chaos``), at a step or
after a time, with a line for each. Nothing of this is there where the variable is not set. What is done to a network:
``network_faults``.

Steps and times are those of the job: a rank that comes later is told them by the others at each init, so what has
happened once does not happen again to whoever takes a lost rank's place.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

from horovod.chaos import Event, Kind, Plan, plan
from horovod.chaos.report import AGAIN
from horovod.chaos.targets import ON_NETWORKS, Member, Ranks, concerns
from horovod.common import network_faults
from horovod.common.exceptions import HorovodInternalError
from horovod.common.job import Job
from horovod.common.network.interfaces import network_identity
from horovod.common.objects import allgather_object
from horovod.common.steps import marks

FAILURE = 1
"""The code of an exit that is given none: success would be the end of the job."""


class ChaosError(RuntimeError):
    """``raise`` was to happen."""


class Faults:
    """Of this process. ``act``: does what an event says to one of these ranks."""

    def __init__(self, told: Plan, act: Callable[[Event, Ranks], None]) -> None:
        self._plan = told
        self._act = act
        self._lock = threading.Lock()
        self._ranks = Ranks(-1, ())  # of the last epoch
        self.steps = 0
        """Steps that the job has made, as far as this rank knows."""
        self.began: float | None = None
        """When the job's first epoch began (s since 1970)."""
        self._committed = 0  # steps that had been made at the last commit, as far as this rank knows
        self._timer: threading.Thread | None = None

    def begin(self, ranks: Ranks, steps: int, began: float, first: bool) -> None:
        """An epoch begins, the job's ``first`` or a later one, of a job that has made so many steps since then."""
        with self._lock:
            if not self._ranks.members:
                self._committed = steps  # who comes later begins with what the others have
            before, self._ranks = self._ranks, ranks
            missed, self.steps, self.began = range(self.steps + 1, steps + 1), steps, began
        if self._timer is None:
            self._timer = threading.Thread(target=self._run, args=(began,), name="horovod-chaos", daemon=True)
            self._timer.start()
        if first:
            self._at_step(0, ranks)
        for step in missed:  # which others had made, and this rank had not, when one was lost
            self._at_step(step, before)

    def step(self) -> None:
        """The program has made a step."""
        self.steps += 1
        self._at_step(self.steps, self._ranks)

    def committed(self) -> None:
        """What the program has come to is kept."""
        self._committed = self.steps

    def again(self, teller: int, steps: int | None) -> None:
        """After a failure the program goes on from the state of the rank ``teller``, and does so many steps again;
        None: all since the last commit. In a program whose steps nobody sees, nothing is known of it."""
        own, made = self._ranks.own, self.steps
        lost = made - self._committed if steps is None else steps
        self._committed = made if steps is None else self._committed
        if own == teller and made:
            _say(AGAIN.format(lost))

    def _at_step(self, step: int, ranks: Ranks) -> None:
        """``ranks``: nobody's, where this process was not there yet."""
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
        """What does not happen at a step, from so many s after the beginning on."""
        if since < 1.0:  # else the job has begun without this process
            yield from (event for event in self._plan.events if event.step is None and event.after is None)
        for event in self._plan.by_time():
            if (event.after or 0.0) > since:
                yield event


def act(event: Event, ranks: Ranks) -> None:
    """Does it, to this process or to its network. After a time, not at a step, whatever the main thread does is
    interrupted."""
    if event.kind in ON_NETWORKS:
        network_faults.act(event, ranks, lambda remark: _say(f"{event} ({remark})"))
        return
    _say(str(event))
    me = os.getpid()
    if event.kind is Kind.KILL:
        os.kill(me, signal.SIGKILL)
    elif event.kind is Kind.PREEMPT:
        os.kill(me, signal.SIGTERM)
    elif event.kind is Kind.STOP:
        # Who is stopped cannot go on by itself.
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


def _say(what: str) -> None:
    sys.stderr.write(f"chaos: {what}\n")  # at once, since two threads may say something
    sys.stderr.flush()


_faults: Faults | None = None


def prepare(text: str) -> None:
    """Of a process that is about to be in a job. Raises ValueError for a plan that cannot be read."""
    global _faults
    if _faults is None:
        _faults = Faults(plan(text), act)
        marks.beside, marks.kept, marks.back = _faults.step, _faults.committed, _faults.again


def begin(job: Job) -> None:
    """A job of this process, which others may have begun, has begun here."""
    assert _faults is not None
    new, began = _faults.began is None, time.time() if _faults.began is None else _faults.began
    own = _faults.steps, began, network_identity(), network_faults.addresses(), new
    try:
        told = allgather_object(own, name="horovod.chaos")
    except HorovodInternalError:  # whoever was lost, by what happens at step 0 perhaps, is missed by the program too
        _faults.began = began
        return
    hosts = job.hosts or ("",) * job.size
    members = tuple(Member(host, one[2], one[3]) for host, one in zip(hosts, told, strict=True))
    steps, began, first = max(one[0] for one in told), min(one[1] for one in told), all(one[4] for one in told)
    _faults.begin(Ranks(job.rank, members), steps, began, first)
