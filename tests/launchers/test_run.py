"""horovod.run over a real mpirun."""

import contextlib
import io
import os
import tempfile
from pathlib import Path

import pytest

import horovod
from horovod.runner import WorkerError


@pytest.fixture
def open_mpi(mpirun_path, monkeypatch, tmp_path):
    """Put Open MPI on PATH; its files and ours go to a folder in which nothing may be left."""
    monkeypatch.setenv("PATH", f"{mpirun_path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    assert list(Path(tmp_path).glob(".horovod-run-*")) == []


def place(offset):
    from horovod.common.basics import HorovodBasics

    hvd = HorovodBasics("benchmark")
    hvd.init()
    found = hvd.rank() + offset, hvd.size(), hvd.local_rank()
    hvd.shutdown()
    print("done")
    return found


def fail():
    print("soon")
    raise KeyError("mine", os.environ["OMPI_COMM_WORLD_RANK"])


def test_results_come_by_rank(open_mpi):
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        results = horovod.run(place, (10,), num_proc=2, use_mpi=True, mpi_args="--oversubscribe")
    assert results == [(10, 2, 0), (11, 2, 1)]
    assert sorted(text.getvalue().splitlines()) == ["[0]<stdout>:done", "[1]<stdout>:done"]


def test_the_exception_of_a_worker_and_mpiruns_exit_code(open_mpi, capsys):
    with pytest.raises(KeyError) as caught:
        horovod.run(fail, num_proc=2, use_mpi=True, mpi_args="--oversubscribe")
    error = caught.value
    assert isinstance(error, WorkerError)
    assert error.args == ("mine", str(error.rank))
    assert error.exit_code != 0
    assert f"mpirun has ended: exit code {error.exit_code}" in str(error)
    assert 'raise KeyError("mine", os.environ["OMPI_COMM_WORLD_RANK"])' in str(error)
    shown = capsys.readouterr().err
    assert "Traceback" not in shown  # the error contains it already
    assert "<stderr>:KeyError: ('mine', '" in shown
