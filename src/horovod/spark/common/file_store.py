"""Base classes of stores, which keep an estimator's data, checkpoints and logs on an fsspec file system.

PREFIX/intermediate_train_data.N, PREFIX/intermediate_val_data.N and PREFIX/intermediate_test_data.N contain Parquet
files. PREFIX/runs/RUN_ID contains the files of a run, such as checkpoint and logs.
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
    """Error raised if files cannot be created in a store."""


@dataclass(frozen=True)
class RemoteStore:
    """Parts of a store that a rank needs for one run: its paths and functions, in picklable form."""

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
    """Storage for data, checkpoints and logs. ``create`` returns an instance of the subclass for a given path."""

    _kinds: ClassVar[list[type["AbstractFilesystemStore"]]] = []
    """Subclasses that ``create`` chooses from; the first one that matches is used."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> "AbstractFilesystemStore":
        """Create the store for a path or URL.

        The class is HDFSStore for ``hdfs://``, and DBFSLocalStore for ``dbfs:/``, ``file:///dbfs`` and ``/dbfs``. It is
        FilesystemStore for all other paths, such as local folders, ``s3://bucket/folder`` and ``gs://``.

        Args:
            prefix_path: Path or URL of the folder.
            *args: Additional arguments of the constructor.
            **kwargs: Additional keyword arguments of the constructor.

        Returns:
            AbstractFilesystemStore: The store.
        """
        kind = next(kind for kind in Store._kinds if kind.matches(os.fspath(prefix_path)))
        return kind(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        """Return True if ``create`` uses this class for the path."""
        return False


class AbstractFilesystemStore(Store):
    """Storage in a folder of a file system. It is picklable; each process opens the file system on first use."""

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
        """Set the paths and open the file system.

        Args:
            prefix_path: Path of the store's folder, which is created when needed.
            train_path: Path for training data, without the number of the data set. Default: in ``prefix_path``.
            val_path: Path for validation data, without the number. Default: in ``prefix_path``.
            test_path: Path for test data, without the number. Default: in ``prefix_path``.
            runs_path: Folder for runs. Default: ``prefix_path``/runs.
            save_runs: True to keep checkpoints and logs.
            storage_options: Options for fsspec, such as access keys for S3.
            checkpoint_filename: File name of checkpoints in a run's folder. Default: "checkpoint".
            **kwargs: Additional entries of ``storage_options``.

        Raises:
            ValueError: If the path is invalid.
            ImportError: If the file system needs a package that is not installed. The message names it.
        """  # noqa: DOC501
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
        self.fs  # noqa: B018  (opens it, so that errors are raised here)

    def _open(self) -> Any:
        """Open the fsspec file system, and return it."""
        raise NotImplementedError(f"{type(self).__name__} must define its file system")

    def _normal(self, path: str) -> str:
        return path.rstrip("/") or "/"

    def wait_for(self, paths: Sequence[str]) -> None:
        """Wait until new files are visible to this process.

        Raises:
            ValueError: If a file is not visible, for example because another host wrote it to its local disk.
        """
        if lost := [path for path in paths if not self.exists(path)]:
            raise ValueError(
                f"{lost[0]} has been written and cannot be seen here; the store {self.prefix_path} has to be on a file "
                "system that the driver and all executors share"
            )

    @property
    def fs(self) -> Any:
        """The fsspec file system. Each process opens it on first use."""
        if self._fs is None:
            self._fs = self._open()
        return self._fs

    def arrow_filesystem(self) -> Any:
        """Return the file system to pass to pyarrow, or None for the local one, which pyarrow supports itself."""
        from pyarrow.fs import FSSpecHandler, PyFileSystem

        return None if is_local(self.fs) else PyFileSystem(FSSpecHandler(self.fs))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fs": None}

    # -- paths

    def _under(self, *parts: str) -> str:
        return "/".join([self.prefix_path.rstrip("/"), *parts])

    def _data(self, kind: str, idx: int | None) -> str:
        return self._paths[kind] if idx is None else f"{self._paths[kind]}.{idx}"

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return the folder for the training data of data set ``idx``. None selects the folder without a number."""
        return self._data("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return the folder for the validation data of data set ``idx``."""
        return self._data("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return the folder for the test data of data set ``idx``."""
        return self._data("test", idx)

    def saving_runs(self) -> bool:
        """Return True if checkpoints and logs are kept in the store."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Return the folder that contains a subfolder for each run."""
        return self._paths["runs"]

    def get_run_path(self, run_id: str) -> str:
        """Return the folder of a run."""
        return f"{self.get_runs_path()}/{run_id}"

    def get_checkpoint_filename(self) -> str:
        """Return the file name of a checkpoint in a run's folder."""
        return self._checkpoint_filename

    def get_checkpoint_path(self, run_id: str) -> str:
        """Return the path of a run's checkpoint."""
        return f"{self.get_run_path(run_id)}/{self._checkpoint_filename}"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return the names of a run's files that end with `suffix`, sorted by name."""
        folder = self.get_run_path(run_id)
        if not self.exists(folder):
            return []
        return sorted(path for path in self.fs.ls(folder, detail=False) if path.endswith(suffix))

    def get_logs_path(self, run_id: str) -> str:
        """Return the folder of a run's logs."""
        return f"{self.get_run_path(run_id)}/logs"

    def get_full_path(self, path: str) -> str:
        """Return the path with its protocol, which Spark requires."""
        return str(self.fs.unstrip_protocol(path))

    # -- files

    def exists(self, path: str) -> bool:
        """Return True if a file or folder exists at `path`."""
        # Clear fsspec's cache, because other processes might have written files in the meantime.
        self.fs.invalidate_cache()
        return bool(self.fs.exists(path))

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raises FileNotFoundError if it does not exist."""
        return bytes(self.fs.cat_file(path))

    def write(self, path: str, data: bytes) -> None:
        """Write or replace a file atomically. Raises StoreNotWritableError if this fails."""
        with self.new_file(path) as name, open(name, "wb") as file:
            file.write(data)

    def write_text(self, path: str, text: str) -> None:
        """Write or replace a text file atomically, in UTF-8. Raises StoreNotWritableError if this fails."""
        self.write(path, text.encode())

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents. Do nothing if it does not exist."""
        if self.exists(path):
            self.fs.rm(path, recursive=True)

    def is_parquet_dataset(self, path: str) -> bool:
        """Return True if the folder contains Parquet files."""
        return bool(self.parquet_files(path))

    def parquet_files(self, path: str) -> list[str]:
        """Return the Parquet files in a folder and its subfolders, sorted.

        Files whose names begin with ``_`` or ``.`` are ignored.
        """
        if not self.exists(path):
            return []
        found = (name for name in self.fs.find(path) if name.endswith(".parquet"))
        return sorted(name for name in found if name.rpartition("/")[2][0] not in "._")

    def check_writable(self, data: bool = True) -> None:
        """Check that files can be created and removed in the store.

        Args:
            data: True to check the paths for data sets in addition to the path for runs.

        Raises:
            StoreNotWritableError: If a file cannot be created or removed.
        """
        places = [self._paths["train"], self._paths["val"]] if data else []
        if self._save_runs:
            # Test the folder for runs. If it is local and does not exist, test its parent instead, because this check
            # must not create the folder.
            runs = self._paths["runs"]
            places.append(runs if is_local(self.fs) and not os.path.isdir(runs) else f"{runs}/")
        for place in {place.rpartition("/")[0]: place for place in places}.values():
            # An object store may allow writing only under a prefix, so the test file's name begins with the path to
            # test.
            probe = f"{place}.probe-{secrets.token_hex(4)}"
            self.write(probe, b"")
            try:
                self.fs.rm(probe)
            except Exception as error:  # Catch all exceptions, because each file system has its own exception types.
                raise StoreNotWritableError(
                    f"{probe} was written but cannot be removed: {type(error).__name__}: {error}; the store "
                    f"{self.prefix_path} must allow both"
                ) from error

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """Return a function that creates context managers for temporary local folders. Use it with ``sync_fn``."""
        return _local_folder

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """Return a function that copies the contents of a local folder to the run's folder."""
        return _Sync(self, self.get_run_path(run_id))

    def to_remote(self, run_id: str, dataset_idx: int | None = None) -> RemoteStore:
        """Return the parts of the store that ranks need for this run and data set."""
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
        """Yield the path of a local file to write. On exit, the file is moved to ``path`` atomically.

        Raises:
            StoreNotWritableError: If the file cannot be written.
        """
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
                    # Treat any exception as a failure, because exception types differ between file systems.
                    refused = Exception
                    self._upload(name, path)
        except refused as error:
            raise StoreNotWritableError(
                f"{path} cannot be written: {type(error).__name__}: {error}; the store is {self.prefix_path}"
            ) from error

    def _upload(self, name: str, path: str) -> None:
        """Copy the local file `name` to `path`.

        Use this method only for file systems with atomic uploads, such as object stores.
        """
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
    """Return True if the fsspec file system is the local file system."""
    return "file" in ([fs.protocol] if isinstance(fs.protocol, str) else fs.protocol)


def _flush(name: str) -> None:
    with open(name, "rb+") as file:
        os.fsync(file.fileno())
