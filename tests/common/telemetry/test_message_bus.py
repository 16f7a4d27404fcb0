"""Messages between ranks, and the engine's records as passed to Python."""

import queue
import threading

import numpy as np

from tests.ranks import on_ranks

LIMIT = 60.0  # seconds


@on_ranks(3)
def test_ranks_speak_to_each_other():
    import horovod.numpy as hvd
    from horovod.common import observed

    bus = observed._telemetry.bus
    heard = queue.Queue()
    bus.on("hello", lambda rank, what: heard.put((rank, what)))
    bus.on("odd", lambda rank, what: 1 / 0)
    hvd.barrier()
    assert bus.send("odd", nothing=1)  # a handler's exception stops nothing
    assert bus.send("hello", word='a "quoted" größe\n', number=hvd.rank())
    got = []
    if hvd.rank() == 0:  # rank 0's message goes to all ranks, the other's to rank 0
        got = sorted((heard.get(timeout=LIMIT) for _ in range(hvd.size())), key=lambda one: one[1]["number"])
        assert got == [(r, {"word": 'a "quoted" größe\n', "number": r}) for r in range(hvd.size())]
        assert bus.send("hello", to=1, only="you")
    else:
        assert heard.get(timeout=LIMIT)[0] == 0
        if hvd.rank() == 1:
            assert heard.get(timeout=LIMIT) == (0, {"only": "you"})
    bus.tell_own("hello", mine=True)
    assert heard.get(timeout=LIMIT) == (hvd.rank(), {"mine": True})
    hvd.barrier()  # rank 0's next message arrives after that on all ranks

    waiting = queue.Queue()
    asked = threading.Event()
    bus.on_waiting(waiting.put)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(np.ones(3), name="for others")
        names = []
        while "allreduce.for others" not in names:
            bus.ask_who_waits()
            report = waiting.get(timeout=LIMIT)
            names = [one["name"] for one in report["waiting"] if report["asked"]]
        one = report["waiting"][names.index("allreduce.for others")]
        assert report["asked"] is True
        assert (one["ready"], one["missing"], one["set"]) == ([0], list(range(1, hvd.size())), 0)
        assert 0 <= one["age"] < LIMIT
        assert bus.send("hello", go="on")
        assert heard.get(timeout=LIMIT) == (0, {"go": "on"})
    else:
        assert heard.get(timeout=LIMIT) == (0, {"go": "on"})
        handle = hvd.allreduce_async(np.ones(3), name="for others")
    handle.result(LIMIT)
    assert not asked.is_set()
    del bus._handlers["hello"], bus._handlers["odd"]  # the worker continues with other tests
    bus._waiting.remove(waiting.put)
