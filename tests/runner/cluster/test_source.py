from horovod.runner.cluster.jobs import ArrivalSource
from horovod.runner.remote import arrived


def test_who_was_refused_is_told_together_with_what_the_manager_tells(gathering):
    source = ArrivalSource(gathering, arrived.Arrived(), 4)
    assert source.look(0.0).slots == {}
    with gathering._lock:
        gathering._refusals.append("n1, task 3: it has horovod 0.1")
    gathering.fail(RuntimeError("the cluster is on fire"))
    assert source.look(0.0).why.splitlines() == ["n1, task 3: it has horovod 0.1", "the cluster is on fire"]
    assert source.look(0.0) is None
    source.close()
