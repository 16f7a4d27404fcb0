"""Files that a Spark task writes from its part of a DataFrame, without Spark."""

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from horovod.spark.common import parquet_parts
from horovod.spark.common.columns import Column
from horovod.spark.common.parquet_parts import unpacked, unpacked_field, write_part
from horovod.spark.common.store import LocalStore

COLUMNS = [Column("x", "list", "float32", 2), Column("id", "number", "int32"), Column("name", "other")]


def batch(begin, end, width=3):
    ids = list(range(begin, end))
    grids = [[[one, -one, 0.5][:width], [1.0, 2.0, 3.0][:width]] for one in ids]
    columns = [
        pa.array(grids, pa.list_(pa.list_(pa.float32()))),
        pa.array(ids, pa.int32()),
        pa.array(map(str, ids), pa.string()),
    ]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([one % 4 == 0 for one in ids], pa.bool_())], ["c0", "c1", "c2", "v"]
    )


def write(tmp_path, batches, folders=2, columns=COLUMNS):
    names = [f"{tmp_path}/{name}" for name in ("train", "val")][:folders]
    frames = (one if folders == 2 else one.select(["c0", "c1", "c2"]) for one in batches)
    (part,) = write_part(frames, LocalStore(tmp_path), names, columns, 7)
    return part.to_pylist()


def test_rows_go_to_one_of_two_files_and_arrays_become_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_parts, "GROUP_BYTES", 200)
    rows = write(tmp_path, [batch(0, 30), batch(30, 30), batch(30, 61)])
    assert [(row["validation"], row["rows"]) for row in rows] == [(False, 45), (True, 16)]
    assert json.loads(rows[1]["found"])["x"] == {
        "rows": 16,
        "nulls": 0,
        "inner_nulls": 0,
        "least": [2, 3],
        "most": [2, 3],
    }
    ids = []
    for row in rows:
        with parquet.ParquetFile(row["path"]) as file:
            assert file.num_row_groups > 1, "as many rows as GROUP_BYTES hold"
            table = file.read()
        assert unpacked_field(table.schema.field("x")) == ("float32", (2, 3))
        assert unpacked_field(table.schema.field("id")) is None
        grids = unpacked(table.column("x").chunks, "float32", (2, 3))
        assert (grids[:, 0, 0] == table.column("id").to_numpy()).all()
        assert (grids[:, 1] == np.array([1, 2, 3], "float32")).all()
        part = unpacked(table.column("x").slice(2, 3).chunks, "float32", (2, 3))
        assert (part == grids[2:5]).all(), "a part of an array does not begin at 0"
        ids += table.column("id").to_pylist()
    assert sorted(ids) == list(range(61))


def test_rows_the_driver_will_refuse_are_reported_harmlessly(tmp_path):
    (row,) = write(tmp_path, [batch(0, 5), batch(5, 9, width=2), batch(9, 12)], 1)
    found = json.loads(row["found"])["x"]
    assert (found["rows"], found["least"], found["most"]) == (12, [2, 2], [2, 3])


def test_failed_writes_leave_no_file(tmp_path):
    def failing():
        yield batch(0, 50)
        raise RuntimeError("of the query")

    with pytest.raises(RuntimeError, match="of the query"):
        write(tmp_path, failing(), 1)
    assert list((tmp_path / "train").glob("*")) == []
