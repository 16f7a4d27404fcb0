"""Files with what each rank has written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from horovod.common.contract import private_files
from horovod.common.contract.private_files import closing, open_folder

STREAMS = {1: "stdout", 2: "stderr"}
_TOP = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class RankFileError(OSError):
    """A file of a rank's output cannot be written; the text names it and says why."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror, str(path))
        self.path = path

    def __str__(self) -> str:
        return f"rank file {self.path}: {self.strerror}"


class RankFiles:
    """DIR/rank.<zero-padded rank>/stdout and stderr, with the bytes of each worker as they came.

    Where workers come and go these are those that the job begins with; each that comes later (`join`) has a folder of
    its own, DIR/worker.<number>.

    DIR may be a symbolic link. What lies in it others may have prepared: links there are not followed, and only plain
    files are written. Raises RankFileError, an OSError, when a directory or file cannot be made or written.
    """

    def __init__(self, directory: str, size: int) -> None:
        width = len(str(size - 1))
        self._files: dict[tuple[int, int], int] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self._top = Path(directory)
        self._make({rank: f"rank.{rank:0{width}}" for rank in range(size)})

    def join(self, worker: int) -> None:
        """Makes the files of this one, unless it has some."""
        if (worker, 1) not in self._files:
            self._make({worker: f"worker.{worker}"})

    def _make(self, folders: Mapping[int, str]) -> None:
        path = self._top
        try:
            self._top.mkdir(parents=True, exist_ok=True)
            with closing(os.open(self._top, _TOP)) as at:
                for rank, folder in folders.items():
                    path = self._top / folder
                    with closing(open_folder(folder, at, make=True)) as inside:
                        for stream, name in STREAMS.items():
                            path = self._top / folder / name
                            self._files[rank, stream] = _create(inside, name)
                            self._paths[rank, stream] = path
        except OSError as error:
            self.close()
            raise RankFileError(path, error) from None

    def finish(self, worker: int) -> None:
        """One of several that come and go has ended; what is written of it later is opened for that alone."""
        for stream in STREAMS:
            if (fd := self._files.pop((worker, stream), None)) is not None:
                try:
                    os.close(fd)
                except OSError as error:
                    raise RankFileError(self._paths[worker, stream], error) from None

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Append. After an error the file has the bytes that fitted."""
        fd = self._files.get((rank, stream))
        path = self._paths[rank, stream]
        try:
            if fd is not None:
                _write(fd, data)
                return
            with (
                closing(os.open(self._top, _TOP)) as at,
                closing(open_folder(path.parent.name, at, make=True)) as inside,
                closing(private_files.open_file(path.name, os.O_WRONLY | os.O_APPEND, inside)) as again,
            ):
                _write(again, data)
        except OSError as error:
            raise RankFileError(path, error) from None

    def close(self) -> None:
        """Close all files. Some file systems tell only now that they are full."""
        files, self._files = self._files, {}
        failed: RankFileError | None = None
        for key, fd in files.items():
            try:
                os.close(fd)
            except OSError as error:
                failed = failed or RankFileError(self._paths[key], error)
        if failed is not None:
            raise failed


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _create(at: int, name: str) -> int:
    """An empty file of this name in the folder."""
    fd = private_files.open_file(name, os.O_WRONLY, at)
    try:
        os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd
