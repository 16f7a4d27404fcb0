"""Rows of Parquet files."""

import pickle

import numpy as np
import pytest

from horovod.data import ParquetFiles, StreamingDataset

pa = pytest.importorskip("pyarrow")
from pyarrow import fs, parquet  # noqa: E402


def table(begin, end):
    rows = range(begin, end)
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "x": pa.array([row / 2 for row in rows], pa.float32()),
            "flag": pa.array([row % 2 == 0 for row in rows]),
            "name": pa.array([f"row {row}" for row in rows]),
            "image": pa.array([[row, row + 1, row + 2, row + 3] for row in rows], pa.list_(pa.uint8())),
            "pair": pa.array([[row, -row] for row in rows], pa.list_(pa.int32(), 2)),
            "kind": pa.array(["ab"[row % 2] for row in rows]).dictionary_encode(),
            "when": pa.array([row * 10**6 for row in rows], pa.timestamp("us")),
        }
    )


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        parquet.write_table(table(number * 50, number * 50 + 50), tmp_path / f"{number}.parquet", row_group_size=20)
    (tmp_path / "_metadata").write_text("not one")
    return tmp_path


def test_blocks_are_row_groups_of_arrays(folder):
    source = pickle.loads(pickle.dumps(ParquetFiles(folder, shapes={"image": (2, 2)})))
    assert source.lengths == [20, 20, 10] * 3
    block = source.load(4)
    kinds = {name: (values.dtype.str[1:], values.shape) for name, values in block.items()}
    assert kinds == {
        "id": ("i8", (20,)),
        "x": ("f4", (20,)),
        "flag": ("b1", (20,)),
        "name": ("O", (20,)),
        "image": ("u1", (20, 2, 2)),
        "pair": ("i4", (20, 2)),
        "kind": ("O", (20,)),
        "when": ("M8[us]", (20,)),
    }
    first = {name: values[0] for name, values in block.items()}
    assert (first["id"], first["x"], first["flag"], first["name"], first["kind"]) == (70, 35, True, "row 70", "a")
    assert first["image"].tolist() == [[70, 71], [72, 73]]
    assert first["pair"].tolist() == [70, -70]
    assert ParquetFiles(folder, ["image"]).load(0)["image"][3].tolist() == [3, 4, 5, 6], "lists as arrays of objects"


def test_a_stream_of_row_groups(folder):
    source = ParquetFiles(folder, ["id", "name", "pair"])
    seen = []
    for rank in range(4):
        for batch in StreamingDataset(source, 16, mix=2, rank=lambda rank=rank: rank, size=lambda: 4):
            assert list(batch) == ["id", "name", "pair"]
            assert batch["name"].tolist() == [f"row {row}" for row in batch["id"]]
            assert (batch["pair"][:, 1] == -batch["id"]).all()
            seen += batch["id"].tolist()
    assert set(seen) == set(range(150))
    assert len(seen) == 152, "two ranks of four have a row less"


def test_a_batch_of_several_blocks_equals_their_concatenation(folder):
    source = ParquetFiles(folder, shapes={"image": (2, 2)})
    chosen = [(source.load(0), [3, 1]), (source.load(4), []), (source.load(7), [19, 0, 19])]
    gathered, expected = source.gather(chosen), source.join([source.take(*one) for one in chosen])
    assert gathered["id"].tolist() == [3, 1, 139, 120, 139]
    for name, values in expected.items():
        assert gathered[name].dtype == values.dtype
        assert gathered[name].tolist() == values.tolist()
        assert gathered[name].flags.writeable


def test_subclasses_can_convert_columns(folder):
    class Shouted(ParquetFiles):
        def array(self, name, column, where):
            values = super().array(name, column, where)
            return np.array([one.upper() for one in values], object) if name == "name" else values

    block = Shouted(folder, ["id", "name"]).load(4)
    assert (block["id"][0], block["name"][0]) == (70, "ROW 70")


def test_paths_of_a_file_system_object(folder):
    system = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    source = pickle.loads(pickle.dumps(ParquetFiles(["1.parquet", "0.parquet"], ["id"], filesystem=system)))
    assert source.load(0)["id"].tolist() == list(range(50, 70))
    for wrong in ([], ["0.parquet", "0.parquet"]):
        with pytest.raises(ValueError, match="paths must name at least one file, and each once"):
            ParquetFiles(wrong, filesystem=system)
    with pytest.raises(ValueError, match=r"9.parquet cannot be read"):
        ParquetFiles("9.parquet", filesystem=system)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1, -9])
