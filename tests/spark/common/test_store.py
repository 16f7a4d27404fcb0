"""Stores: names, atomic files, and errors if nothing can be written."""

import os
import pickle
import threading

import pytest

pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")

from horovod.spark.common import store as stores
from horovod.spark.common.reader import open_existing
from horovod.spark.common.store import (
    DBFSLocalStore,
    FilesystemStore,
    HDFSStore,
    LocalStore,
    Store,
    StoreNotWritableError,
)
from tests.spark.common.tables import write_numbers


@pytest.mark.parametrize(
    ("path", "kind", "prefix"),
    [
        ("/tmp/x/", FilesystemStore, "/tmp/x"),
        ("file:///tmp/x", FilesystemStore, "/tmp/x"),
        ("memory://x", FilesystemStore, "memory://x"),
        ("dbfs:/x", DBFSLocalStore, "/dbfs/x"),
        ("/dbfs/x", DBFSLocalStore, "/dbfs/x"),
        ("file:///dbfs/x/y", DBFSLocalStore, "/dbfs/x/y"),
        ("/dbfsx", FilesystemStore, "/dbfsx"),
    ],
)
def test_the_path_selects_the_store(path, kind, prefix):
    store = Store.create(path)
    assert type(store) is kind
    assert store.prefix_path == prefix


def test_paths_in_a_store(tmp_path):
    store = LocalStore(tmp_path, train_path="/data/train", checkpoint_filename="best.pt")
    assert store.get_train_data_path() == "/data/train"
    assert store.get_val_data_path(3) == f"{tmp_path}/intermediate_val_data.3"
    assert store.get_checkpoint_path("r1") == f"{tmp_path}/runs/r1/best.pt"
    assert store.get_logs_path("r1") == f"{tmp_path}/runs/r1/logs"
    assert store.get_full_path(store.get_runs_path()) == f"file://{tmp_path}/runs"
    remote = pickle.loads(pickle.dumps(store.to_remote("r1", 3)))
    assert (remote.val_data_path, remote.run_path) == (f"{tmp_path}/intermediate_val_data.3", f"{tmp_path}/runs/r1")
    assert remote.saving_runs
    assert not LocalStore(tmp_path, save_runs=False).saving_runs()


@pytest.mark.parametrize("prefix", ["{tmp}/store", "memory://store-{name}"])
def test_write_read_list_and_remove(tmp_path, prefix):
    store = Store.create(prefix.format(tmp=tmp_path, name=tmp_path.name))
    store.check_writable()
    assert not store.exists(store.get_run_path("r"))
    assert store.get_checkpoints("r") == []
    path = store.get_checkpoint_path("r")
    store.write(path, b"one")
    store.write(path, b"two")
    store.write_text(f"{store.get_run_path('r')}/b.ckpt", "b")
    store.write_text(f"{store.get_run_path('r')}/a.ckpt", "a")
    assert store.read(path) == b"two"
    assert [name.rpartition("/")[2] for name in store.get_checkpoints("r")] == ["a.ckpt", "b.ckpt"]
    with store.to_remote("r").get_local_output_dir() as folder:
        os.mkdir(f"{folder}/logs")
        for name in ("checkpoint", "logs/events"):
            with open(f"{folder}/{name}", "w") as file:
                file.write(name)
        store.sync_fn("r")(folder)
    assert not os.path.exists(folder)
    assert store.read(path) == b"checkpoint"
    assert store.read(f"{store.get_logs_path('r')}/events") == b"logs/events"
    store.remove(store.get_runs_path())
    store.remove(store.get_runs_path())
    assert not store.exists(path)


def test_readers_see_complete_files_during_writes(tmp_path):
    store, seen = LocalStore(tmp_path), set()
    path = f"{tmp_path}/file"
    store.write(path, bytes(100_000))
    done = threading.Event()

    def read():
        while not done.is_set():
            data = store.read(path)
            seen.add((len(data), len(set(data))))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        store.write(path, bytes([number]) * 100_000)
    done.set()
    reader.join(60)
    assert seen == {(100_000, 1)}
    assert os.listdir(tmp_path) == ["file"]


def test_store_paths_are_checked_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    options = {"train_path": f"{tmp_path}/file/train"}, {"runs_path": f"{tmp_path}/file/runs"}
    for paths in options:
        with pytest.raises(StoreNotWritableError, match=rf"{tmp_path}/file/\w+\.probe-\w+ cannot be written"):
            LocalStore(tmp_path, **paths).check_writable()
    LocalStore(tmp_path, **options[0]).check_writable(data=False)
    LocalStore(tmp_path, save_runs=False, **options[1]).check_writable()
    (tmp_path / "runs").mkdir()
    LocalStore(tmp_path).check_writable()
    assert sorted(os.listdir(tmp_path)) == ["file", "runs"]
    assert os.listdir(tmp_path / "runs") == []
    monkeypatch.setattr(stores, "_MOUNT", f"{tmp_path}/dbfs")
    with pytest.raises(StoreNotWritableError, match=rf"/dbfs/x cannot be written: {tmp_path}/dbfs does not exist"):
        Store.create("dbfs:/x").check_writable()
    assert not os.path.exists("/dbfs/x")


def test_failures_while_writing_leave_no_file(tmp_path):
    store = LocalStore(tmp_path)
    with pytest.raises(KeyError), store.new_file(f"{tmp_path}/x") as name, open(name, "w"):
        raise KeyError("of the writer")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: Store.create(""), ValueError, "prefix_path must be the path or URL of a folder, got ''"),
        (lambda: Store.create("nowhere://x"), ValueError, "prefix_path must be .*, got 'nowhere://x'"),
        (lambda: LocalStore("memory://x"), ValueError, "prefix_path must be a folder of this host"),
        (lambda: HDFSStore("hdfs://h/x", driver="libhdfs3"), ValueError, "driver must be 'libhdfs', got 'libhdfs3'"),
        (lambda: HDFSStore("s3://b/x"), ValueError, "prefix_path must be hdfs://host:port/folder, got 's3://b/x'"),
    ],
)
def test_invalid_stores(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_hdfs_paths_keep_their_protocol(tmp_path):
    """``spark.write.parquet`` and other readers need the protocol; our reader accepts these names, too."""
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import LocalFileSystem

    class Local(HDFSStore):  # a local file system of pyarrow, of the same kind as that of HDFS
        def _open(self):
            return ArrowFSWrapper(LocalFileSystem())

    store = Local(f"hdfs://node:8020{tmp_path}", val_path="hdfs://other/val", test_path=f"{tmp_path}/test")
    assert store.get_train_data_path(3) == f"hdfs://node:8020{tmp_path}/intermediate_train_data.3"
    assert store.get_val_data_path() == "hdfs://other/val"
    assert store.get_test_data_path() == f"hdfs://node:8020{tmp_path}/test"
    assert Local(str(tmp_path)).get_train_data_path() == f"hdfs://{tmp_path}/intermediate_train_data"
    assert store.get_full_path(store.get_train_data_path()) == store.get_train_data_path()
    write_numbers(tmp_path / "intermediate_train_data", 20)
    found = open_existing(store, store.get_train_data_path(), {"feature_cols": ["x"]}, False)
    assert found.rows == 20
    (tmp_path / "intermediate_train_data.3").mkdir()
    store.write(f"{store.get_train_data_path(3)}/a.parquet", b"a")
    assert store.parquet_files(store.get_train_data_path(3)) == [f"{tmp_path}/intermediate_train_data.3/a.parquet"]
    store.remove(store.get_train_data_path(3))
    assert not store.exists(f"{tmp_path}/intermediate_train_data.3")
