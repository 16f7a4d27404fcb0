"""What all stores have in common: where an estimator's data, checkpoints and logs lie, on a file system of fsspec.

PREFIX/intermediate_train_data.N   intermediate_val_data.N   intermediate_test_data.N    Parquet
PREFIX/runs/RUN_ID/checkpoint      logs/                                                  of a run
"""

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from horovod.spark.common.checks import refuse


class StoreNotWritableError(ValueError):
    """Nothing can be written where the store is to be."""


@dataclass(frozen=True)
class RemoteStore:
    """What a rank needs of a store for one run. Can be pickled."""

    store: "AbstractFilesystemStore"
    run_id: str
    train_data_path: str
    val_data_path: str
    test_data_path: str
    saving_runs: bool
    runs_path: str
    run_path: str
    checkpoint_path: str
    logs_path: str
    checkpoint_filename: str
    get_local_output_dir: Callable[[], Any]
    sync: Callable[[str], None]


class Store:
    """A place for data, checkpoints and logs. Its kinds are in ``store``; ``create`` chooses one."""

    _kinds: ClassVar[list[type["AbstractFilesystemStore"]]] = []
    """Those that ``create`` chooses from, in the order in which they are asked."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> "AbstractFilesystemStore":
        """The store for ``prefix_path``: HDFSStore for ``hdfs://``, DBFSLocalStore for ``dbfs:/``, ``file:///dbfs`` and
        ``/dbfs``, else a FilesystemStore: a folder, ``s3://bucket/folder``, ``gs://`` and what else fsspec knows. The
        rest goes to its constructor. Raises what that does."""
        kind = next(kind for kind in Store._kinds if kind.matches(os.fspath(prefix_path)))
        return kind(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Is this the kind of store for the path?"""
        return False


