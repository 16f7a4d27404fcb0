"""Data sets of Parquet for tests, without Spark."""

import numpy as np
import pyarrow as pa
from pyarrow import parquet


def write_numbers(folder, rows, files=3, group=7, **columns):
    """Write ``rows`` rows to ``files`` files: ``id`` from 0, ``x`` of 4 numbers computed from it, and more columns."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.arange(rows)
    x = np.stack([ids * 1.0, ids * 2.0, -ids * 1.0, ids % 3 * 1.0], 1).astype("float32")
    table = pa.table({"id": ids, "x": list(x), "y": (ids % 2).astype("int64"), **columns})
    for number, chosen in enumerate(np.array_split(ids, files)):
        parquet.write_table(
            table.slice(int(chosen[0]), len(chosen)),
            folder / f"part-{number}.parquet",
            row_group_size=group,
            write_page_checksum=True,
        )
    return folder


def write_sums(store, rows=60, **columns):
    """Write the training and validation data of a store: ``z`` of 4 numbers, and ``sum``, their sum.

    Returns:
        The numbers, one row each.
    """
    z = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    for part in ("train", "val"):
        write_numbers(store / f"intermediate_{part}_data", rows, z=list(z), sum=z.sum(1).astype("float64"), **columns)
    return z
