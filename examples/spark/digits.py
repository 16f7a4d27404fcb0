"""Helpers for the Spark examples: session, store, data set and accuracy."""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Iterator

from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, Row, SparkSession
from sklearn.datasets import load_digits


def arguments(about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--num-proc", type=int, default=2, help="ranks (2)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the rows (12)")
    parser.add_argument("--store", help="folder or URL for data, checkpoints and logs (a temporary folder)")
    parser.add_argument(
        "--local",
        action="store_true",
        help="ranks are processes of this host, started by horovod.run, not Spark's tasks",
    )
    return parser.parse_args()


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Yield a Spark session. It runs on this machine unless spark-submit has started the program."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("digits").config("spark.ui.showConsoleProgress", "false")
    # Run on this machine if spark-submit has not started the program.
    if "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def store_in(path: str | None) -> Iterator[str]:
    """Yield the store's folder: the given one, or a temporary folder that is removed at the end."""
    if path:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        yield folder


def load(spark: SparkSession) -> tuple[DataFrame, DataFrame]:
    """Return training rows and 359 test rows, with `features` (vectors of 64 numbers, 0 to 1) and `label`."""
    digits = load_digits()
    rows = [(Vectors.dense(x / 16), int(y), n) for n, (x, y) in enumerate(zip(digits.data, digits.target, strict=True))]
    frame = spark.createDataFrame(rows, ["features", "label", "number"])
    test = frame.number % 5 == 4
    return frame.filter(~test).drop("number"), frame.filter(test).drop("number")


def accuracy(predicted: DataFrame, column: str) -> float:
    """Return the accuracy of predictions, where `column` has ten scores per row."""

    def right(row: Row) -> bool:
        return max(range(10), key=lambda digit: row[column][digit]) == row.label

    rows = predicted.select("label", column).collect()
    return sum(map(right, rows)) / len(rows)
