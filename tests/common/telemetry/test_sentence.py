"""The summary line at the end of a job."""

import pytest

from horovod.common.telemetry.sentence import sentence
from horovod.common.telemetry.steps import Sums, figures, mean

MS = 1_000_000


def job(*ranks, last=None):
    """Return a rank's sums over steps of one kind, in ms; ``made``: number of steps."""
    reports = []
    for rank, values in enumerate(ranks):
        size = values.pop("made", 1200)
        times = {name: values.pop(name, 0) * MS * size for name in ("time", "data", "blocked", "collectives", "paused")}
        counts = {name: value * size for name, value in values.items() if name != "pauses"}
        sums = Sums(steps=size, pauses=values.get("pauses", 0), **{**times, **counts})
        reports.append({"rank": rank, "made": size, **figures(sums)})
    return {"size": len(ranks), **mean(reports), "ranks": reports, "last": last}


def test_advice_from_the_noise_scale():
    two = job({"time": 50}, {"time": 50})
    assert sentence({**two, "noise_scale": {"workers": 16.3, "batch": 64}}).endswith(
        "; batch 64 per worker: more workers help up to about 16"
    )
    assert sentence({**two, "noise_scale": {"workers": 1234.0, "batch": None}}).endswith(
        "; with this batch per worker: more workers help up to about 1,200"
    )
    assert sentence({**two, "noise_scale": {"workers": 0.3, "batch": 64}}).endswith(
        "; batch 64 per worker: more workers than about 1 help little"
    )


def test_the_sentence_of_a_job_with_a_slow_rank():
    ranks = [
        {"time": 52, "blocked": 8},
        {"time": 52, "blocked": 8},
        {"time": 52, "blocked": 0},
        {"time": 52, "blocked": 8},
    ]
    assert sentence(job(*ranks, last={"rank": 2, "share": 0.71, "seconds": 0.008})) == (
        "4 workers, 1,200 steps, 88% of linear; rank 2 was last in 71% of steps, by 8.0 ms; "
        "6.0 ms of each 52 ms step were exposed communication"
    )


@pytest.mark.parametrize(
    "last", [None, {"rank": 1, "share": 0.4, "seconds": 0.02}, {"rank": 1, "share": 0.9, "seconds": 1e-4}]
)
def test_ranks_that_are_late_rarely_or_slightly_are_not_named(last):
    assert sentence(job({"time": 52, "blocked": 1}, {"time": 52, "blocked": 1}, last=last)) == (
        "2 workers, 1,200 steps, 98% of linear; 1.0 ms of each 52 ms step were exposed communication"
    )


def test_a_slow_loader_is_named():
    slow = job(
        {"time": 50, "blocked": 20, "data": 1},
        {"time": 50, "data": 21},
        last={"rank": 1, "share": 1.0, "seconds": 0.02},
    )
    assert "rank 1 was last in 100% of steps, by 20 ms (it waited 20 ms longer for its data)" in sentence(slow)
    assert sentence(slow).endswith("; rank 1 waited 21 ms of each step for data")
    both = sentence(job({"time": 50, "data": 30}, {"time": 50, "data": 25}))
    assert both.endswith("; every rank waited 30 ms of each step for data")


def test_tiny_operations_uneven_data_and_pauses_are_named():
    tiny = {"time": 10, "blocked": 5, "operations": 200, "bytes": 200 * 4096}
    assert sentence(job(dict(tiny), dict(tiny))).endswith("; each step has 200 operations of only 4 KiB")
    uneven = sentence(job({"time": 10, "made": 100}, {"time": 10, "made": 60}))
    assert uneven.startswith("2 workers, 100 steps, 100% of linear; ")
    assert uneven.endswith("; rank 1 made only 60 steps")
    paused = job({"time": 10, "made": 100}, {"time": 10, "made": 100})
    for rank in paused["ranks"]:
        rank.update(pauses=2, paused_seconds=12.0)
    assert sentence(paused).endswith("; beside them 12.0 s in 2 pauses between steps")


def test_transfer_speed_is_reported_when_ranks_wait_for_data():
    sends = {"time": 50, "blocked": 30, "collectives": 1, "moved": 400_000}
    receives = dict(sends, collectives=29)
    message = sentence(job(dict(sends), dict(receives)))
    assert message.endswith("30 ms of each 50 ms step were exposed communication (0.4 MB at 14 MB/s)")
    known = job(dict(sends), dict(receives))
    for rank in known["ranks"]:
        rank["link_share"] = 0.117
    assert sentence(known).endswith("(0.4 MB at 14 MB/s, 12% of what the link was measured to carry)")
    # Other ranks are late, so the link is not the cause.
    assert sentence(job(dict(sends), dict(sends))).endswith("were exposed communication")
