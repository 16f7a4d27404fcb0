"""The reason why a process ends, as reported to the launcher."""

import json
import os
import pickle
import signal
import subprocess
import sys

import pytest

from horovod.common.bootstrap import start
from horovod.common.contract.membership import Place
from horovod.common.contract.reasons import PIPE, Called, Ending, Left, ReportPipe, decode, encode, explained, name_of
from horovod.common.ending import Watch, reason
from horovod.common.exceptions import HorovodInternalError, RanksDisagreeError


def raised(error, cause=None, context=None):
    error.__cause__, error.__context__ = cause, context
    return error


def lost():
    return HorovodInternalError("rank 1 was lost")


class UnknownError(Exception):
    __module__ = "tensorflow.python.framework.errors_impl"


FOLLOWS = Ending(7, "lost", [1])
TOLD = Ending(7, "absent", [2], 3.0)


@pytest.mark.parametrize(
    ("error", "expected_end", "expected"),
    [
        (ValueError("bad"), None, Ending(7, "own")),
        (ValueError("bad"), ("lost", 1), Ending(7, "own")),
        (lost(), ("lost", 1), FOLLOWS),
        (lost(), ("left", 0), Ending(7, "left", [0])),
        (lost(), ("failed", -1), Ending(7, "failed")),
        (lost(), None, Ending(7, "failed")),
        (RanksDisagreeError("shape"), None, Ending(7, "own")),
        (RanksDisagreeError("shape"), ("left", 1), Ending(7, "own")),  # another rank failed first with the same error
        (raised(KeyError(1), cause=lost()), ("lost", 1), FOLLOWS),
        (raised(KeyError(1), context=raised(OSError(), context=lost())), ("lost", 1), FOLLOWS),
        (UnknownError(), ("lost", 1), FOLLOWS),
        (UnknownError(), None, Ending(7, "own")),
        (explained(ValueError("init"), TOLD), None, TOLD),
        (raised(SystemError(), context=explained(ValueError("init"), TOLD)), None, TOLD),
        (None, ("lost", 1), FOLLOWS),  # it was caught
        (None, None, Ending(7, "exit")),
    ],
)
def test_reason(error, expected_end, expected):
    assert reason(error, expected_end, None, 7) == expected


@pytest.mark.parametrize(
    "report", [Called(3), Left(3, "the process ended"), Ending(3, "own"), Ending(3, "absent", [1, 2], 1.5)]
)
def test_reports_travel(report):
    assert decode(encode(report).rstrip(b"\n")) == report


def test_reporting_never_blocks_or_fails(tmp_path):
    """Without a pipe, to a descriptor that is no pipe, to a full pipe, and without a reader."""
    read, write = os.pipe()
    path = f"/proc/{os.getpid()}/fd/{write}"
    file = tmp_path / "file"
    file.touch()
    for name in ("", "/nowhere", "a\0b:1", f"{file}:{file.stat().st_ino}", path, f"{path}:1"):
        ReportPipe(name).send(Called(0))
    assert file.read_bytes() == b""
    pipe = ReportPipe(name_of(path, write))
    for _ in range(10000):
        pipe.send(Called(0))
    got = os.read(read, 1 << 20)
    assert {decode(line) for line in got.splitlines()} == {Called(0)}
    os.close(read)
    pipe.send(Called(0))
    pipe.close()
    os.close(write)


class Rank:
    """A Watch, its pipe, and the calls that Python would make at exit."""

    def __init__(self, monkeypatch):
        self.printed = []
        monkeypatch.setattr(sys, "excepthook", lambda *error: self.printed.append(error[1]))
        self.read, write = os.pipe()
        os.set_blocking(self.read, False)
        monkeypatch.setenv(PIPE, name_of(f"/proc/{os.getpid()}/fd/{write}", write))
        self.ended = None
        self.watch = Watch(lambda: (self.ended, None))
        self.watch.begin(3)

    def raise_at_the_end(self, error):
        try:
            raise error
        except type(error):
            sys.excepthook(*sys.exc_info())

    def reports(self):
        try:
            return [decode(line) for line in os.read(self.read, 1 << 16).splitlines()]
        except BlockingIOError:
            return []


