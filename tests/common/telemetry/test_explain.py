"""Explanations of hangs: the sentence for each kind of reason, and the report around it."""

import pytest

from horovod.common.telemetry import explain
from horovod.common.telemetry.facts import Facts, Rank, WaitingOperation, described

SECOND = 10**9
CLONE = 435


def state(letter="S", at=100.0, tracer=0, swapped=0, faults=0, cpu=0, call=-1, file="", wait=""):
    thread = {"id": 1, "name": "python", "state": letter, "cpu": cpu, "wait": wait, "call": call, "file": file}
    return {
        "pid": 1, "at": int(at * SECOND), "tracer": tracer, "resident_kib": 1000, "swapped_kib": swapped,
        "faults": faults, "blocked": 0, "threads": [thread],
    }  # fmt: skip


def entry(name, state="carried out", kind="allreduce", end=90.0, **more):
    return {
        "number": 0, "what": state, "begin": int(end * SECOND), "end": int(end * SECOND), "name": name, "kind": kind,
        "dtype": "float32", "op": "sum", "set": 0, "face": 0, "shape": [4], "dimensions": 1, "count": 1, "bytes": 16,
        "schedule": "0", "position": 0, "guarded": False, **more,
    }  # fmt: skip


def text_at(path, line, function="<module>"):
    return f'Thread 0x0000000000000001 (most recent call first):\n  File "{path}", line {line} in {function}\n'


def rank(number, *recent, line=0, path="/home/me/train.py", text="", source="", now=None, before=None, **stack):
    rank = Rank(number, "worker", 1000 + number)
    stacks = text or (text_at(path, line) if line else "")
    python = {"main": 1, "source": {f"{path}:{line}": source} if source else {}, "loaders": stack.get("loaders", {})}
    rank.record_reply(
        {
            "forced": stack.get("forced", False),
            "stacks": stacks,
            "python": None if stack.get("forced") else python,
            "before": before or state(at=99.8),
            "state": now or state(),
            "recent": list(recent),
        }
    )
    return rank


def facts(*ranks, waiting, stalled=None, **more):
    return Facts(stalled or waiting[:1], waiting, {one.rank: one for one in ranks}, more.pop("size", 4), **more)


def wait(name, ready, missing, age=12.0):
    return WaitingOperation(name, 0, age, tuple(ready), tuple(missing))


def guess(known):
    return explain.guess(known).text


def summary(known, place):
    return explain.summary(known, guess(known), place)


X = [wait("x", [0, 1, 2], [3])]


def test_line_of_user_code():
    sentence = guess(facts(rank(3, line=88, source="batch = load()"), waiting=X))
    assert sentence == "rank 3 is at train.py:88 (`batch = load()`)"
    same = [rank(2, line=88), rank(3, line=88)]
    assert guess(facts(*same, waiting=[wait("x", [0, 1], [2, 3])])) == ("ranks 2 and 3 are at train.py:88")
    sentence = guess(facts(rank(3, line=88, forced=True), waiting=X))
    assert sentence == "rank 3 is at train.py:88, in code that holds Python's interpreter lock"


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        (
            state("T"),
            "rank 3 does not go on: its process is stopped (SIGSTOP or Ctrl-Z); `kill -CONT 1003` on its host",
        ),
        (state("t", tracer=77), "rank 3 does not go on: a debugger has it (pid 77)"),
        (state("D", call=0, file="/data/x"), "rank 3 does not go on: it is blocked in I/O (read of /data/x)"),
        (
            state("D", call=CLONE, wait="kernel_clone"),
            "rank 3 does not go on: it waits for a process that it starts to begin its program (vfork)",
        ),
        (state("Z"), "rank 3 does not go on: its process has ended"),
        (None, "rank 3 does not go on: there is no such process any more"),
        (
            state("R", swapped=300 << 10),
            "rank 3 does not go on: it swaps: 300 MiB are swapped out, and 384000 pages more each s",
        ),
        (state("D", swapped=300 << 10, faults=100), "rank 3 does not go on: it swaps: 300 MiB are swapped out, 500 pa"),
    ],
)
def test_blocked_process(now, sentence):
    one = Rank(3, "worker", 1003)
    one.seen(state(at=99.8), now)
    assert guess(facts(one, waiting=X)).startswith(sentence)


