"""Reading ahead: order, errors, shutdown, and no leftover thread."""

import gc
import threading
import traceback

import pytest

from horovod.common.training_loop.steps import marks
from horovod.data import ReadAhead, loader


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "horovod-data"]


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    if readers():
        gc.collect()
    assert readers() == []


@pytest.mark.parametrize("depth", [1, 2, 100])
def test_messages_arrive_in_order(depth):
    with ReadAhead(range(50), depth) as numbers:
        assert list(numbers) == list(range(50))
        assert readers() == []
        assert list(numbers) == [], "the end stays the end"


def test_loading_ahead_is_bounded():
    produced, enough = [], threading.Event()

    def source():
        for number in range(100):
            produced.append(number)
            if number == 4:
                enough.set()
            yield number

    with ReadAhead(source, 3) as numbers:
        assert next(numbers) == 0
        assert enough.wait(60), "one is taken, three wait, and one is in its hands"
        assert produced == [0, 1, 2, 3, 4]


def fails(number):
    raise KeyError(f"sample {number}")


def test_errors_are_raised_in_order_with_their_traceback():
    def source():
        yield 1
        yield 2
        fails(3)

    got, numbers = [], ReadAhead(source, 8)
    with pytest.raises(KeyError, match="sample 3") as caught:
        got.extend(iter(lambda: next(numbers), None))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert got == [1, 2]
    assert names[-2:] == ["source", "fails"]
    assert next(numbers, "the end") == "the end"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration(), MemoryError()])
def test_any_exception_of_the_source(error):
    class Source:
        def __iter__(self):
            raise error

    numbers = ReadAhead(Source())
    if isinstance(error, StopIteration):
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(numbers)
    else:
        with pytest.raises(type(error)):
            next(numbers)


def test_early_stops_close_the_source_in_its_own_thread():
    closed = []

    def source():
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    with ReadAhead(source) as numbers:
        assert next(numbers) == 1
    assert closed == ["horovod-data"]
    numbers.close()
    del numbers
    numbers = ReadAhead(source)
    assert next(numbers) == 1
    del numbers
    gc.collect()
    assert closed == ["horovod-data"] * 2


def test_a_hanging_source_is_reported_and_does_not_block_exit(monkeypatch, caplog):
    monkeypatch.setattr(loader, "CLOSE_SECONDS", 0.05)
    go_on = threading.Event()

    def source():
        go_on.wait()
        yield 1

    numbers = ReadAhead(source)
    thread = readers()[0]
    numbers.close()
    assert "a data loader has not returned within 0.05 s" in caplog.text
    assert thread.daemon
    go_on.set()
    thread.join(60)


def test_invalid_arguments_are_refused():
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ValueError, match=rf"depth must be an integer of at least 1, got {wrong!r}"):
            ReadAhead(range(3), wrong)


def test_waits_for_data_count_once():
    reported = []
    marks.open(reported.append, lambda: None)
    try:
        with ReadAhead(iter([1, 2])) as numbers:
            assert list(numbers) == [1, 2]
        assert marks.data_seen
        marks.tell()
        marks.tell()
    finally:
        marks.close()
    assert reported[0] > 0
    assert reported[1] == 0
