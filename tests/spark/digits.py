"""Handwritten digits as a DataFrame, and the accuracy of a model on them."""


def frame(session):
    """Return 1,797 rows: ``features``, a vector of 64 numbers from 0 to 1, and ``label``."""
    from pyspark.ml.linalg import Vectors
    from sklearn.datasets import load_digits

    found = load_digits()
    rows = [(Vectors.dense(x / 16), int(y)) for x, y in zip(found.data, found.target, strict=True)]
    return session.createDataFrame(rows, ["features", "label"])


def accuracy(rows, output="label__output"):
    """Return the accuracy. ``rows`` have ``label`` and the model's ten outputs."""
    right = [max(range(10), key=lambda digit, row=row: row[output][digit]) == row.label for row in rows]
    return sum(right) / len(right)
