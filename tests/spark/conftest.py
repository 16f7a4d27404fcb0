"""One Spark application for the tests."""

import importlib.util
import shutil
import sys

import pytest


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The SparkContext. Skips the test where pyspark or Java is not there."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    from pyspark import SparkConf, SparkContext

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        conf = SparkConf().setMaster("local[2]").setAppName("tests")
        conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
        context = SparkContext(conf=conf)
        context.setLogLevel("OFF")
        yield context
        context.stop()


@pytest.fixture(scope="session")
def session(spark):
    """The SparkSession of that application."""
    from pyspark.sql import SparkSession

    made = SparkSession(spark)
    made.conf.set("spark.sql.shuffle.partitions", "2")
    return made
