"""An elastic job's attempt, without processes."""

import os
import threading
import time

from horovod.common.store.client import StoreClient
from horovod.runner.elastic.finder import Finder
from horovod.runner.job.elastic_attempt import ElasticAttempt
from horovod.runner.job.membership_server import Roster
from horovod.runner.job.policy import Policy
from horovod.runner.job.watch import Watch, wait_for
from horovod.runner.output.display import Screen
from horovod.runner.plan.settings import ElasticSettings, LaunchSettings
from horovod.runner.remote import ssh
from horovod.runner.remote.fleet import Fleet


def create():
    elastic = ElasticSettings(1, 1)
    settings = LaunchSettings(["true"], [], elastic=elastic)
    roster = Roster()
    watch = Watch(Screen(settings, None, hosts=roster.hosts, rank_of=roster.rank_of), Policy(0.0, None), None, 1)
    fleet = Fleet([], ssh.Remote(), fanout=32, silence=10)
    return ElasticAttempt(settings, elastic, {}, watch, fleet, Finder(None, None, {}), roster)


def test_messages_while_stopping_cause_no_wakeups():
    before = len(os.listdir("/proc/self/fd"))
    attempt = create()
    key, (host, port) = attempt._hosts._orders._key, attempt._store.address

    def report():
        with StoreClient(key, host, port) as client:
            client.report_end(7, 1)

    def events(seconds):
        thread = threading.Thread(target=report)
        thread.start()
        thread.join(60)  # by then the store has received it
        return attempt._control.fd in wait_for(attempt.events(True), time.monotonic() + seconds)

    assert events(60.0)
    attempt.stop(1.0)
    assert not events(1.0), "no caller would take the event, so the loop would spin"
    attempt.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_deadlines_between_two_clock_reads_are_not_missed():
    attempt = create()
    ticks, at = [], time.monotonic() + 0.1

    class Members:  # for example, a host whose cooldown ends at that time
        phase, epoch = None, 0

        def next_time(self, now):
            return at if now < at else None

        def discovered(self, slots, now, *_):
            return []

        def tick(self, now):
            ticks.append(now)
            return []

    attempt._membership = Members()
    attempt.next_time()
    attempt.tick(time.monotonic(), True)
    assert ticks == []
    time.sleep(0.2)
    assert attempt.next_time() is not None
    attempt.tick(time.monotonic(), True)
    assert len(ticks) == 1
    attempt.next_time()
    attempt.tick(time.monotonic(), True)
    assert len(ticks) == 1
    attempt.close()
