"""MPI_Finalize may take as long as the neighbours live, and a little longer."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from horovod.common.bootstrap import mpi


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Connections between this rank's engine and two others'."""
    sockets = [socket.socketpair() for _ in range(2)]
    yield sockets
    for pair in sockets:
        for sock in pair:
            sock.close()


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(mpi, "GRACE", 0.2)
    monkeypatch.setattr(mpi, "_SLICE", 0.01)
    yield
    mpi.note_links([])
    mpi.keep_links()


def engine_has_ended(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    mpi.note_links((f"rank {i}", local.fileno()) for i, (local, _) in enumerate(pairs))
    mpi.keep_links()
    for local, _ in pairs:
        local.close()


def after(looks: int) -> Callable[[float], bool]:
    left = iter([False] * looks + [True])

    def closed(seconds: float) -> bool:
        assert 0 < seconds < 1
        return next(left)

    return closed


def never(seconds: float) -> bool:
    return False


def test_waiting_for_peers_to_finish_is_silent(pairs):
    engine_has_ended(pairs)
    lines: list[str] = []
    assert mpi.wait_for_finalize(after(30), lines.append)
    assert lines == []
    assert pairs[0][1].recv(1) == b""  # now the others see that this rank is done


def test_neighbours_that_exited_are_named_after_the_grace(pairs):
    engine_has_ended(pairs)
    pairs[1][1].send(b"what its engine has still said")
    pairs[1][1].close()
    lines: list[str] = []
    assert not mpi.wait_for_finalize(never, lines.append)
    assert len(lines) == 1
    assert "MPI_Finalize waits for all processes of the job, but rank 1 has ended" in lines[0]


def test_leaving_ends_the_process_with_code_and_output():
    program = "from horovod.common.bootstrap.mpi import atexit, exit_at_once; print(1); atexit.register(exit_at_once)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stdout == "1\n"
