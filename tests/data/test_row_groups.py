"""Row groups that are read in parts."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horovod.data import ParquetFiles, StreamingDataset
from horovod.data.row_groups import array_bytes, buffer_bytes, cut, leaves

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

ROWS, WIDTH = 1000, 8


@pytest.fixture
def path(tmp_path):
    """A file with one row group of 32 kB of numbers, and one of 3 rows."""
    path = tmp_path / "0.parquet"
    values = pa.array(np.arange((ROWS + 3) * WIDTH, dtype=np.float32))
    lists = pa.ListArray.from_arrays(np.arange(0, (ROWS + 3) * WIDTH + 1, WIDTH, dtype=np.int32), values)
    table = pa.table({"id": np.arange(ROWS + 3, dtype=np.int64), "x": lists})
    options = {"write_page_checksum": True, "use_dictionary": False, "data_page_size": 1000}
    with parquet.ParquetWriter(path, table.schema, **options) as writer:
        writer.write_table(table.slice(0, ROWS))
        writer.write_table(table.slice(ROWS))
    return path


def parts_of(path, block_bytes=10000):
    return ParquetFiles(path, shapes={"x": (WIDTH,)}, block_bytes=block_bytes)


@given(st.integers(0, 10**6), st.integers(0, 10**9), st.integers(1, 10**8))
def test_pieces_cover_everything_within_the_size_limit(rows, size, most):
    pieces = cut(rows, size, most)
    assert [begin for begin, _ in pieces] == [0, *(end for _, end in pieces[:-1])]
    assert pieces[-1][1] == rows
    assert len({end - begin for begin, end in pieces[:-1]}) <= 1
    if rows:
        longest = max(end - begin for begin, end in pieces)
        assert longest == 1 or (longest - 1) * size <= most * rows


def test_sizes_are_those_of_arrays_and_of_the_columns_that_are_read(tmp_path):
    table = pa.table({"same": np.zeros(5000), "text": ["abcd"] * 5000, "x.y": np.arange(5000, dtype=np.int32)})
    parquet.write_table(table, tmp_path / "0.parquet")
    file = parquet.ParquetFile(tmp_path / "0.parquet")
    about = file.metadata.row_group(0)
    assert about.total_byte_size < 30_000, "encoded"

    def size(*columns):
        return array_bytes(about, leaves(file.schema, columns))

    assert size("same") == 40_000
    assert 20_000 <= size("x.y") < 30_000
    assert size("text") > 5000 * 60
    assert size("same", "x.y") == size("same") + size("x.y")
    assert buffer_bytes(1) == 4 << 20
    assert buffer_bytes(10**5) == 64 << 10


def test_parts_are_the_row_group(path):
    source = pickle.loads(pickle.dumps(parts_of(path)))
    assert source.lengths == [200] * 5 + [3]
    assert source.chains == [5, 1]
    for order in (range(6), [4, 1, 1, 5, 0, 3]):
        with source.walk() as load:
            for block in order:
                found = load(block)
                assert found["id"].tolist() == list(range(block * 200, block * 200 + source.lengths[block]))
                assert (found["x"] == found["id"][:, None] * WIDTH + np.arange(WIDTH)).all()
    assert source.load(3)["id"][0] == 600
    assert parts_of(path, 1 << 20).lengths == [ROWS, 3]


@pytest.mark.parametrize("mix", [1, 3])
def test_a_stream_reads_each_part_once_in_its_order(path, mix, monkeypatch):
    started = []
    from horovod.data import parquet as module

    reading = module.Reading
    monkeypatch.setattr(module, "Reading", lambda *args: started.append(args) or reading(*args))
    files = len(os.listdir("/proc/self/fd"))
    for epoch in range(3):
        seen = []
        for rank in range(2):
            source = parts_of(path)
            stream = StreamingDataset(source, 16, True, 5, mix=mix, rank=lambda rank=rank: rank, size=lambda: 2)
            stream.set_epoch(epoch)
            seen += [row for batch in stream for row in batch["id"].tolist()]
        assert set(seen) == set(range(ROWS + 3))
        assert len(seen) == ROWS + 4
        assert seen[:100] != sorted(seen[:100]), "mixed"
    assert len(started) == 6, "each rank begins with the row group once in an epoch"
    walked = iter(stream)
    next(walked)
    walked.close()
    assert len(os.listdir("/proc/self/fd")) == files, "a loop that is left early closes the file"


def test_a_damaged_part_names_its_file(path):
    source = parts_of(path)
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) * 2 // 3)
        file.write(b"\xff" * 64)
    with source.walk() as load, pytest.raises(ValueError, match=r"0\.parquet is damaged, or not a Parquet file"):
        list(map(load, range(5)))
    with pytest.raises(ValueError, match="block_bytes must be an integer of at least 1, got 0"):
        parts_of(path, 0)
