"""horovod.run: functions, results, errors."""

import os
import re
import subprocess
import sys
import time

import pytest

import horovod
from tests.runner.launching import eventually, marked_environment, processes_with


def place(factor, offset=0):
    return int(os.environ["HOROVOD_RANK"]) * factor + offset, int(os.environ["HOROVOD_SIZE"])


def test_results_come_by_rank():
    assert horovod.run(place, (10,), {"offset": 3}, num_proc=3) == [(3, 3), (13, 3), (23, 3)]


def test_closures_and_large_results():
    data = bytes(range(256)) * 20_000
    results = horovod.run(lambda: data + os.environ["HOROVOD_RANK"].encode(), num_proc=2)
    assert results == [data + b"0", data + b"1"]


def test_a_failure_names_the_first_rank_and_its_exit_code(capfd):
    def fail():
        if os.environ["HOROVOD_RANK"] == "1":
            raise ValueError("no data")
        time.sleep(30)

    with pytest.raises(RuntimeError, match=r"(?s)rank 1 .*failed first: exit code 1.*ValueError: no data"):
        horovod.run(fail, num_proc=2)
    assert "[1]<stderr>:ValueError: no data" in capfd.readouterr().err


def test_a_worker_that_ends_without_a_result():
    with pytest.raises(RuntimeError, match="failed first: exit code 4"):
        horovod.run(lambda: os._exit(4), num_proc=1)


@pytest.mark.parametrize("leave", [sys.exit, os._exit])
def test_a_rank_that_leaves_with_exit_code_0_is_named(leave):
    def work():
        if os.environ["HOROVOD_RANK"] == "1":
            leave(0)

    with pytest.raises(RuntimeError, match=r"rank 1 on host \S+ ended with exit code 0 without a result"):
        horovod.run(work, num_proc=2)


def test_np_is_deprecated():
    with pytest.warns(DeprecationWarning, match="np is deprecated"):
        assert horovod.run(place, (1,), np=2) == [(0, 2), (1, 2)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_proc": 0}, "num_proc is 0"),
        ({"hosts": "localhost:1", "hostfile": "f"}, "hosts='localhost:1' and hostfile='f'"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi"),
        ({"use_mpi": True}, "use_mpi=True needs the MPI launcher"),
        ({"min_num_proc": 1}, "min_num_proc=1 needs elastic jobs"),
        ({"num_proc": 3, "hosts": "localhost:2"}, "3 processes.*2 slots"),
        ({"hosts": "192.0.2.1:1"}, "another machine"),
        ({"start_timeout": -1}, "START_TIMEOUT is '-1'"),
        ({"network_interfaces": "nope0"}, "nope0"),
    ],
)
def test_bad_parameters_are_named(options, named):
    with pytest.raises(ValueError, match=re.compile(named)):
        horovod.run(place, (1,), **options)


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_the_workers(tmp_path, stubborn):
    script = tmp_path / "script.py"
    script.write_text(
        "import horovod, signal, time, os\n"
        f"def work():\n    {'signal.signal(15, signal.SIG_IGN); ' if stubborn else ''}print('ready'); time.sleep(60)\n"
        "try: horovod.run(work, num_proc=2)\n"
        "except KeyboardInterrupt: print('interrupted', flush=True); os._exit(3)\n"
    )
    environment = marked_environment()
    process = subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE)
    try:
        for _ in range(2):
            assert process.stdout.readline().endswith(b"ready\n")
        start = time.monotonic()
        process.send_signal(2)
        assert process.wait(8) == 3
        assert time.monotonic() - start < 5
        assert process.stdout.read() == b"interrupted\n"
        eventually(lambda: processes_with(environment["HVD_TEST_MARK"]) == [], 2, "workers end")
    finally:
        process.kill()
        process.wait(5)
        process.stdout.close()


def test_nothing_is_left_open():
    horovod.run(place, (1,), num_proc=1)
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(2):
        horovod.run(place, (1,), num_proc=2)
    assert sorted(os.listdir("/proc/self/fd")) == before
