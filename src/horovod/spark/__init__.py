"""Horovod jobs on the executors of a Spark application.

`run` calls a function on ranks in Spark tasks. `run_elastic` also continues when executors are lost or added.
`HorovodRunner` is a replacement for sparkdl's class of the same name. All three need pyspark 3.5 or later (`pip install
'horovod[spark]'`).
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horovod.spark.horovod_runner import HorovodRunner, log_to_driver
    from horovod.spark.job import run, run_elastic

__all__ = ["HorovodRunner", "log_to_driver", "run", "run_elastic"]


def __getattr__(name: str) -> Any:
    # Import the launcher on demand, because code on executors does not need it.
    if name == "run":
        from horovod.spark.job import run

        return run
    if name == "run_elastic":
        from horovod.spark.job import run_elastic

        return run_elastic
    if name == "HorovodRunner":
        from horovod.spark.horovod_runner import HorovodRunner

        return HorovodRunner
    if name == "log_to_driver":
        from horovod.spark.horovod_runner import log_to_driver

        return log_to_driver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
