"""Suggestions for misspelt commands."""

import sys

import pytest

from horovod.runner import launch
from horovod.runner.base.job_result import LaunchError
from horovod.runner.command import cli, command_line
from tests.runner.launching import python


def refused(capfd, *argv):
    """Return the launcher's error for a command that it does not start."""
    assert launch.main(argv) == 2
    out, err = capfd.readouterr()
    assert out == ""
    return err


@pytest.mark.parametrize(
    ("flag", "advice"),
    [
        ("--nproc-per-node", "use -np N, the number of processes in all"),
        ("--nproc_per_node=4", "use -np N, the number of processes in all"),
        ("--num-gpus", "use -np N"),
        ("--gpus-per-task=1", "did you mean --gpus-per-worker N?"),
        ("--output-dir", "did you mean --output-filename DIR?"),
        ("--num_proc", "did you mean --num-proc?"),
        ("--Verbose", "did you mean --verbose?"),
        ("-x", "the environment is passed on"),
        ("--machinefile", "--hostfile"),
        ("-np4", "did you mean -np?"),
        ("--xyzzy", ""),
    ],
)
def test_an_unknown_flag(flag, advice):
    with pytest.raises(LaunchError) as caught:
        cli.parse([flag, "2", "python", "train.py"])
    text = str(caught.value)
    assert text.startswith(f"unknown flag {flag.partition('=')[0]}")
    assert advice in text
    assert advice or text.endswith("--xyzzy")


@pytest.mark.parametrize("number", [["-np", "4"], ["-np4"], ["--num-proc=4"], ["-n", "4"]])
def test_the_number_of_processes_behind_the_command(number, capfd):
    output = refused(capfd, *python("print('ran')"), *number)
    assert f"error: {' '.join(number)} must precede the command" in output
    # The option may belong to the program itself.
    assert command_line.moved_number(["train.py", "-n", "relu"]) == ""


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        (["python", "trian.py"], "trian.py"),
        (["python3.11", "-u", "-W", "error", "-Xdev", "trian.py", "train.py"], "trian.py"),
        (["env", "A=1", "python", "/nowhere/train.py"], "/nowhere/train.py"),
        (["python", "train.py", "trian.py"], ""),
        (["python", "folder"], ""),
        (["python", "-c", "trian.py"], ""),
        (["python", "-um", "trian"], ""),
        (["python", "--version"], ""),
        (["python"], ""),
        (["bash", "trian.py"], ""),
    ],
)
def test_missing_script_of_python(command, missing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "folder").mkdir()
    assert command_line.missing_script(command) == missing


def test_a_missing_script_starts_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    output = refused(capfd, "-np", "2", sys.executable, "trian.py")
    assert "error: there is no file 'trian.py', which Python is to run; did you mean train.py?" in output
    # The file may exist on another host, or in another directory.
    for argv in (["-H", "far.test:1"], ["--mpi", "--mpi-args=-wdir /elsewhere"]):
        assert not cli.settings(*cli.parse(["-np", "1", *argv, "python", "trian.py"]), {}).in_this_directory
    assert cli.settings(*cli.parse(["-np", "1", "--mpi", "python", "trian.py"]), {}).in_this_directory