class AbstractFilesystemStore(Store):
    """A store in a folder of a file system. Can be pickled; the file system is opened where it is used."""

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: dict[str, Any] | None = None,
        checkpoint_filename: str | None = None,
        **kwargs: Any,
    ) -> None:
        """``prefix_path``: the folder, made if it is not there. ``train_path``, ``val_path``, ``test_path``,
        ``runs_path``: other places for these, the first three without the number of a data set. ``save_runs``: keep
        checkpoints and logs. ``storage_options``: what fsspec is told, as keys of S3. ``checkpoint_filename``: the name
        of checkpoints in the folder of their run. Further keywords are added to ``storage_options``.

        Raises ValueError for a path that is none, ImportError naming the package that its file system needs."""
        if not isinstance(prefix_path, (str, os.PathLike)) or not os.fspath(prefix_path):
            raise refuse("prefix_path", prefix_path, "the path or URL of a folder")
        self.storage_options = {**(storage_options or {}), **kwargs}
        self.prefix_path = self._normal(os.fspath(prefix_path))
        self._paths = {
            "train": train_path or self._under("intermediate_train_data"),
            "val": val_path or self._under("intermediate_val_data"),
            "test": test_path or self._under("intermediate_test_data"),
            "runs": runs_path or self._under("runs"),
        }
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename or "checkpoint"
        self._fs: Any = None
        self.fs  # noqa: B018  (what is wrong with it is to be told now)

    # -- which file system: what kinds of stores differ in

    def _open(self) -> Any:
        """The fsspec file system."""
        raise NotImplementedError(f"{type(self).__name__} does not say which file system it is on")

    def _normal(self, path: str) -> str:
        return path.rstrip("/") or "/"

    def wait_for(self, paths: Sequence[str]) -> None:
        """Returns when files that have just been written can be seen here. Raises ValueError naming one that cannot,
        which another host has on a disk of its own."""
        if lost := [path for path in paths if not self.exists(path)]:
            raise ValueError(
                f"{lost[0]} has been written and cannot be seen here; the store {self.prefix_path} has to be on a file "
                "system that the driver and all executors share"
            )

    @property
    def fs(self) -> Any:
        """The fsspec file system, opened in this process."""
        if self._fs is None:
            self._fs = self._open()
        return self._fs

    def arrow_filesystem(self) -> Any:
        """For pyarrow; None: its own, of this host."""
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        return None if is_local(self.fs) else PyFileSystem(FSSpecHandler(self.fs))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fs": None}

    # -- names

    def _under(self, *parts: str) -> str:
        return "/".join([self.prefix_path.rstrip("/"), *parts])

    def _data(self, kind: str, idx: int | None) -> str:
        return self._paths[kind] if idx is None else f"{self._paths[kind]}.{idx}"

    def get_train_data_path(self, idx: int | None = None) -> str:
        """The folder of data set number ``idx``, or of the one without a number."""
        return self._data("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        return self._data("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        return self._data("test", idx)

    def saving_runs(self) -> bool:
        """Are checkpoints and logs kept?"""
        return self._save_runs

    def get_runs_path(self) -> str:
        return self._paths["runs"]

    def get_run_path(self, run_id: str) -> str:
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename

    def get_checkpoint_path(self, run_id: str) -> str:
        return f"{self.get_run_path(run_id)}/{self._checkpoint_filename}"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Files of the run whose names end so, sorted by name."""
        folder = self.get_run_path(run_id)
        if not self.exists(folder):
            return []
        return sorted(path for path in self.fs.ls(folder, detail=False) if path.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str:
        return f"{self.get_run_path(run_id)}/logs"

    def get_full_path(self, path: str) -> str:
        """With the protocol in front, as Spark wants it."""
        return str(self.fs.unstrip_protocol(path))

    # -- what lies there

    def exists(self, path: str) -> bool:
        # What others have written since is not in what fsspec remembers.
        self.fs.invalidate_cache()
        return bool(self.fs.exists(path))

    def read(self, path: str) -> bytes:
        """The whole file. Raises FileNotFoundError."""
        return bytes(self.fs.cat_file(path))

    def write(self, path: str, data: bytes) -> None:
        """A file that is there whole or not at all, in place of one of that name. Raises StoreNotWritableError."""
        with self.new_file(path) as name, open(name, "wb") as file:
            file.write(data)

    def write_text(self, path: str, text: str) -> None:
        self.write(path, text.encode())

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it; nothing where there is none."""
        if self.exists(path):
            self.fs.rm(path, recursive=True)

    def is_parquet_dataset(self, path: str) -> bool:
        """A folder with files of Parquet?"""
        return bool(self.parquet_files(path))

    def parquet_files(self, path: str) -> list[str]:
        """Those in a folder and its folders, sorted; files whose names begin with ``_`` or ``.`` are passed over."""
        if not self.exists(path):
            return []
        found = (name for name in self.fs.find(path) if name.endswith(".parquet"))
        return sorted(name for name in found if name.rpartition("/")[2][0] not in "._")

    def check_writable(self, data: bool = True) -> None:
        """Raises StoreNotWritableError naming the file, unless one can be made and removed where runs are kept, if they
        are, and with ``data`` where a DataFrame is written."""
        places = [self._paths["train"], self._paths["val"]] if data else []
        if self._save_runs:
            runs = self._paths["runs"]  # in it, unless that would leave a folder behind
            places.append(runs if is_local(self.fs) and not os.path.isdir(runs) else f"{runs}/")
        for place in {place.rpartition("/")[0]: place for place in places}.values():
            # Who may write there may do so under names that begin like this, and perhaps under no others.
            probe = f"{place}.probe-{secrets.token_hex(4)}"
            self.write(probe, b"")
            try:
                self.fs.rm(probe)
            except Exception as error:  # each file system has errors of its own
                raise StoreNotWritableError(
                    f"{probe} can be written and not be removed, and stays: {type(error).__name__}: {error}; accepted "
                    f"are places where both are allowed; the store is {self.prefix_path}"
                ) from error

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """A function that returns a context: a temporary folder of this host, for ``sync_fn``."""
        return _local_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies what is in a folder of this host to the folder of the run."""
        return _Sync(self, self.get_run_path(run_id))

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> RemoteStore:
        """What ranks need of the store, for a run and a data set."""
        return RemoteStore(
            store=self,
            run_id=run_id,
            train_data_path=self.get_train_data_path(dataset_idx),
            val_data_path=self.get_val_data_path(dataset_idx),
            test_data_path=self.get_test_data_path(dataset_idx),
            saving_runs=self.saving_runs(),
            runs_path=self.get_runs_path(),
            run_path=self.get_run_path(run_id),
            checkpoint_path=self.get_checkpoint_path(run_id),
            logs_path=self.get_logs_path(run_id),
            checkpoint_filename=self._checkpoint_filename,
            get_local_output_dir=self.get_local_output_dir_fn(run_id),
            sync=self.sync_fn(run_id),
        )

    @contextlib.contextmanager
    def new_file(self, path: str) -> Iterator[str]:
        """The name of a local file to be written, which then becomes ``path``, at once."""
        refused: type[Exception] = OSError
        try:
            if is_local(self.fs):
                goal = self.fs._strip_protocol(path)
                os.makedirs(os.path.dirname(goal), exist_ok=True)
                name = f"{os.path.dirname(goal)}/.{os.path.basename(goal)}.{secrets.token_hex(4)}.tmp"
                try:
                    yield name
                    _flush(name)
                    os.replace(name, goal)
                finally:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                        os.remove(name)
            else:
                with tempfile.TemporaryDirectory(prefix="horovod-store-") as folder:
                    name = f"{folder}/new"
                    yield name
                    refused = Exception  # each file system has errors of its own
                    self._upload(name, path)
        except refused as error:
            raise StoreNotWritableError(
                f"{path} cannot be written: {type(error).__name__}: {error}; the store is {self.prefix_path}"
            ) from error

    def _upload(self, name: str, path: str) -> None:
        """To file systems where a file appears when it has been sent whole, as object stores do."""
        self.fs.put_file(name, path)


class _Sync:
    def __init__(self, store: AbstractFilesystemStore, goal: str) -> None:
        self._store, self._goal = store, goal

    def __call__(self, local_run_path: str) -> None:
        for folder, _, files in os.walk(local_run_path):
            inside = os.path.relpath(folder, local_run_path)
            for file in files:
                path = "/".join(filter(None, [self._goal, "" if inside == "." else inside, file]))
                with self._store.new_file(path) as name:
                    shutil.copyfile(f"{folder}/{file}", name)


def _local_folder() -> Any:
    return tempfile.TemporaryDirectory(prefix="horovod-run-")


def is_local(fs: Any) -> bool:
    """Is this file system of fsspec that of this host?"""
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _flush(name: str) -> None:
    with open(name, "rb+") as file:
        os.fsync(file.fileno())
