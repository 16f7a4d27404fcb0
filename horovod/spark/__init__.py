"""Jobs on the executors of a Spark application: `run` a function on ranks that Spark's tasks start, `run_elastic` the
same with executors that come and go; `HorovodRunner` for notebooks that have used that of sparkdl. Needs pyspark 3.5
or later (`pip install 'horovod[spark]'`) when they are called.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.spark.driver_log import log_to_driver
    from horovod.spark.elastic_job import run_elastic
    from horovod.spark.horovod_runner import HorovodRunner
    from horovod.spark.job import run

__all__ = ["HorovodRunner", "log_to_driver", "run", "run_elastic"]


def __getattr__(name: str) -> Any:
    # Loaded on demand: what runs on executors needs no launcher.
    if name == "run":
        from horovod.spark.job import run

        return run
    if name == "run_elastic":
        from horovod.spark.elastic_job import run_elastic

        return run_elastic
    if name == "HorovodRunner":
        from horovod.spark.horovod_runner import HorovodRunner

        return HorovodRunner
    if name == "log_to_driver":
        from horovod.spark.driver_log import log_to_driver

        return log_to_driver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
