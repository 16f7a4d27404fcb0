import importlib
import sys
import types

import pytest

from horovod.spark import conf


def test_names_and_values():
    assert sum(name.startswith("SPARK_CONF_") for name, value in vars(conf).items() if isinstance(value, tuple)) == 17
    assert conf.SPARK_CONF_ALWAYS_RESTART_FAILED_TASK == ("spark.task.maxFailures", "2147483647")
    assert conf.SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK[1] == conf.SPARK_CONF_MAX_INT_MINUS_ONE
    assert conf.SPARK_CONF_DEFAULT_VALUES["spark.task.maxFailures"] == "4"


@pytest.mark.parametrize(
    ("version", "group"), [("3.0.3", "blacklist"), ("3.1.0", "excludeOnFailure"), ("4.3.0.dev1", "excludeOnFailure")]
)
def test_the_keys_are_those_of_the_installed_spark(monkeypatch, version, group):
    monkeypatch.setitem(sys.modules, "pyspark", types.ModuleType("pyspark"))
    module = types.ModuleType("pyspark.version")
    module.__version__ = version
    sys.modules["pyspark"].__spec__ = importlib.machinery.ModuleSpec("pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.version", module)
    try:
        importlib.reload(conf)
        assert (f"spark.{group}.enabled", "true") == conf.SPARK_CONF_BLACKLIST_ENABLED
        assert conf.SPARK_CONF_REUSE_FAILING_NODE_IN_APP[0] == f"spark.{group}.application.maxFailedExecutorsPerNode"
    finally:
        monkeypatch.undo()
        importlib.reload(conf)
