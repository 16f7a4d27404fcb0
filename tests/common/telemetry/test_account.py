"""An account of steps in real jobs, without a framework."""

import os
import threading

from horovod.common.basics import HorovodBasics


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
