import re

import pytest

from horovod.spark.application import explain, explain_failure, slot_limit


@pytest.mark.parametrize(
    ("conf", "slots", "why"),
    [
        ({"spark.master": "local"}, 1, "the master local has 1 core"),
        ({"spark.master": "local[3]"}, 3, "has 3 cores"),
        ({"spark.master": "local[*]"}, 8, "has 8 cores"),
        ({"spark.master": "local[4,2]", "spark.task.cpus": "2"}, 2, "has 4 cores, and spark.task.cpus is 2"),
        ({"spark.master": "local-cluster[2,3,1024]"}, 6, "means 2 executors of 3 cores"),
        ({"spark.master": "local-cluster[ 2 , 3 , 1024 ]", "spark.task.cpus": "2"}, 2, "spark.task.cpus is 2"),
        ({"spark.master": "spark://a:7077", "spark.cores.max": "5"}, 5, "spark.cores.max is 5"),
        (
            {"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"},
            12,
            "spark.executor.instances=3 means 3 executors of 4 cores",
        ),
        (
            {
                "spark.master": "k8s://https://x",
                "spark.dynamicAllocation.enabled": "true",
                "spark.dynamicAllocation.maxExecutors": "2",
                "spark.executor.instances": "1",
            },
            2,
            "spark.dynamicAllocation.maxExecutors=2 means 2 executors of 1 core",
        ),
        ({}, None, ""),
        ({"spark.master": "spark://a:7077"}, None, ""),
        ({"spark.master": "yarn"}, None, ""),
        (
            {"spark.master": "yarn", "spark.dynamicAllocation.enabled": "true", "spark.executor.instances": "2"},
            None,
            "",
        ),
        ({"spark.master": "mesos://x", "spark.executor.instances": "2"}, None, ""),
    ],
)
def test_slot_limits_from_settings(conf, slots, why):
    found = slot_limit(conf, cores=8)
    assert (found and found.slots) == slots
    assert found is None or why in found.why


LOST = """org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier
ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.
ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2989)
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ModuleNotFoundError: No module named 'horovod'", "an executor has no horovod, or another version (horovod)"),
        ("No module named 'horovod.spark'", "(horovod.spark)"),
        ("No module named 'msgspec'", "(msgspec)"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10 than that in driver: 3.11, PySpark",
            "an executor runs Python 3.10, the driver another",
        ),
        (
            'java.io.IOException: Cannot run program "/no/python": error=2, No such file or directory',
            "an executor cannot run Python as /no/python",
        ),
        (
            "ArrivalError: the launcher refuses this process: it has horovod 1.0, the launcher 2.0\n  at",
            "an executor cannot take part: it has horovod 1.0, the launcher 2.0",
        ),
        (
            "ArrivalError: host a cannot reach the job's launcher (10.0.0.1:99: timed out); it may have ended",
            "HOROVOD_PORT_RANGE",
        ),
    ],
)
def test_recurring_failures(text, message):
    assert message in explain_failure(text)
    assert explain(text) == explain_failure(text)


def test_other_failures_are_shown_without_java_lines():
    assert explain_failure(LOST) == ""
    assert re.fullmatch(r"ExecutorLostFailure \(executor 1 exited.*Reason: Command exited with code 137", explain(LOST))
    text = "org.apache.spark.SparkException: Job aborted due to stage failure: spam\n\tat org.x.Y(Z.scala:1)\neggs\n"
    assert explain(text).splitlines() == ["Job aborted due to stage failure: spam", "eggs"]
