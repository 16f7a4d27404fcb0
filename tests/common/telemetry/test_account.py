"""Step accounting in real jobs, without a framework."""

import os
import threading
from types import SimpleNamespace

import pytest

from horovod.common.basics import HorovodBasics
from horovod.common.contract.settings import Settings
from horovod.common.frontends import Job
from horovod.common.telemetry.account import Account
from horovod.common.telemetry.steps import Sums


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


def test_an_account_ends_with_its_job_without_leftovers(pool):
    for seen in pool(2, initialized=False).run(again_and_again, 6):
        assert [(submitted, reported) for submitted, reported, _, _ in seen] == [(12, {"i": i}) for i in range(6)]
        assert len({(files, threads) for _, _, files, threads in seen[1:]}) == 1, seen


class Engine:
    def __init__(self):
        self.steps, self.end, self.submitted = [], None, 0

    def ended(self):
        return self.end

    def take_steps(self):
        steps, self.steps = self.steps, []
        return steps

    def steps_made(self):
        return self.submitted


class FakeExporter:
    written = 0

    def write(self):
        self.written += 1


class Bus:
    """A message bus that delivers at once."""

    def __init__(self):
        self.accounts = []

    def joined(self, account):
        account._bus = self
        self.accounts.append(account)
        return self

    def send(self, kind, to=None, **what):
        for rank, each in enumerate(self.accounts):
            if to in (None, rank):
                each.receive(kind, 1, what)


def account_of(rank, hosts, cross_rank):
    job = Job(rank, len(hosts), 0, 1, cross_rank, 2, False, False, hosts=hosts, pids=tuple(range(len(hosts))))
    engine = Engine()
    return Account(job, engine, None, Settings.from_environ(), lambda: None), engine


def test_frequent_queries_do_not_keep_numbers_from_the_file():
    account, engine = account_of(0, ("a",), 0)
    account._exporters = [FakeExporter()]
    for number in range(1, 6):
        engine.steps = [(number, number * 10**9, 10**9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)]
        assert account.stats()["made"] == number + 1
    assert account._send_steps()
    assert account._exporters[0].written == 1
    assert not account._send_steps()


def joined(steps):
    """Return the accounts of two ranks, with so many steps, and their engines."""
    bus, accounts = Bus(), [account_of(rank, ("a", "a"), 0) for rank in (0, 1)]
    for each, engine in accounts:
        engine.steps = [(number, number * 10**9, 10**9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) for number in range(1, steps + 1)]
        bus.joined(each)
    return accounts


def test_no_rank_waits_for_a_reply_of_rank_0_after_it_left():
    """Too few steps for rank 0 to print a line, but enough for others to wait for it."""
    accounts = joined(12)
    accounts[0][0].close()
    assert accounts[1][0]._acknowledged.is_set()
    accounts[1][0].close()


@pytest.mark.parametrize(("size", "seconds"), [(1, 1.0), (32, 1.0), (64, 2.0), (96, 3.0)])
def test_many_ranks_report_less_often(size, seconds):
    assert account_of(0, ("a",) * size, 0)[0]._interval == seconds


def test_clocks_are_compared_with_other_hosts_where_the_order_of_arrival_counts():
    first, _ = account_of(0, ("a", "a", "b"), 0)
    requests = []
    first._bus = SimpleNamespace(send=lambda kind, to, **_: requests.append((kind, to)))
    seen, unseen, blocked = (5, 10**6, 0, 100), (6, 10**6, -1, 100), (7, 10**6, 3, 100)

    def note_of(rank, host, *some):
        note = {"host": host, "made": 8, "some": some, "sums": Sums().values(), "data": False, "last": False}
        first.receive("steps", rank, note)

    note_of(1, 0, unseen)
    note_of(2, 1)
    note_of(2, 1, seen, blocked)
    assert not requests
    note_of(2, 1, seen, unseen, blocked)
    assert requests == [("steps-ping", 2)]
