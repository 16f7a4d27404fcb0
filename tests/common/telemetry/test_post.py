"""Notes between ranks, and what the engine remembers, as Python hears of them."""

import json
import queue
import tempfile
import threading
from pathlib import Path

LIMIT = 60.0  # s


def conversation():
    import torch

    import horovod.torch as hvd
    from horovod.common import observed

    post = observed._telemetry.post
    heard = queue.Queue()
    post.on("hello", lambda rank, what: heard.put((rank, what)))
    post.on("odd", lambda rank, what: 1 / 0)
    hvd.barrier()
    assert post.say("odd", nothing=1)  # what a handler does wrong ends nothing
    assert post.say("hello", word='a "quoted" größe\n', number=hvd.rank())
    got = []
    if hvd.rank() == 0:  # his own goes to all, the other's to him
        got = sorted((heard.get(timeout=LIMIT) for _ in range(hvd.size())), key=lambda one: one[1]["number"])
        assert got == [(r, {"word": 'a "quoted" größe\n', "number": r}) for r in range(hvd.size())]
        assert post.say("hello", to=1, only="you")
    else:
        assert heard.get(timeout=LIMIT)[0] == 0
        if hvd.rank() == 1:
            assert heard.get(timeout=LIMIT) == (0, {"only": "you"})
    post.tell_own("hello", mine=True)
    assert heard.get(timeout=LIMIT) == (hvd.rank(), {"mine": True})
    hvd.barrier()  # what rank 0 says next comes after that on all

    waiting = queue.Queue()
    asked = threading.Event()
    post.on_waiting(waiting.put)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), name="for others")
        names = []
        while "allreduce.for others" not in names:
            post.ask_who_waits()
            report = waiting.get(timeout=LIMIT)
            names = [one["name"] for one in report["waiting"] if report["asked"]]
        one = report["waiting"][names.index("allreduce.for others")]
        assert report["asked"] is True
        assert (one["ready"], one["missing"], one["set"]) == ([0], list(range(1, hvd.size())), 0)
        assert 0 <= one["age"] < LIMIT
        assert post.say("hello", go="on")
        assert heard.get(timeout=LIMIT) == (0, {"go": "on"})
    else:
        assert heard.get(timeout=LIMIT) == (0, {"go": "on"})
        handle = hvd.allreduce_async(torch.ones(3), name="for others")
    hvd.synchronize(handle)
    assert not asked.is_set()
    del post._handlers["hello"], post._handlers["odd"]  # the worker goes on to other tests
    post._waiting.remove(waiting.put)


def test_ranks_speak_to_each_other(pool):
    pool(3).run(conversation)


def memory():
    import time

    import torch

    import horovod.torch as hvd
    from horovod.common.state import state

    for _ in range(2):
        hvd.allreduce(torch.ones(1), name="earlier")
    before = time.monotonic_ns()
    hvd.allreduce(torch.ones(4, 5), name="remembered", op=hvd.Max)
    after = time.monotonic_ns()
    with tempfile.TemporaryDirectory() as folder:
        _, *kept = [json.loads(line) for line in Path(state.engine.dump(folder)).read_text().splitlines()]
    entries = {(e["what"], e["name"]): e for e in kept}
    one = entries["carried out", "allreduce.remembered"]
    assert before - 10**6 <= one["begin"] < one["end"] <= after + 10**6
    assert (one["kind"], one["dtype"], one["op"], one["shape"], one["bytes"], one["count"], one["set"]) == (
        "allreduce",
        "float32",
        "Max",
        [4, 5],
        80,
        1,
        0,
    )
    assert ("announced", "allreduce.remembered") in entries
    numbers = [e["number"] for e in kept]
    assert len(numbers) >= 2
    assert numbers == sorted(set(numbers))
    stats = state.engine.stats()
    assert stats["bytes"] >= 80
    assert stats["operations"] >= 3


def test_the_engine_remembers_its_last_operations(pool):
    pool(2).run(memory)
