"""Stores: where an estimator's data, checkpoints and logs lie, on any file system that fsspec knows."""

import os
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

from horovod.spark.common.checks import refuse
from horovod.spark.common.file_store import (
    AbstractFilesystemStore,
    RemoteStore,
    Store,
    StoreNotWritableError,
    is_local,
)

_DATABRICKS = re.compile(r"^(?:dbfs:/+|file:/+dbfs(?:/|$)|/dbfs(?:/|$))")
_MOUNT = "/dbfs"


class FilesystemStore(AbstractFilesystemStore):
    """On any file system of fsspec: a folder of this host or of a network, ``s3://``, ``gs://``, ``abfs://``."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        """As AbstractFilesystemStore."""
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        return True

    def _open(self) -> Any:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError("stores need fsspec: pip install 'horovod[spark]'") from error
        try:
            return fsspec.core.url_to_fs(self.prefix_path, **self.storage_options)[0]
        except ImportError as error:  # names the package of the protocol
            raise ImportError(f"the store {self.prefix_path} needs a package that is not here: {error}") from error
        except ValueError as error:
            raise ValueError(f"prefix_path is {self.prefix_path!r}, of which fsspec says: {error}") from error

    def _normal(self, path: str) -> str:
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        return super()._normal(path if "://" in path else os.path.abspath(path))


class LocalStore(FilesystemStore):
    """In a folder of this host, or one that all hosts have under this name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As AbstractFilesystemStore. Raises ValueError for a URL of another file system."""
        super().__init__(*args, **kwargs)
        if not is_local(self.fs):
            raise refuse("prefix_path", self.prefix_path, "a folder of this host")


class DBFSLocalStore(LocalStore):
    """On Databricks' file system, which driver and executors see under ``/dbfs``."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        """As AbstractFilesystemStore; ``dbfs:/x``, ``file:///dbfs/x`` and ``/dbfs/x`` are the same."""
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        return bool(_DATABRICKS.match(str(path)))

    def _normal(self, path: str) -> str:
        return super()._normal(_DATABRICKS.sub("/dbfs/", path))

    def check_writable(self, data: bool = True) -> None:
        """Raises StoreNotWritableError where there is no such file system either, and a folder of this host would be
        made in its place."""
        if not os.path.isdir(_MOUNT):
            raise StoreNotWritableError(
                f"{self.prefix_path} cannot be written: {_MOUNT} is not here, where Databricks has its file system on "
                "a cluster's driver and executors; elsewhere a store is a folder that all hosts share, or a URL"
            )
        super().check_writable(data)

    def wait_for(self, paths: Sequence[str]) -> None:
        """Files appear there with a delay: waits for DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS (30), looking every
        DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS (0.1)."""
        limit = float(os.environ.get("DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS", "30"))
        interval = float(os.environ.get("DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS", "0.1"))
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not all(self.exists(path) for path in paths):
            time.sleep(interval)
        super().wait_for(paths)


class HDFSStore(AbstractFilesystemStore):
    """On HDFS, through pyarrow and libhdfs."""

    def __init__(
        self,
        prefix_path: str,
        host: str | None = None,
        port: int | None = None,
        user: str | None = None,
        kerb_ticket: str | None = None,
        driver: str = "libhdfs",
        extra_conf: dict[str, str] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """``prefix_path``: ``hdfs://host:port/folder``, or a path with ``host`` and ``port``; without either Hadoop's
        own configuration says. ``user``, ``kerb_ticket``, ``extra_conf``: as of pyarrow.fs.HadoopFileSystem. The rest
        is AbstractFilesystemStore's.

        Raises ValueError for another ``driver``, ImportError where libhdfs is not, ConnectionError where no HDFS
        answers."""
        if driver != "libhdfs":
            raise refuse("driver", driver, "'libhdfs'")
        match = re.fullmatch(r"hdfs://([^/:]*)(?::(\d+))?(/.*)?", prefix_path)
        if match is None and "://" in prefix_path:
            raise refuse("prefix_path", prefix_path, "hdfs://host:port/folder")
        name, number, path = match.groups() if match else (None, None, prefix_path)
        self._host = host or name or "default"
        self._port = port or int(number or 0)
        self._options = {"user": user, "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        super().__init__(path or "/", *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        return str(path).startswith("hdfs://")

    def _open(self) -> Any:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import HadoopFileSystem

        try:
            return ArrowFSWrapper(HadoopFileSystem(self._host, self._port, **self._options))
        except OSError as error:
            if "libhdfs" in str(error) or "libjvm" in str(error):
                raise ImportError(
                    "HDFSStore needs Hadoop's libhdfs and a Java, found by HADOOP_HOME, CLASSPATH and JAVA_HOME (or "
                    f"ARROW_LIBHDFS_DIR): {error}"
                ) from error
            raise ConnectionError(f"no HDFS answers at {self._host}:{self._port}: {error}") from error

    def _data(self, kind: str, idx: int | None) -> str:
        """With the protocol: ``spark.write.parquet`` takes a path without one for Hadoop's default file system, and
        other programs' readers for a file of this host."""
        return self.get_full_path(super()._data(kind, idx))

    def get_full_path(self, path: str) -> str:
        if "://" in path:
            return path
        where = "" if self._host == "default" else self._host + (f":{self._port}" if self._port else "")
        return f"hdfs://{where}{path}"

    def _upload(self, name: str, path: str) -> None:
        part = f"{path}.{secrets.token_hex(4)}.tmp"  # a file that is being written can be seen there
        self.fs.put_file(name, part)
        if self.fs.exists(path):
            self.fs.rm(path)
        self.fs.mv(part, path)


Store._kinds[:] = [HDFSStore, DBFSLocalStore, FilesystemStore]

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "RemoteStore",
    "Store",
    "StoreNotWritableError",
]
