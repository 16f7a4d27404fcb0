"""The exception of horovod.run: it inherits from two classes where possible, with fallbacks."""

import pickle
import traceback

import pytest

from horovod.runner.function.outcome import WorkerError, worker_error


class Coded(Exception):
    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")
        self.code = code


class Slotted(Exception):
    __slots__ = ("place",)


class Picky(Exception):
    def __init_subclass__(cls, **options):
        raise TypeError("no children")


class Renamed(KeyError):
    def __str__(self):
        return "other words"


def slotted():
    error = Slotted("x")
    error.place = 7
    return error


@pytest.mark.parametrize(
    ("cause", "attributes"),
    [
        (ValueError("no data"), {"args": ("no data",)}),
        (KeyError("k"), {"args": ("k",)}),
        (OSError(2, "not there", "/f"), {"errno": 2, "strerror": "not there", "filename": "/f"}),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), {"start": 0, "reason": "bad", "object": b"\xff"}),
        (ImportError("m", name="numpyy"), {"name": "numpyy"}),
        (Coded(7, "late"), {"code": 7, "args": ("late (7)",)}),
        (Renamed("k"), {"args": ("k",)}),
        (slotted(), {"place": 7}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_error_has_both_classes(cause, attributes):
    error = worker_error("rank 1 failed first", 1, "host1", 1, "Traceback", cause)
    for kind in (WorkerError, RuntimeError, type(cause)):
        assert isinstance(error, kind)
    assert str(error) == "rank 1 failed first"
    assert (error.rank, error.host, error.exit_code, error.remote_traceback) == (1, "host1", 1, "Traceback")
    assert error.cause is error.__cause__ is cause
    assert {name: getattr(error, name) for name in attributes} == attributes
    shown = "".join(traceback.format_exception(error))
    assert f"WorkerError({type(cause).__name__}): rank 1 failed first" in shown


def test_the_error_can_be_pickled_itself():
    error = pickle.loads(pickle.dumps(worker_error("text", 1, "host1", 3, "Traceback", OSError(2, "not there", "/f"))))
    assert isinstance(error, FileNotFoundError)
    assert (str(error), error.rank, error.host, error.exit_code, error.filename) == ("text", 1, "host1", 3, "/f")


@pytest.mark.parametrize(
    "cause",
    [
        None,
        RuntimeError("is what it is already"),
        Exception("too"),
        SyntaxError("printed in its own way", ("f.py", 1, 1, "(", 1, 1)),
        StopIteration(3),
        KeyboardInterrupt(),
        Picky("cannot be joined"),
        WorkerError("of a job in a job"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_that_cannot_be_combined(cause):
    error = worker_error("rank 1 failed first", 1, "host1", 1, "", cause)
    assert type(error) is WorkerError
    assert error.__cause__ is cause
    assert "WorkerError: rank 1 failed first" in "".join(traceback.format_exception(error))


class Odd(Exception):
    name = "of the class"

    def itself(self):
        return self


def test_methods_of_the_cause_receive_the_error():
    error = worker_error("odd", cause=Odd())
    error.name = "mine"
    assert (error.itself() is error, error.name, error.cause.name) == (True, "mine", "of the class")
