"""Program that runs a data service in the tasks of a Spark application.

    python -m horovod.spark.tensorflow.compute_worker compute.json

The arguments are those of ``horovod.tensorflow.data.compute_worker``. The Spark application is configured as usual, for
example with PYSPARK_SUBMIT_ARGS; spark.default.parallelism is the number of data workers.
"""

import argparse
import os
import sys

from horovod.runner.function.outcome import WorkerError
from horovod.spark.application import Application
from horovod.spark.job import run
from horovod.tensorflow.data import compute_worker


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Run a data service in the active Spark application until the training ends.

    Args:
        dispatchers: Number of dispatchers, a divisor of spark.default.parallelism.
        dispatcher_side: "compute" or "training".
        configfile: Configuration file that the training processes read to find the service. An executor writes it, so
            it must be on a file system that all hosts share.
        timeout: Maximum seconds that parts of the service wait for each other once all data workers are ready.

    Raises:
        ValueError: If spark.default.parallelism is not a multiple of ``dispatchers``.
        WorkerError: If a data worker cannot continue, or a task is lost.
    """
    size = Application().context.defaultParallelism
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(f"dispatchers must be a divisor of spark.default.parallelism, {size}, got {dispatchers}")
    run(compute_worker.main, (dispatchers, dispatcher_side, os.path.abspath(configfile), timeout), num_proc=size)


if __name__ == "__main__":
    from pyspark import SparkContext

    parser = argparse.ArgumentParser(
        prog="python -m horovod.spark.tensorflow.compute_worker",
        description=__doc__,
        parents=[compute_worker.parser],
        add_help=False,
    )
    parsed_args = parser.parse_args()
    with SparkContext.getOrCreate():
        try:
            main(parsed_args.dispatchers, parsed_args.dispatcher_side, parsed_args.configfile, parsed_args.timeout)
        except WorkerError as error:
            sys.exit(f"horovod: {error}")
