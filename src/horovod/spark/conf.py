"""Spark settings for elastic jobs that let Spark reuse executors and nodes on which tasks have failed.

Each setting is a (key, value) pair. The names are the same as in the original Horovod. The keys depend on the version
of Spark. Since Spark 3.1, they contain "excludeOnFailure" instead of "blacklist".

    SparkSession.builder.config(*conf.SPARK_CONF_REUSE_FAILED_EXECUTOR)
"""

import importlib.util


def _group() -> str:
    """Return the common prefix of the setting keys, which depends on the version of Spark."""
    if importlib.util.find_spec("pyspark") is None:
        return "excludeOnFailure"
    from pyspark.version import __version__

    major, minor = (int(part) for part in __version__.split(".")[:2])
    return "excludeOnFailure" if (major, minor) >= (3, 1) else "blacklist"


_KEY = f"spark.{_group()}"
_MAX_FAILURES = "spark.task.maxFailures"
_TASK_EXECUTOR = f"{_KEY}.task.maxTaskAttemptsPerExecutor"
_TASK_NODE = f"{_KEY}.task.maxTaskAttemptsPerNode"
_STAGE_EXECUTOR = f"{_KEY}.stage.maxFailedTasksPerExecutor"
_STAGE_NODE = f"{_KEY}.stage.maxFailedExecutorsPerNode"
_APPLICATION_EXECUTOR = f"{_KEY}.application.maxFailedTasksPerExecutor"
_APPLICATION_NODE = f"{_KEY}.application.maxFailedExecutorsPerNode"

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK = (_MAX_FAILURES, SPARK_CONF_MAX_INT)

SPARK_CONF_BLACKLIST_DISABLED = (f"{_KEY}.enabled", "false")
SPARK_CONF_BLACKLIST_ENABLED = (f"{_KEY}.enabled", "true")

SPARK_CONF_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR = (_STAGE_EXECUTOR, "1")

SPARK_CONF_REUSE_FAILING_NODE = (_STAGE_NODE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE = (_STAGE_NODE, "1")

SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK = (_TASK_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK = (_TASK_EXECUTOR, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK = (_TASK_EXECUTOR, "1")

# Spark requires these per-node settings to be lower than spark.task.maxFailures.
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK = (_TASK_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK = (_TASK_NODE, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK = (_TASK_NODE, "1")

SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP = (_APPLICATION_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP = (_APPLICATION_EXECUTOR, "1")

SPARK_CONF_REUSE_FAILING_NODE_IN_APP = (_APPLICATION_NODE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP = (_APPLICATION_NODE, "1")

SPARK_CONF_DEFAULT_VALUES = {
    _MAX_FAILURES: "4",
    f"{_KEY}.enabled": "false",
    _TASK_EXECUTOR: "1",
    _TASK_NODE: "2",
    _STAGE_EXECUTOR: "2",
    _STAGE_NODE: "2",
    _APPLICATION_EXECUTOR: "2",
    _APPLICATION_NODE: "2",
}
"""Spark's default values."""
