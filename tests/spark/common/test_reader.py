"""A rank's batches: every row once in an epoch and equally many steps on every rank, for any file sizes."""

import itertools
import os
import pickle

import pytest

pytest.importorskip("numpy")
pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.common.reader import Batches, open_existing, transformed
from horovod.spark.common.store import LocalStore
from tests.spark.common.tables import write_numbers


def table_of(folder, **columns):
    return open_existing(LocalStore(folder.parent), str(folder), columns or {"feature_cols": ["id", "x"]}, False)


@pytest.mark.parametrize(("rows", "ranks"), [(100, 2), (101, 3), (7, 4), (2, 3)])
def test_ranks_share_rows_in_equal_steps(tmp_path, rows, ranks):
    table = table_of(write_numbers(tmp_path / "train", rows, files=2))
    for epoch in range(3):
        by_rank = []
        for rank in range(ranks):
            batches = Batches(pickle.loads(pickle.dumps(table)), 8, True, 5, rank, ranks)
            by_rank.append(list(batches.epoch(epoch)))
            assert len(by_rank[-1]) == len(batches) == table.steps(ranks, 8)
        sizes = {tuple(len(batch["id"]) for batch in own) for own in by_rank}
        assert len(sizes) == 1
        seen = np.concatenate([batch["id"] for own in by_rank for batch in own])
        assert sorted(set(seen.tolist())) == list(range(rows))
        assert len(seen) == -(-rows // ranks) * ranks
        for own in by_rank:
            for batch in own:
                assert (batch["x"][:, 1] == 2 * batch["id"]).all()
    orders = [[batch["id"].tolist() for batch in Batches(table, 8, True, 5).epoch(epoch)] for epoch in range(2)]
    assert rows < 5 or orders[0] != orders[1]
    plain = Batches(table, 8)
    assert np.concatenate([batch["id"] for batch in plain.epoch(4)]).tolist() == list(range(rows))


def test_cached_rows_are_read_once_and_shuffled(tmp_path):
    folder = write_numbers(tmp_path / "train", 50)
    batches = Batches(table_of(folder), 8, True, 1, 1, 2, cache=True)
    epochs = [[batch["id"].tolist() for batch in batches.epoch(0)]]
    for file in folder.iterdir():
        os.remove(file)
    epochs += [[batch["id"].tolist() for batch in batches.epoch(number)] for number in (1, 2)]
    rows = [sorted(itertools.chain(*epoch)) for epoch in epochs]
    assert rows[0] == rows[1] == rows[2]
    assert len(rows[0]) == 25
    assert epochs[0] != epochs[1] != epochs[2]


def test_files_are_read_one_row_group_at_a_time(tmp_path, monkeypatch):
    table = table_of(write_numbers(tmp_path / "train", 90, files=1, group=10))
    loaded = []
    load = table.source.load
    monkeypatch.setattr(table.source, "load", lambda block: loaded.append(block) or load(block))
    own = list(itertools.chain(*(batch["id"] for batch in Batches(table, 5, True, 0, 0, 3).epoch(0))))
    assert len(own) == 30
    assert len(loaded) <= 6 < 9


def test_sparse_vectors_become_arrays(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    rows = [{"size": 5, "indices": [1, 4], "values": [2.0, 3.0]}, {"size": 5, "indices": [], "values": []}] * 3
    kind = pa.struct([("size", pa.int32()), ("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float32()))])
    pa.parquet.write_table(pa.table({"v": pa.array(rows, kind)}), folder / "a.parquet", row_group_size=4)
    table = table_of(folder, feature_cols=["v"])
    assert table.columns[0].kind == "sparse"
    assert table.columns[0].shape == (5,)
    values = np.concatenate([batch["v"] for batch in Batches(table, 4).epoch(0)])
    assert values.tolist() == [[0, 2, 0, 0, 3], [0] * 5] * 3
    for first in (6, 5):  # in the second row group: the driver checks only the first rows
        more = [*rows * 5, {**rows[0], "size": first}, {**rows[1], "size": 6}]
        pa.parquet.write_table(pa.table({"v": pa.array(more, kind)}), folder / "a.parquet", row_group_size=30)
        with pytest.raises(ValueError, match="row group 1, column v must have vectors of one size, got 5 and 6"):
            list(Batches(table_of(folder, feature_cols=["v"]), 4).epoch(0))


def test_spark_vectors_are_refused_with_advice(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    types = {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
    row = {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}
    pa.parquet.write_table(pa.table({"v": pa.array([row], pa.struct(list(types.items())))}), folder / "a.parquet")
    with pytest.raises(ValueError, match=r"column 'v' must have lists, .* write the column as .*vector_to_array"):
        table_of(folder, feature_cols=["v"])


def test_reading_ahead_ends_with_the_context(tmp_path):
    folder = write_numbers(tmp_path / "train", 30)
    module = ParquetDataModule(train_dir=str(folder), val_dir=str(folder), train_batch_size=4, steps_per_epoch_val=3)
    with module as data:
        train, val = data.train_batches(), data.val_batches()
        firsts = [next(train)["id"] for _ in range(20)]  # beyond the end of the first epoch
        assert len(set(np.concatenate(firsts[:8]).tolist())) == 30
        assert [next(val)["id"][0] for _ in range(4)] == [0, 0, 0, 0]
        thread = train._thread
        assert thread.is_alive()
    assert not thread.is_alive()


def test_transformations_map_frames_to_frames():
    batch = {"x": np.arange(6.0).reshape(3, 2), "name": np.array(["a", "bb", "c"], object), "y": np.arange(3)}

    def lengths(frame):
        frame["length"] = frame["name"].str.len()
        frame["pair"] = [row * 2 for row in frame["x"]]
        return frame

    result = transformed(batch, lengths, [("length", "float32", (1,), False)], ["name"])
    assert set(result) == {"x", "y", "length", "pair"}
    assert result["length"].tolist() == [[1.0], [2.0], [1.0]]
    assert result["length"].dtype == np.float32
    assert (result["pair"] == batch["x"] * 2).all()
    with pytest.raises(ValueError, match=r"transformation_fn must return a pandas.DataFrame, got a list"):
        transformed(batch, lambda frame: [], None, None)
    with pytest.raises(ValueError, match="column 'pair' cannot become one array"):
        transformed(batch, lambda frame: frame.assign(pair=[np.ones(n + 1) for n in range(3)]), None, None)


def test_torn_foreign_and_empty_files_are_named(tmp_path):
    store = LocalStore(tmp_path)
    folder = write_numbers(tmp_path / "train", 30, files=2)
    with pytest.raises(ValueError, match=rf"{tmp_path}/none has no files \*.parquet"):
        open_existing(store, f"{tmp_path}/none", {}, False)
    whole = (folder / "part-1.parquet").read_bytes()
    (folder / "part-1.parquet").write_bytes(whole[:-20])
    with pytest.raises(ValueError, match=r"part-1.parquet is damaged, or not a Parquet file"):
        open_existing(store, str(folder), {}, False)
    (folder / "part-1.parquet").write_bytes(whole)
    table = open_existing(store, str(folder), {}, False)
    damaged = bytearray(whole)
    damaged[200:400] = bytes(200)
    (folder / "part-1.parquet").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"part-1.parquet is damaged"):
        list(Batches(table, 8).epoch(0))
    (folder / "part-0.parquet").write_bytes(damaged)  # only the first rows of the first file are checked
    with pytest.raises(ValueError, match=r"part-0.parquet is damaged"):
        open_existing(store, str(folder), {}, False)


@pytest.mark.parametrize(
    ("columns", "requested", "message"),
    [
        ({}, {"label_cols": ["z"]}, "label_cols must name columns of .*, 'id', 'x', 'y', got 'z'"),
        (
            {"t": ["a"] * 30},
            {"feature_cols": ["t"]},
            "feature_cols: column 't' must have numbers, booleans or lists of numbers, got string",
        ),
        ({"n": [1.0, None] * 15}, {"feature_cols": ["n"]}, "column 'n' must not have nulls, got 15 in 30 rows"),
        (
            {"l": [[1, 2], [3]] * 15},
            {"feature_cols": ["l"]},
            "column 'l' must have arrays of one size in all rows, got 1 and 2 elements",
        ),
    ],
)
def test_unsupported_columns_are_named(tmp_path, columns, requested, message):
    folder = write_numbers(tmp_path / "train", 30, **columns)
    with pytest.raises(ValueError, match=message):
        open_existing(LocalStore(tmp_path), str(folder), requested, False)


@pytest.mark.heavy
def test_reading_a_large_row_group_stays_below_1_gb(tmp_path):
    """A rank's memory use does not depend on how the files were written."""
    from benchmarks.spark_reader import measure, write

    write(str(tmp_path), 1024)
    assert pa.parquet.read_metadata(tmp_path / "group" / "0.parquet").num_row_groups == 1
    assert os.path.getsize(tmp_path / "group" / "0.parquet") > 900e6
    _, _, megabytes = measure("group", str(tmp_path), 2)
    assert megabytes < 500


def test_rows_in_memory_are_ordered_by_seed_rank_and_epoch(tmp_path):
    table = table_of(write_numbers(tmp_path / "train", 60))

    def order(seed, epoch, rank=0):
        batches = Batches(table, 8, True, seed, rank, 2, cache=True)
        batches._cached = {"id": np.arange(60)}  # whatever the order in which they were read
        return [n for batch in batches.epoch(epoch) for n in batch["id"]]

    assert order(1, 0) == order(1, 0) == order(1 + (1 << 32), 0)
    orders = [order(1, 0), order(1, 1), order(2, 0), order(1 << 31, 0), order(1, 0, rank=1)]
    assert all(a != b for a, b in itertools.combinations(orders, 2))
    assert all(sorted(one) == list(range(60)) for one in orders)