@pytest.mark.parametrize(
    ("before", "now", "sentence"),
    [
        (state("R", at=99.8), state("R", cpu=19), "it computes"),
        (state("R", at=99.8), state("R", cpu=4), "it computes, with 20% of a core"),
        (state("S", at=99.8), state("R", cpu=1), "it sleeps"),  # it has answered just now
        (state("S", at=99.8), state("S", wait="futex"), "it sleeps (futex)"),
    ],
)
def test_a_process_that_computes_like_others(before, now, sentence):
    one = Rank(3, "worker", 1003)
    one.seen(before, now)
    assert one.condition[1] == sentence


AB = [wait("a", [0], [1]), wait("b", [1], [0], 11.0)]


def crossed(first, second, waiting, kind="allreduce"):
    """Return the guess about two ranks that finished both operations and now wait for each other in one of them."""
    done = [entry(first), entry(second)]
    one = rank(0, *done, entry(first, "announced", end=95), line=5)
    other = rank(1, *done, entry(second, "announced", kind, end=95), line=6)
    return guess(facts(one, other, waiting=waiting, size=2))


def test_different_order():
    assert crossed("a", "b", AB) == (
        "ranks 0 and 1 submit 'a' and 'b' in different order: rank 0 is at allreduce 'a' (train.py:5), rank 1 at "
        "allreduce 'b' (train.py:6)"
    )
    barrier = crossed("a", "b", AB, "barrier")
    assert barrier.startswith("ranks 0 and 1 submit 'a' and 'b' in different order, one of them a barrier: rank 0 is")


def test_a_rank_that_has_moved_on():
    done = [entry("gradient"), entry("gradient")]
    waiting = [wait("gradient", [0, 1], [2]), wait("loss", [2], [0, 1], 11.0)]
    going = [rank(number, *done, entry("gradient", "announced"), line=5) for number in (0, 1)]
    ahead = rank(2, *done, entry("loss", "announced"), line=9)
    assert guess(facts(*going, ahead, waiting=waiting, size=3)) == (
        "rank 2 calls allreduce 'loss' (train.py:9), while ranks 0 and 1 call allreduce 'gradient' (train.py:5) as all "
        "did before: has rank 2 fewer batches, or is one of the calls under a condition that holds on some ranks only?"
    )


def test_different_branches():
    first = rank(0, entry("a", "announced"), line=5), rank(1, entry("b", "announced"), line=6)
    assert guess(facts(*first, waiting=AB, size=2)) == (
        "ranks 0 and 1 wait for each other: allreduce 'a' is called by rank 0 (train.py:5), allreduce 'b' by rank 1 "
        "(train.py:6); they have taken different branches, or submit the same operations in different order"
    )
    waiting = [wait("b", [1, 2, 3], [0]), wait("a", [0], [1, 2, 3])]
    rest = [rank(number, entry("b", "announced"), line=9) for number in (1, 2, 3)]
    assert guess(facts(rank(0, entry("a", "announced"), line=5), *rest, waiting=waiting)) == (
        "rank 0 alone calls allreduce 'a' (train.py:5), ranks 1-3 call allreduce 'b' (train.py:9): is one of them "
        "under a condition that holds on some ranks only?"
    )


def test_an_epoch_that_ends_earlier():
    ended = {"live": [], "lengths": [12, 100]}
    going = {"live": [[13, 16]], "lengths": [16, 100]}
    waiting = [wait("grad", [0, 1, 3], [2]), wait("loss", [2], [0, 1, 3])]
    all_four = [rank(number, loaders=ended if number == 2 else going) for number in range(4)]
    assert guess(facts(*all_four, waiting=waiting)).startswith(
        "rank 2 finished its epoch 4 batches earlier: its data loader has 12 batches, that of rank 0 16; give all"
    )
    in_the_middle = {"live": [[5, 12]], "lengths": [12]}
    all_four[2] = rank(2, loaders=in_the_middle, line=8)
    assert "earlier" not in guess(facts(*all_four, waiting=X[:0] + [wait("grad", [0, 1, 3], [2])]))


