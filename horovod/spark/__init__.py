"""Jobs on the executors of a Spark application: `run` a function on ranks that Spark's tasks start, `run_elastic` the
same with executors that come and go. Needs pyspark 3.5 or later (`pip install 'horovod[spark]'`) when they are called.
"""

from horovod.spark.elastic_job import run_elastic
from horovod.spark.job import run

__all__ = ["run", "run_elastic"]