def deep_in_a_library():
    try:
        json.loads("{")
    except ValueError as error:
        return error, error.__traceback__


def test_each_rank_reports_each_thing_once(monkeypatch):
    rank = Rank(monkeypatch)
    assert rank.reports() == [Called(3, os.getpid())]
    rank.watch.leave("hvd.shutdown() was called")
    hook = sys.excepthook
    rank.watch.begin(3)  # again, after a shutdown
    assert sys.excepthook is hook
    assert rank.reports() == [Left(3, "hvd.shutdown() was called"), Called(3, os.getpid())]
    assert rank.watch.reason == "the process ended"
    error = ValueError("bad\nbatch")
    rank.raise_at_the_end(error)
    assert rank.reports() == [Ending(3, "own")]
    rank.watch.at_exit()
    assert rank.reports() == []
    assert rank.printed == [error]  # by the existing hook, and only once
    assert rank.watch.reason.startswith("it ended with ValueError: bad (in raise_at_the_end, test_ending.py:")
    sys.excepthook(json.JSONDecodeError, *deep_in_a_library())
    assert " (in deep_in_a_library, test_ending.py:" in rank.watch.reason
    sys.excepthook(KeyError, KeyError(), None)
    assert rank.watch.reason == "it ended with KeyError"


def test_dismissed_ranks_end_without_a_traceback(monkeypatch, capsys):
    rank = Rank(monkeypatch)
    place = Place(2, 5, 6, 1, 2, 0, 1, [])
    for last, line in (
        (None, "horovod: a new worker on host a is not let into the job: full"),
        (place, "horovod: rank 5 on host a leaves the job: full"),
    ):
        error = start._no_place("a", last, "full")
        assert isinstance(error, ValueError)
        assert pickle.loads(pickle.dumps(error)).line == line
        rank.raise_at_the_end(error)
        assert capsys.readouterr().err == line + "\n"
    assert "host a, local rank 1" in str(error)
    assert rank.printed == []


def test_a_rank_that_caught_the_error_reports_why_its_job_ended(monkeypatch):
    rank = Rank(monkeypatch)
    rank.reports()
    rank.ended = "lost", 1
    rank.watch.at_exit()
    assert rank.reports() == [Ending(3, "lost", [1])]
    monkeypatch.setattr(sys, "last_value", KeyError("own"), raising=False)  # the program's own hook has shown it
    rank.watch.begin(3)
    rank.watch.at_exit()
    assert rank.reports() == [Called(3, os.getpid()), Ending(3, "own")]


# A stop signal that reaches a process several times at once.

PROGRAM = """
import signal, sys
from horovod.common import ending
ending.SAME = float(sys.argv[1])
ending.stopping.listen([signal.SIGUSR1])
for _ in range(3):
    signal.raise_signal(signal.SIGUSR1)
assert ending.stopping.received == signal.SIGUSR1
"""


@pytest.mark.parametrize(("same", "code"), [("60", 0), ("0", -signal.SIGUSR1)], ids=["at once", "later"])
def test_a_second_interrupt_ends_at_once_but_not_a_repeated_warning(same, code):
    assert subprocess.run([sys.executable, "-c", PROGRAM, same], timeout=60, check=False).returncode == code


ASKS = """
import os
from unittest import mock
from horovod.common import ending
registered = []
os.register_at_fork = lambda **how: registered.append(how)
ending.largest = lambda number, name, frontend: number
for _ in range(3):
    assert not ending.should_stop(mock.Mock())
ending.stopping._leave()
assert not ending.should_stop(mock.Mock())
assert len(registered) == 1, registered
"""


@pytest.mark.parametrize("signals", ["SIGTERM,TERM", ","])
def test_fork_handlers_are_registered_once(signals):
    environ = {**os.environ, "HOROVOD_STOP_SIGNALS": signals}
    subprocess.run([sys.executable, "-c", ASKS], env=environ, timeout=60, check=True)
