import io
import threading

import pytest

import horovod.spark
from tests.runner.cluster.test_elastic import seen, train
from tests.spark.executors import kill_executor_of, wait_for


def pids(folder):
    return [int(file.name.split(".")[1]) for file in folder.glob("step.*")]


def test_a_killed_executor_is_replaced(spark, tmp_path):
    """Four ranks on two executors: one executor is killed, two ranks continue, and two new ones join."""
    noticed = []

    def kill():
        seen(tmp_path, 4, 60)
        victim = pids(tmp_path)[0]
        killed = kill_executor_of(victim)
        noticed.append(seen(tmp_path, 2)[-1] - killed)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    err = io.StringIO()
    results = horovod.spark.run_elastic(
        train, (str(tmp_path), 3), num_proc=4, min_num_proc=2, stdout=io.StringIO(), stderr=err
    )
    killer.join(60)
    assert [rank for _, rank, _ in results] == [0, 1]
    assert results[0][0][0] == 4
    assert results[0][0][-1] in (3, 4)
    assert noticed[0] < 10
    assert "is lost: the connection to its agent broke" in err.getvalue()
    assert "going on with 2 ranks" in err.getvalue() or "going on with 3 ranks" in err.getvalue()
    wait_for(lambda: not spark.statusTracker().getActiveJobsIds(), 15)


def fails():
    raise ValueError("spam")


def test_invalid_arguments(spark):
    with pytest.raises(ValueError, match="got min_num_proc=3, num_proc=2, max_num_proc=2"):
        horovod.spark.run_elastic(fails, num_proc=2, min_num_proc=3)
    for value in (-1, "3", 1.5, True):
        with pytest.raises(ValueError, match=rf"reset_limit must be an integer of at least 0, got {value!r}"):
            horovod.spark.run_elastic(fails, num_proc=2, reset_limit=value)
    with pytest.raises(TypeError, match="env must be a mapping of strings to strings, got 5"):
        horovod.spark.run_elastic(fails, num_proc=2, env=5)
    with pytest.raises(ValueError, match=r"elastic_timeout must be .* got 0"):
        horovod.spark.run_elastic(fails, num_proc=2, elastic_timeout=0)
    with (
        pytest.warns(DeprecationWarning, match="min_np is deprecated: use min_num_proc"),
        pytest.raises(ValueError, match="got min_num_proc=5"),
    ):
        horovod.spark.run_elastic(fails, num_proc=2, min_np=5)
