"""Handwritten digits as a DataFrame, and what of them a model gets right."""


def frame(session):
    """1,797 rows: ``features``, a vector of 64 numbers from 0 to 1, and ``label``."""
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    found = load_digits()
    rows = [(Vectors.dense(x / 16), int(y)) for x, y in zip(found.data, found.target, strict=True)]
    return session.createDataFrame(rows, ["features", "label"])


def accuracy(rows, output="label__output"):
    """``rows``: with ``label`` and the ten numbers of a model."""
    right = [max(range(10), key=lambda digit, row=row: row[output][digit]) == row.label for row in rows]
    return sum(right) / len(right)
