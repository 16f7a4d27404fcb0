"""Checkpoint locations at URLs, writers to them, and programs that end while they write."""

import os
import subprocess
import sys

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Growing(MemoryFileSystem):
    """A file system that shows files while they grow, and does not rename over an existing file, like HDFS."""

    protocol = "growing"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    sent: list = []  # noqa: RUF012
    breaks = False

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(str(path).replace("growing://", "memory://"))

    def put_file(self, lpath, rpath, **kwargs):
        self.sent.append(rpath.rpartition("/")[2])
        super().put_file(lpath, rpath, **kwargs)
        if self.breaks:
            self.pipe_file(rpath, self.cat_file(rpath)[:10])
            raise ConnectionResetError("the connection is lost")

    def mv(self, path1, path2, **kwargs):
        if self.exists(path2):
            raise FileExistsError(path2)
        self.cp_file(path1, path2)
        self.rm_file(path1)


fsspec.register_implementation("growing", Growing, clobber=True)


def names(url):
    filesystem, path = fsspec.core.url_to_fs(url)
    return sorted(name.rpartition("/")[2] for name in filesystem.ls(path, detail=False))


ENDS = """
import concurrent.futures, sys, time
import fsspec
from fsspec.implementations.local import LocalFileSystem
from horovod.common.elastic import Checkpoint


class Looking(LocalFileSystem):
    protocol = "looking"

    def put_file(self, lpath, rpath, **kwargs):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:  # as to look up a host's name
            pool.submit(super().put_file, lpath, rpath, **kwargs).result()

    @classmethod
    def _strip_protocol(cls, path):
        return LocalFileSystem._strip_protocol(str(path).removeprefix("looking://"))


fsspec.register_implementation("looking", Looking)


def dump(value, file):
    time.sleep(0.5)  # the program has ended
    file.write(value)


for url in sys.argv[1:]:
    Checkpoint(url, dump=dump).save(1, b"last")
"""


# Python 3.12.0 and 3.12.1 start no threads once the program has ended.
THREADS_AT_END = not (3, 12, 0) <= sys.version_info[:3] < (3, 12, 2)


def run_to_end(*urls, **variables):
    command = [sys.executable, "-c", ENDS, *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **variables})
    assert (done.returncode, done.stderr) == (0, "")