def test_the_report_and_the_summary():
    lines = [f'  File "/usr/lib/python3.11/queue.py", line {n} in get\n' for n in (1, 2)]
    text = "Thread 0x0000000000000001 (most recent call first):\n" + "".join(lines)
    text += '  File "/home/me/train.py", line 88 in main\n'
    ranks = rank(3, entry("x", end=88.0), text=text), rank(0, entry("x", "announced", end=88.5))
    known = facts(*ranks, waiting=X)
    short = summary(known, "/tmp/r/hang.txt").splitlines()
    assert short == [
        "why the job waits: rank 3 is in queue.get at train.py:88 in main",
        "  allreduce 'x' waits 12 s for rank 3",
        "  rank 3 (host worker, pid 1003): it sleeps; in queue.get at train.py:88 in main",
        "  stacks of all threads and the last operations: /tmp/r/hang.txt",
    ]
    whole = explain.report(known, guess(known), "2026-01-02 03:04:05")
    assert whole.startswith("2026-01-02 03:04:05: rank 3 is in queue.get at train.py:88 in main.\n")
    assert "allreduce 'x': for 12.0 s; submitted by ranks 0-2, missing on rank 3" in whole
    assert whole.index("== rank 3 (host worker, pid 1003), which is waited for") < whole.index("== rank 0")
    assert "last finished: allreduce 'x' (float32[4]), 12.0 s ago" in whole
    assert "  -> /home/me/train.py:88" in whole
    assert "submitted and waiting: allreduce 'x'" in whole
    assert "The other 2 ranks were not asked." in whole


@pytest.mark.parametrize(
    ("ranks", "text"), [([3], "rank 3"), ([0, 1], "ranks 0 and 1"), ([1, 2, 3, 5, 7, 8], "ranks 1-3, 5, 7, 8")]
)
def test_ranks(ranks, text):
    assert explain.ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("kind", "name", "sentence"),
    [
        ("allreduce", "allreduce.loss", "allreduce 'loss'"),
        ("allreduce", "allreduce.noname.17", "an unnamed allreduce"),
        ("", "allgather.noname.3", "an unnamed allgather"),
        ("allreduce", "allreduce.noname.1.4", "gradient 4 of parameter group 1 (no name)"),
        ("allreduce", "gradients.bucket.fc.weight", "the gradient bucket from 'fc.weight' on"),
        ("allreduce", "gradients.ready.fc.weight", "the readiness flags of gradients from 'fc.weight' on"),
        ("allreduce", "gradients.order.fc.weight", "the agreed order of gradients from 'fc.weight' on"),
        ("barrier", "barrier.noname", "barrier"),
        ("join", "join.noname", "join"),
        ("allreduce", "allreduce.my.noname.7", "allreduce 'my.noname.7'"),
        ("", "my.noname.7", "'my.noname.7'"),
    ],
)
def test_descriptions_of_operations(kind, name, sentence):
    assert described(kind, name) == sentence


def test_waits_are_recognized_again():
    before = facts(waiting=[wait("x", [0], [1], 5.0), wait("y", [0], [1], 4.0)], stalled=None, at=100.0)
    assert explain.same_wait(before, facts(waiting=[wait("x", [0], [1], 10.5)], at=105.0))
    assert not explain.same_wait(before, facts(waiting=[wait("x", [0], [1], 5.0)], at=105.0)), "it is the next one"
    assert not explain.same_wait(before, facts(waiting=[wait("z", [0], [1], 10.0)], at=105.0))
    assert not explain.same_wait(before, facts(waiting=[], stalled=[], at=105.0))


def test_the_report_shows_queried_ranks_and_source():
    text = explain.report(facts(rank(3, line=88, source="load()"), waiting=X), "why", "now")
    assert text.startswith("now: why.\n\nOperations that wait for long:\n  'x': for 12.0 s;")
    assert "/home/me/train.py:88 in <module>    load()\n" in text
    assert text.endswith("The other 3 ranks were not asked.\n")
    text = explain.report(facts(rank(0, line=8), waiting=X, on_request=True, size=1), "why", "now")
    assert "Operations that wait:\n" in text
    assert "/home/me/train.py:8 in <module>\n" in text
    assert "were not asked" not in text
    shorter = [wait("y", [0], [1], 1.0)]
    text = explain.report(facts(waiting=[*X, *shorter], stalled=X), "why", "now")
    assert "Operations that wait for a shorter time:\n  'y': submitted by rank 0\n" in text
    assert "Nothing waits.\n" in explain.report(Facts([], [], {}, 2), "why", "now")


def test_join_waits_for_a_rank_that_does_not_wait():
    waiting = [wait("join", [0], [1, 2], 12.0), wait("h", [1], [2], 11.0)]
    known = facts(rank(0, line=5), rank(1, line=9), rank(2, line=8), waiting=waiting, stalled=waiting, size=3)
    text = summary(known, "")
    assert (guess(known), text.index("rank 2 (host") < text.index("rank 1 (host")) == ("rank 2 is at train.py:8", True)


def test_unreachable_rank():
    assert guess(facts(Rank(3, "far", 5), rank(0), waiting=X)).startswith("rank 3 on far cannot be reached")
