"""Output files of the ranks, one file per rank and stream."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from horovod.common.contract import private_files
from horovod.common.contract.private_files import closing, open_folder

STREAMS = {1: "stdout", 2: "stderr"}
_TOP = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class RankFileError(OSError):
    """Error raised if an output file of a rank cannot be written. The message contains the path and the reason."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(error.errno, error.strerror, str(path))
        self.path = path

    def __str__(self) -> str:
        return f"rank file {self.path}: {self.strerror}"


class RankFiles:
    """Output files of all ranks: DIR/rank.<zero-padded rank>/stdout and DIR/rank.<zero-padded rank>/stderr.

    In an elastic job, DIR/rank.N is for the initial workers. Later workers, added by `join`, write to
    DIR/worker.<number>.

    DIR can be a symbolic link. Links inside DIR are not followed, because other users could have created them. Only
    regular files are written. Methods raise RankFileError, an OSError, if a folder or file cannot be created or
    written.
    """

    def __init__(self, directory: str, size: int) -> None:
        width = len(str(size - 1))
        self._files: dict[tuple[int, int], int] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self._top = Path(directory)
        self._make({rank: f"rank.{rank:0{width}}" for rank in range(size)})

    def join(self, worker: int) -> None:
        """Create the output files of a worker if they do not exist yet."""
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
        """Close the output files of a worker that has exited. A later `write` reopens them."""
        for stream in STREAMS:
            if (fd := self._files.pop((worker, stream), None)) is not None:
                try:
                    os.close(fd)
                except OSError as error:
                    raise RankFileError(self._paths[worker, stream], error) from None

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Append data to an output file. If an error occurs, part of the data might already be in the file."""
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
        """Close all output files. Some file systems report a full disk only on close."""
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
    """Create or truncate the file `name` in the open folder `at`, and return its descriptor."""
    fd = private_files.open_file(name, os.O_WRONLY, at)
    try:
        os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise
    return fd
