"""Elastic jobs of real processes under random kills, stops and changes of hosts, at any moment."""

import random
import signal
import time

import pytest

from horovod.runner.elastic.limits import Limits
from horovod.runner.elastic.workers import Life
from tests.runner.elastic.small_launcher import SmallLauncher

HOSTS = {"a": 2, "b": 2, "c": 2}


def disturb(job: SmallLauncher, drawn: random.Random) -> None:
    """One thing; two that hold the state are left at least."""
    alive = [w for w in job.membership.workers if w.alive and job.processes[w.number].poll() is None]
    victim = drawn.choice(alive)
    if victim.survivor and sum(w.survivor for w in alive) <= 2:
        return
    process, what = job.processes[victim.number], drawn.random()
    if what < 0.1:
        job.discover(drawn.choice([HOSTS, {**HOSTS, "b": 1, "c": 1}, {**HOSTS, "c": 1}]))
    elif what < 0.2 and victim.life is Life.WORKING:
        process.send_signal(signal.SIGSTOP)
        job.accuse(victim.number)
    else:
        process.kill()


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [1, 2])
def test_a_storm(tmp_path, seed):
    drawn, stop = random.Random(seed), tmp_path / "stop"
    with SmallLauncher(Limits(start=4, least=1, most=6, timeout=120), str(stop)) as job:
        job.discover(HOSTS)
        job.until(lambda: len(job.running()) >= 4)
        for _ in range(40):
            at = time.monotonic() + drawn.expovariate(4.0)
            job.until(lambda at=at: time.monotonic() > at)
            disturb(job, drawn)
        job.discover(HOSTS)
        since = time.monotonic()
        job.until(lambda: job.running() and all(job.steps(w)[-1:] > [(since, 0)] for w in job.running()), 120)
        stop.touch()
        job.until(lambda: job.end is not None)
        assert job.end.success, job.said
