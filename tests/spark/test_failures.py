import pytest

from horovod.spark.failures import explain, known

LOST = """org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier
ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.
ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: Command exited with code 137
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:2989)
"""


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_what_would_come_again(text, words):
    assert words in known(text)
    assert explain(text) == known(text)


def test_a_users_own_module_is_not_ours():
    assert known("ModuleNotFoundError: No module named 'horovodish'") == ""
    assert known("ModuleNotFoundError: No module named 'numpy'") == ""


def test_a_lost_executor_is_what_tells_most():
    assert known(LOST) == ""
    told = explain(LOST)
    assert told.startswith("ExecutorLostFailure (executor 1 exited")
    assert told.endswith("Reason: Command exited with code 137")


def test_of_other_failures_their_lines_without_those_of_java():
    text = "org.apache.spark.SparkException: Job aborted due to stage failure: spam\n\tat org.x.Y(Z.scala:1)\neggs\n"
    assert explain(text).splitlines() == ["Job aborted due to stage failure: spam", "eggs"]
