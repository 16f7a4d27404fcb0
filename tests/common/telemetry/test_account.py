"""An account of steps in real jobs, without a framework."""

import os
import threading

from horovod.common.basics import HorovodBasics
from horovod.common.contract.settings import Settings
from horovod.common.job import Job
from horovod.common.telemetry.account import Account


def again_and_again(count):
    import time

    hvd = HorovodBasics("tests")
    seen = []
    for i in range(count):
        hvd.init()
        for _ in range(12):
            hvd.step()
        hvd.report(i=i)
        deadline = time.monotonic() + 20
        while hvd.rank() == 0 and not hvd.stats()["job"]["ranks"][-1]["made"] and time.monotonic() < deadline:
            time.sleep(0.01)
        stats = hvd.stats()
        hvd.shutdown()
        seen.append((stats["made"], stats["reported"], len(os.listdir("/proc/self/fd")), threading.active_count()))
    return seen


def test_an_account_ends_with_its_job_and_leaves_nothing_behind(pool):
    for seen in pool(2, initialized=False).run(again_and_again, 6):
        assert [(made, reported) for made, reported, _, _ in seen] == [(12, {"i": i}) for i in range(6)]
        assert len({(files, threads) for _, _, files, threads in seen[1:]}) == 1, seen


class Engine:
    def __init__(self):
        self.steps = []

    def take_steps(self):
        taken, self.steps = self.steps, []
        return taken


class Outlet:
    written = 0

    def write(self):
        self.written += 1


def account_of(rank, hosts, cross_rank):
    job = Job(rank, len(hosts), 0, 1, cross_rank, 2, False, False, hosts=hosts, pids=tuple(range(len(hosts))))
    engine = Engine()
    return Account(job, engine, None, Settings.from_environ(), lambda: None), engine


def test_a_program_that_asks_after_each_step_does_not_keep_figures_from_the_file():
    account, engine = account_of(0, ("a",), 0)
    account._outlets = [Outlet()]
    for number in range(1, 6):
        engine.steps = [(number, number * 10**9, 10**9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        assert account.stats()["made"] == number + 1
    assert account._tell()
    assert account._outlets[0].written == 1
    assert not account._tell()


def test_ranks_of_one_host_say_that_they_are_where_hosts_have_different_numbers_of_ranks():
    hosts = ("a", "b", "b")
    numbers = [account_of(rank, hosts, cross)[0]._note()["host"] for rank, cross in enumerate((0, 1, 0))]
    assert numbers == [0, 1, 1]
