"""Elastic jobs by `horovodrun` under random kills, stops and host changes of workers and agents."""

import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from horovod.runner.base import linux
from tests.runner.elastic.launched import ElasticJob, elastic_job

PROGRAM = [sys.executable, str(Path(__file__).with_name("program.py"))]
HOSTS = "localhost:2\n127.0.0.1:2"
OTHERS = [HOSTS, "localhost:3\n127.0.0.1:1", "localhost:2", "localhost:1\n127.0.0.1:3\n[::1]:1"]


def workers(job: ElasticJob) -> list[int]:
    """Return the processes of the living workers."""
    running = set(job.job.left())
    found = [int(line.split()[-1]) for line in job.err if re.search(r"has pid \d+$", line)]
    return [pid for pid in found if pid in running]


def trains(job: ElasticJob, since: float) -> int:
    """Return how many ranks have taken a step after that time."""
    found = (re.match(r"\[(\d+)\]<stdout>:([0-9.]+) step", line) for line in job.out[-60:])
    return len({match[1] for match in found if match and float(match[2]) > since})


def disturb(job: ElasticJob, rng: random.Random) -> None:
    """Kill or stop two workers at about the same time, kill an agent, or change the hosts."""
    chance = rng.random()
    if chance < 0.2:
        job.hosts(rng.choice(OTHERS))
    elif chance < 0.35:
        agents = [pid for pid, line in job.job.commands().items() if "runner.agent" in line]
        linux.send_signal(max(agents), signal.SIGKILL)  # the agent of the newest host
    else:
        for pid in rng.sample(workers(job), 2):
            # It may have just ended by itself, because its host has fewer slots now.
            linux.send_signal(pid, signal.SIGSTOP if rng.random() < 0.2 else signal.SIGKILL)
            at = time.monotonic() + rng.choice([0.0, 0.02, 0.1, 0.3])
            job.until(lambda at=at: time.monotonic() >= at)


@pytest.mark.heavy
def test_random_failures(tmp_path):
    rng, stop = random.Random(3), tmp_path / "stop"
    flags = ("-np", "4", "--min-np", "1", "--max-np", "6", "--blacklist-cooldown-range", "1", "1")
    with elastic_job(tmp_path, HOSTS, *flags, *PROGRAM, str(stop)) as job:
        for _ in range(20):
            job.hosts(HOSTS)
            since = time.monotonic()
            job.until(lambda since=since: trains(job, since) >= 4)  # so that a worker survives the next fault
            disturb(job, rng)
            at = time.monotonic() + rng.expovariate(1.0)
            job.until(lambda at=at: time.monotonic() > at)
        stop.touch()
        assert job.end() == 0, job.shown()
