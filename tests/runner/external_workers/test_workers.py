"""Resources that a driver opens for its workers, and cleanup if that fails."""

import subprocess
import sys

import pytest

from horovod.runner.external_workers import workers
from horovod.runner.external_workers.workers import ExternalWorkers

PROGRAM = """
import resource, sys
from horovod.runner.external_workers import workers, assignment
soft, hard, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
servers, description = None, assignment.describe()
try:
    servers = workers.ExternalWorkers("127.0.0.1", lambda number, how: None)
    for number in range(count):
        servers.assign(number, description, {}, 1.0)
except ValueError as error:
    sys.exit(f"{'ExternalWorkers' if servers is None else number}: {error}")
finally:
    if servers is not None:
        servers.close()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def run(*numbers):
    command = [sys.executable, "-c", PROGRAM, *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.heavy
def test_descriptor_limits_allow_all_assigned_workers():
    done = run(64, 2000, 100)
    assert done.returncode == 0, done.stderr
    assert 4 * 100 * 8 / 7 < int(done.stdout) < 1000
    assert run(900, 2000, 10).stdout == "900\n"


def test_too_low_limits_are_named():
    done = run(64, 300, 100)
    assert done.returncode == 1
    number, _, reason = done.stderr.partition(": ")
    assert 20 < int(number) < 60
    assert reason.startswith("this process may have 300 files open, but in this job it needs 30")
    assert run(40, 60, 1).stderr.startswith("ExternalWorkers: this process may have 60 files open")


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_failed_starts_close_their_sockets(monkeypatch, failing):
    listening, listen = [], workers.listen

    def fail(address):
        if len(listening) == failing:
            raise ValueError("no more files")
        listening.append(listen(address))
        return listening[-1]

    monkeypatch.setattr(workers, "listen", fail)
    if failing == 3:
        monkeypatch.setattr(workers, "LivenessServer", lambda *args: fail(""))
    with pytest.raises(ValueError, match="no more files"):
        ExternalWorkers("127.0.0.1", lambda number, how: None)
    assert len(listening) == failing
    assert [one.fileno() for one in listening] == [-1] * failing
