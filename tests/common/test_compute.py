"""How the parts of a data service find each other."""

import logging
import threading

import pytest

from horovod.common import compute
from horovod.common.compute import ComputeClient, ComputeService

KEY = b"k" * 32


@pytest.fixture
def service():
    with ComputeService(2, 1, KEY, {"lo"}) as service:
        yield service


def client(service, **more):
    return ComputeClient(service.addresses(), KEY, **more)


def test_dispatchers_and_workers_meet(service, caplog):
    caplog.set_level(logging.INFO, "horovod.data")
    with client(service) as dispatcher, client(service, verbose=2) as worker, client(service) as training:
        assert (dispatcher.dispatchers(), dispatcher.here) == (2, "127.0.0.1")
        dispatcher.register_dispatcher(1, "host:1234")
        assert worker.wait_for_dispatcher_registration(1, 60) == "host:1234"
        worker.register_worker_for_dispatcher(1, 0)
        training.wait_for_dispatcher_worker_registration(1, 1, 60)
    assert [record.getMessage() for record in caplog.records] == ["worker 0 of dispatcher 1 is there"]


def test_missing_parts_are_named(service):
    with client(service) as one:
        with pytest.raises(TimeoutError, match=r"waited 0\.1 s for dispatcher 0 of the data service"):
            one.wait_for_dispatcher_registration(0, 0.1)
        one.register_worker_for_dispatcher(0, 1)
        with pytest.raises(TimeoutError, match=r"workers of dispatcher 0 .*: worker.0.0, worker.0.2 did not come"):
            one.wait_for_dispatcher_worker_registration(0, 3, 0.1)


def test_all_workers_end_when_none_is_needed(service):
    finished = []

    def work(number):
        with client(service) as one:
            one.register_worker_for_dispatcher(number, 0)
            here.release()
            one.wait_for_shutdown(number)
            finished.append(number)
            one.leave(number, 0)

    here = threading.Semaphore(0)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert here.acquire(timeout=60)
    with client(service) as training:
        training.end_dispatcher(1)
        threads[1].join(60)
        assert finished == [1]
        training.shutdown()
    service.wait_for_shutdown()
    assert sorted(finished) == [0, 1]
    for thread in threads:
        thread.join(60)


def waits(service, expected, patience=60):
    """Return a dispatcher that ends after its readers, and the thread in which it waits."""

    def work():
        with client(service) as dispatcher:
            dispatcher.wait_for_readers(0, expected, patience)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_dispatcher_waits_for_its_readers(service, monkeypatch, caplog):
    monkeypatch.setattr(compute, "_READERS_SECONDS", 0.1)
    with client(service) as one, client(service) as other:
        assert [one.register_reader(0), other.register_reader(0), other.register_reader(1)] == [0, 1, 0]
        thread = waits(service, 2)
        one.end_reader(0, 0)
        thread.join(0.5)
        assert thread.is_alive()
        other.end_reader(0, 1)
        thread.join(60)
        assert not thread.is_alive()
        thread = waits(service, 3)
        thread.join(0.5)
        assert thread.is_alive(), "the third has not come yet"
        one.end_reader(0, one.register_reader(0))
        thread.join(60)
        assert not thread.is_alive()
    assert caplog.records == []


@pytest.mark.heavy
def test_closed_readers_are_not_waited_for(service, monkeypatch, caplog):
    monkeypatch.setattr(compute, "_READERS_SECONDS", 0.1)
    with client(service) as one:
        one.register_reader(0)
        thread = waits(service, 3, 3)
        for _ in range(40):
            one.send_reader_heartbeat(0, 0)
            thread.join(0.1)
        assert thread.is_alive(), "one lives"
        thread.join(60)
        assert not thread.is_alive()
    assert "of those that read of it 1 have not said for 3 s that they live, and 2 have not come" in caplog.text


def test_connections_need_the_key(service, monkeypatch):
    monkeypatch.setattr(compute, "_REPLY_SECONDS", 0.2)
    with pytest.raises(
        ConnectionError, match=r"no data service answers at 127.0.0.1:\d+ \(no answer: no data service, or"
    ):
        ComputeClient(service.addresses(), b"x" * 32)
    with pytest.raises(ValueError, match=r"addresses must have at least one address, got \{\}"):
        ComputeClient({}, KEY)


def test_lost_service(monkeypatch, caplog):
    monkeypatch.setattr(compute, "_SILENCE_SECONDS", 0.1)
    service = ComputeService(1, 1, KEY, {"lo"})
    one = client(service)
    service.close()
    service.close()
    one.wait_for_shutdown(0)
    assert caplog.text.count("the data service is gone") == 1
    assert not one.is_over(0, 0.1)
    one.close()
    with pytest.raises(ConnectionError, match=r"127.0.0.1:\d+ \(.*refused"):
        client(service)


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match=r"nics must be among .*lo.*, got nowhere9"):
        ComputeService(1, 1, KEY, {"lo", "nowhere9"})
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match=rf"dispatchers must be an integer of at least 1, got {wrong!r}"):
            ComputeService(wrong, 1, KEY)
        with pytest.raises(ValueError, match=rf"workers_per_dispatcher must be .*, got {wrong!r}"):
            ComputeService(1, wrong, KEY)