def test_torn_file(folder, keep):
    path = folder / "1.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(ValueError, match=r"1\.parquet is damaged, or not a Parquet file"):
        ParquetFiles(folder)


def test_damaged_row_group(folder):
    path = folder / "1.parquet"
    parquet.write_table(
        table(50, 100), path, row_group_size=20, write_page_checksum=True, compression="none", use_dictionary=False
    )
    source = ParquetFiles(folder)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    with open(path, "r+b") as file:
        file.seek(column.data_page_offset + column.total_compressed_size - 8)
        file.write(b"\xff" * 8)
    source.load(3)
    with pytest.raises(ValueError, match=r"1\.parquet is damaged.*(checksum|CRC)"):
        source.load(4)


def test_changed_file(folder):
    source = ParquetFiles(folder, ["id"])
    parquet.write_table(table(0, 10), folder / "1.parquet")
    with pytest.raises(ValueError, match=r"1\.parquet had \d+ bytes when the source was created, but has \d+ now"):
        source.load(3)
    (folder / "1.parquet").unlink()
    with pytest.raises(ValueError, match=r"1\.parquet cannot be read: .*No such file"):
        source.load(3)


def test_mismatched_columns(folder):
    with pytest.raises(ValueError, match=r"columns must name columns of \S+0.parquet, \['id', 'x', .*, got \['y'\]"):
        ParquetFiles(folder, ["id", "y"])
    with pytest.raises(ValueError, match=r"shapes must name columns .*, got \['y'\]"):
        ParquetFiles(folder, shapes={"y": (1,)})
    wrong = ParquetFiles(folder, shapes={"image": (3,)})
    with pytest.raises(
        ValueError, match=r"row group 0, column image must have shape \(3,\) in each row, got a list of 4 in row 0"
    ):
        wrong.load(0)
    parquet.write_table(table(0, 5).drop_columns(["name"]), folder / "3.parquet")
    with pytest.raises(ValueError, match=r"column name must be string in \S+3.parquet, as .*, got no such"):
        ParquetFiles(folder)
    ParquetFiles(folder, ["id"])
    parquet.write_table(pa.table({"id": ["a"]}), folder / "3.parquet")
    with pytest.raises(ValueError, match=r"column id must be int64 in \S+3.parquet, as in \S+0.parquet, got string"):
        ParquetFiles(folder, ["id"])


def test_missing_values(tmp_path):
    table = pa.table(
        {"a": [1, None], "b": [1.5, None], "c": ["x", None], "d": pa.array([[1, 2], None], pa.list_(pa.int64(), 2))}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    block = ParquetFiles(tmp_path, ["b", "c"]).load(0)
    assert np.isnan(block["b"][1])
    assert block["c"][1] is None
    with pytest.raises(ValueError, match=r"a.parquet, row group 0, column a \(int64\) must not .*, got 1 of"):
        ParquetFiles(tmp_path, ["a"]).load(0)
    with pytest.raises(ValueError, match=r"column d must not have missing lists, got 1 of 2"):
        ParquetFiles(tmp_path, ["d"]).load(0)


def test_lists_of_other_lengths_with_matching_totals(tmp_path):
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int64())):
        table = pa.table({"x": pa.array([[0, 1], [2, 3], [4], [5, 6, 7]], kind)})
        parquet.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=r"column x must have shape \(2,\) in each row, got a list of 1 in row 2"):
            ParquetFiles(tmp_path, shapes={"x": (2,)}).load(0)
        with pytest.raises(ValueError, match=r"column x must have shape \(1, 1\) in each row, got 2 numbers in row 0"):
            ParquetFiles(tmp_path, shapes={"x": (1, 1)}).load(0)


@pytest.mark.parametrize("error", [pa.ArrowMemoryError("no memory"), pa.ArrowCancelled("cancelled")])
def test_errors_unrelated_to_the_file(folder, monkeypatch, error):
    def fail(*_, **__):
        raise error

    source = ParquetFiles(folder, ["id"])
    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", fail)
    with pytest.raises(type(error)):
        source.load(0)
    monkeypatch.setattr(pa, "OSFile", fail)
    with pytest.raises(type(error)):
        source.load(0)


def test_without_pyarrow(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'horovod\[data\]'"):
        ParquetFiles(folder)
