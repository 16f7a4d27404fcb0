"""Errors of memory files on systems that forbid them."""

import errno
import os

import pytest

from horovod.common.contract import descriptors


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EPERM, r"memfd_create is refused \(Operation not permitted\).* seccomp"),
        (errno.ENOSYS, r"memfd_create is refused"),
        (errno.EMFILE, r"no file can be made in memory: Too many open files \(of this process: ulimit -n"),
        (errno.ENOMEM, r"no file can be made in memory: Cannot allocate memory"),
    ],
)
def test_it_says_what_is_in_the_way(monkeypatch, number, says):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(descriptors.MemoryFileError, match=says) as raised:
        descriptors.create_memory_file("x")
    assert raised.value.errno == number
