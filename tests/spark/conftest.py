"""One Spark application for the tests: two executors with two cores each, on this machine.

The first tier runs tasks within the driver, which takes less CPU time than executors.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.later import need_spark

MASTER = "local-cluster[2,2,1024]"


@pytest.fixture(scope="session")
def spark(request):
    """The SparkContext. Skips the test if pyspark or Java is missing."""
    need_spark()
    import pyspark
    from pyspark import SparkConf, SparkContext

    with tempfile.TemporaryDirectory(prefix="horovod-spark-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", folder)
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        master = "local[4]" if request.config.getoption("--tier") == "first" else MASTER
        conf = SparkConf().setMaster(master).setAppName("tests")
        for key, value in {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={folder}",
            "spark.executorEnv.MARK": "of the executor",
            "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[2]),  # models have classes of tests
        }.items():
            conf.set(key, value)
        context = SparkContext(conf=conf)
        context.setLogLevel("OFF")
        name = context.applicationId
        yield context
        gateway = SparkContext._gateway
        context.stop()
        # Spark keeps its JVM until this process ends.
        with contextlib.suppress(Exception):
            gateway.shutdown()
        gateway.proc.stdin.close()
        with contextlib.suppress(Exception):
            gateway.proc.wait(20)
        SparkContext._gateway = SparkContext._jvm = None
        work = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "work"
        shutil.rmtree(work / name, ignore_errors=True)


@pytest.fixture(scope="session")
def session(spark):
    """The SparkSession of that application."""
    from pyspark.sql import SparkSession

    session = SparkSession(spark)
    session.conf.set("spark.sql.shuffle.partitions", "2")
    return session
