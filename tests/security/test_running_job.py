"""Strangers attack a running job: it continues undisturbed, and nothing that they send is executed."""

import pickle

import pytest

from horovod.common.contract.worker_env import make_key
from tests.runner.launching import python, running
from tests.security.jobs import PATIENCE, WORKER, listeners_of, wait_for, workers_of
from tests.security.strangers import Loiterers, all_messages, attack, greets_only, pickles

SIZE = 3
FLOOD = 100  # connections for each listener; a rank's queue takes 67, and its handshakes 65 strangers


@pytest.fixture(params=["auto", pytest.param("tcp", marks=pytest.mark.heavy)])
def job(request, tmp_path):
    """Yield a job whose last rank waits for the file "go" before it calls init; the file "end" ends it."""
    arguments = ["-np", str(SIZE), "--log-level", "DEBUG", *python(WORKER), str(tmp_path)]
    environment = {
        "HOROVOD_TRANSPORT": request.param,
        "HOROVOD_START_TIMEOUT": "120",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",  # links may wait for slots until the strangers' time is up
    }
    with running(arguments, environment=environment) as job:
        yield job


@pytest.mark.heavy
def test_a_job_under_attack_continues_and_executes_nothing(job, tmp_path):
    marker = tmp_path / "executed"
    messages = all_messages(marker, make_key())
    wait_for(lambda: list(tmp_path.glob("ready-*")), SIZE)
    pids = job.left()
    listeners = wait_for(lambda: listeners_of(pids), 1 + 2 * (SIZE - 1))
    assert {listener.address for listener in listeners if listener.kind == "tcp"} <= {"127.0.0.1", "::1"}
    with Loiterers(listeners, FLOOD) as loiterers:
        replies = attack(listeners, messages, seconds=0.3)
        (tmp_path / "go").touch()
        while not list(tmp_path.glob("formed-*")):
            replies += attack(listeners, messages[:40], seconds=0.1)
        wait_for(lambda: list(tmp_path.glob("formed-*")), SIZE)

        workers = workers_of(job)
        assert len(workers) == SIZE
        sockets = listeners_of(workers)  # rank 0's, for horovodrun --explain; it reads nothing
        assert [one.address.startswith(b"\0horovod-explain-") for one in sockets] == [True]
        attack(sockets, messages[:10], seconds=0.3)
        store = [listener for listener in listeners_of(job.left()) if listener not in sockets]
        assert len(store) == 1
        replies += attack(store, messages, seconds=0.3)
    (tmp_path / "end").touch()
    done = job.finish(PATIENCE)
    assert done.code == 0, done.err
    assert done.out.count("all sums right") == SIZE, done.out
    assert loiterers.opened > FLOOD * len(listeners)  # dropped ones reconnected
    assert not marker.exists()
    assert all(greets_only(reply) for reply in replies)
    assert "Traceback" not in done.err


def test_malicious_pickles_would_execute(tmp_path):
    """Otherwise the test above could not fail."""
    for number, body in enumerate(pickles(tmp_path / "executed")):
        pickle.loads(body)
        assert (tmp_path / "executed").exists(), number
        (tmp_path / "executed").unlink()
