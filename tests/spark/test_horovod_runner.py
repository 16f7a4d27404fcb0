"""Jobs started as by notebooks on Databricks."""

import io
import os
import sys

import numpy as np
import pytest

import horovod.numpy as hvd
import horovod.spark
from horovod.runner.function.outcome import WorkerError
from horovod.spark.horovod_runner import DRIVER_LOG, DriverLog, HorovodRunner, log_to_driver


def main(base, loud=True):
    hvd.init()
    if loud:
        print("printed by", hvd.rank())
    if hvd.rank() == 1:
        log_to_driver("epoch 0\nof rank 1")
    hvd.barrier()
    total = hvd.allreduce(np.array([hvd.rank() + base]), op=hvd.Sum).tolist()
    return hvd.rank(), hvd.size(), total, os.environ.get("GIVEN"), os.environ.get("MARK")


def test_negative_np_starts_processes_on_the_driver(capsys):
    """Without Spark."""
    runner = HorovodRunner(np=-2, env={"GIVEN": "yes"})
    assert runner.run(main, base=10) == (0, 2, [21], "yes", None)
    out = capsys.readouterr().out.splitlines()
    assert sorted(out) == [
        "[0]<stdout>:printed by 0", "[1]<stdout>:epoch 0", "[1]<stdout>:of rank 1", "[1]<stdout>:printed by 1",
    ]  # fmt: skip
    assert "GIVEN" not in os.environ


def test_positive_np_starts_tasks_of_spark(spark, capsys):
    assert HorovodRunner(np=2, env={"GIVEN": "yes"}).run(main, base=1) == (0, 2, [3], "yes", "of the executor")
    assert capsys.readouterr().out == "epoch 0\nof rank 1\n"
    HorovodRunner(np=2, driver_log_verbosity="all").run(main, base=1)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[0]<stdout>:printed by 0", "[1]<stdout>:printed by 1", "epoch 0", "of rank 1",
    ]  # fmt: skip


@pytest.mark.heavy
def test_np_0_uses_all_slots(spark):
    with pytest.warns(DeprecationWarning, match="np=0 is deprecated"):
        runner = HorovodRunner(np=0)
    assert runner.run(main, base=0, loud=False)[1] == 4


def fails():
    raise KeyError("spam")


def test_failures_of_the_runner(spark):
    with pytest.raises(WorkerError) as caught:
        HorovodRunner(np=-1).run(fails)
    assert isinstance(caught.value, KeyError)
    with pytest.raises(ValueError, match=r"num_proc must be at most 4, .*, got 9: "):
        HorovodRunner(np=9).run(main, base=1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"np": "2"}, "np must be an integer, .*, got '2'"),
        ({"np": True}, "np must be an integer, .*, got True"),
        ({"np": 2, "driver_log_verbosity": "none"}, "must be 'log_callback_only' or 'all', got 'none'"),
    ],
)
def test_invalid_input(wrong, says):
    with pytest.raises(ValueError, match=says):
        HorovodRunner(**wrong)
    with pytest.raises(TypeError, match=r"main must be a function, .*, got 'x'"):
        HorovodRunner(np=-1).run("x")
    with pytest.raises(TypeError, match="message must be a string, got 3"):
        log_to_driver(3)


def test_public_names_of_horovod_runner():
    assert horovod.spark.HorovodRunner is HorovodRunner
    assert horovod.spark.log_to_driver is log_to_driver


@pytest.mark.parametrize("forwards", [False, True])
def test_lines_are_assembled_from_chunks(forwards, monkeypatch):
    target = io.StringIO()
    log = DriverLog(target, everything=forwards)
    output = io.StringIO()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setenv(DRIVER_LOG, "1")
    log_to_driver("meant")
    monkeypatch.setenv(DRIVER_LOG, "")
    log_to_driver("elsewhere")
    marked, plain = output.getvalue().splitlines()
    assert (plain, marked.endswith("meant"), marked != "meant") == ("elsewhere", True, True)
    for character in f"[0]<stdout>:other\n[1]<stdout>:{marked}\n[1]<stdout>:half":
        log.write(character)
    log.close()
    assert target.getvalue() == ("[0]<stdout>:other\nmeant\n[1]<stdout>:half\n" if forwards else "meant\n")
