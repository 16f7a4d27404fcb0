"""Jobs in which no rank calls hvd.init()."""

import shlex

import pytest

from horovod.runner.job.progress import FIRST_LOOK, UninitializedJobCheck, runs_python


@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "/usr/bin/python3.11 -u -X dev train.py --epochs 3",
        "python -m package.train",
        "./train.py",
        "env A=1 nice -n 5 python3 train.py",
        "bash -c 'cd x&&python train.py; echo done'",
        "sh -ec 'exec ./train.py'",
        "bash --norc -c 'python train.py'",
        "python -u -mpackage.train",
        "pypy3 train.py",
    ],
)
def test_commands_that_run_python(command):
    assert runs_python(shlex.split(command))


@pytest.mark.parametrize(
    "command",
    [
        "sh -c 'horovodrun -np 2 python train.py'",
        "/opt/bin/horovodrun -np 2 python train.py",
        "hostname",
        "nvidia-smi -L",
        "python -c 'print(1)' train.py",
        "python -Bc pass",
        "python --version",
        "python -V",
        "python",
        "bash train.sh",
        "bash -c 'echo python'",
        """bash -c "it's python train.py" """,
        "bash -c",
        "bash -c 'ls host:python b'",
        "bash train.sh -c 'python train.py'",
        "python -",
        "python --help",
        "cat train.python",
        "pythonic train",
    ],
)
def test_commands_that_do_not_run_python(command):
    assert not runs_python(shlex.split(command))


def test_missing_init_in_the_first_minute():
    job = UninitializedJobCheck(4, ["python", "train.py"])
    assert job.next_time() is None
    job.started(100.0)
    assert job.next_time() == 100.0 + FIRST_LOOK
    assert job.early(130.0, called=False) == ""
    message = job.early(160.0, called=False)
    assert message.startswith("still starting: after 60 s no rank has called hvd.init() yet. Imports and data may take")
    assert "runs as 4 copies" in message
    assert job.early(161.0, called=False) == ""  # only once
    assert job.next_time() is None
    called = UninitializedJobCheck(4, ["python", "train.py"])
    called.started(0.0)
    assert called.early(60.0, called=True) == ""
    two = UninitializedJobCheck(2, ["./train.py"])
    two.started(0.0)
    assert two.early(60.0, called=False)
    assert two.late(called=False).startswith("warning: no rank has called hvd.init(), so the same program ran 2 t")
    assert two.late(called=True) == ""
    for other in (
        UninitializedJobCheck(1, ["python", "train.py"]),
        UninitializedJobCheck(4, ["hostname"]),
        UninitializedJobCheck(4, []),
    ):
        other.started(0.0)
        assert other.next_time() is None
        assert other.late(called=False) == ""
