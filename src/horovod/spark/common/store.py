"""Stores for the data, checkpoints and logs of an estimator, on all file systems that fsspec supports."""

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
    """Store on any fsspec file system, such as a local or shared folder, ``s3://``, ``gs://`` or ``abfs://``."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        """Open the store. The arguments are the same as those of AbstractFilesystemStore."""
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
        except ImportError as error:  # fsspec's error names the missing package for this kind of URL.
            raise ImportError(f"the store {self.prefix_path} needs a package that is not installed: {error}") from error
        except ValueError as error:
            raise ValueError(
                f"prefix_path must be a path or URL that fsspec can open, got {self.prefix_path!r}: {error}"
            ) from error

    def _normal(self, path: str) -> str:
        if path.startswith("file:"):
            path = "/" + path.removeprefix("file:").lstrip("/")
        return super()._normal(path if "://" in path else os.path.abspath(path))


class LocalStore(FilesystemStore):
    """Storage in a local folder, or in a shared folder that has the same path on all hosts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Open the store. The arguments are the same as those of AbstractFilesystemStore.

        Raises:
            ValueError: If ``prefix_path`` is the URL of another file system.
        """  # noqa: DOC501
        super().__init__(*args, **kwargs)
        if not is_local(self.fs):
            raise refuse("prefix_path", self.prefix_path, "a folder of this host")


class DBFSLocalStore(LocalStore):
    """Store on the Databricks file system, which is mounted at ``/dbfs`` on the driver and all executors."""

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        """Open the store. The arguments are the same as those of AbstractFilesystemStore.

        The paths ``dbfs:/x``, ``file:///dbfs/x`` and ``/dbfs/x`` refer to the same folder.
        """
        super().__init__(prefix_path, *args, **kwargs)

    @classmethod
    def matches(cls, path: str) -> bool:
        return bool(_DATABRICKS.match(str(path)))

    def _normal(self, path: str) -> str:
        return super()._normal(_DATABRICKS.sub("/dbfs/", path))

    def check_writable(self, data: bool = True) -> None:
        """Check that the store is writable, as described in AbstractFilesystemStore.

        Raises:
            StoreNotWritableError: If ``/dbfs`` does not exist, which would otherwise be created as a local folder.
        """
        if not os.path.isdir(_MOUNT):
            raise StoreNotWritableError(
                f"{self.prefix_path} cannot be written: {_MOUNT} does not exist, where Databricks mounts its file "
                "system; outside of Databricks use a folder that all hosts share, or a URL"
            )
        super().check_writable(data)

    def wait_for(self, paths: Sequence[str]) -> None:
        """Wait until new files are visible, which takes some time on this file system.

        The interval between checks is DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS (default: 0.1). The time limit
        is DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS (default: 30).
        """
        limit = float(os.environ.get("DATABRICKS_FILE_AVAILABILITY_WAIT_TIMEOUT_SECS", "30"))
        interval = float(os.environ.get("DATABRICKS_FILE_AVAILABILITY_CHECK_INTERVAL_SECS", "0.1"))
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not all(self.exists(path) for path in paths):
            time.sleep(interval)
        super().wait_for(paths)


class HDFSStore(AbstractFilesystemStore):
    """Store on HDFS, accessed with pyarrow and libhdfs."""

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
        """Connect to HDFS and set the paths.

        Args:
            prefix_path: ``hdfs://host:port/folder``, or a path.
            host: Host of the name node. The default is the host in the URL, or else in Hadoop's configuration.
            port: Port of the name node. The default is the port in the URL, or else in Hadoop's configuration.
            user: User name. See pyarrow.fs.HadoopFileSystem.
            kerb_ticket: Path of the Kerberos ticket cache. See pyarrow.fs.HadoopFileSystem.
            driver: Must be "libhdfs".
            extra_conf: Additional Hadoop settings. See pyarrow.fs.HadoopFileSystem.
            *args: Additional arguments of AbstractFilesystemStore.
            **kwargs: Additional keyword arguments of AbstractFilesystemStore.

        Raises:
            ValueError: If ``driver`` or ``prefix_path`` is invalid.
            ImportError: If libhdfs is not found.
            ConnectionError: If HDFS does not respond.
        """  # noqa: DOC501
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
        """Return the URL of a data set.

        Given a path without a protocol, ``spark.write.parquet`` would use Hadoop's default file system, and other
        readers would use the local one.
        """
        return self.get_full_path(super()._data(kind, idx))

    def get_full_path(self, path: str) -> str:
        if "://" in path:
            return path
        where = "" if self._host == "default" else self._host + (f":{self._port}" if self._port else "")
        return f"hdfs://{where}{path}"

    def _upload(self, name: str, path: str) -> None:
        # Write under a temporary name, because HDFS makes files visible before they are complete.
        part = f"{path}.{secrets.token_hex(4)}.tmp"
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
