"""horovod.run: functions, results, errors."""

import concurrent.futures
import linecache
import os
import re
import subprocess
import sys
import tempfile
import threading

import pytest

import horovod
from horovod.runner import WorkerError
from horovod.runner.base.job_result import JobResult, OutcomeError
from horovod.runner.function import outcome
from tests.runner.launching import marked_environment


def place(factor, offset=0):
    return int(os.environ["HOROVOD_RANK"]) * factor + offset, int(os.environ["HOROVOD_SIZE"])


def test_closures_and_large_results():
    data = bytes(range(256)) * 100_000  # 26 MB
    (result,) = horovod.run(lambda: data[1:] + os.environ["HOROVOD_RANK"].encode())
    assert len(result) == len(data)
    assert result == data[1:] + b"0"


class Unhappy(Exception):
    def __init__(self, code, *, colour):  # can be pickled but not unpickled
        super().__init__(f"code {code}")


def test_the_exception_itself_is_raised_with_its_remote_traceback(monkeypatch):
    """Its class is defined by the function itself, and its code is in no file."""
    name, lines = "/nowhere/cell_3.py", ["def inner():\n", "    raise FileNotFoundError(2, 'no')  # of cell 3\n"]
    cell = {"__name__": "__main__"}
    exec(compile("".join(lines), name, "exec"), cell)
    monkeypatch.setitem(linecache.cache, name, (sum(map(len, lines)), None, lines, name))
    inner = cell["inner"]

    class Own(KeyError):
        pass

    def fail():
        try:
            inner()
        except OSError as error:
            raise Own("table", [1, 2]) from error

    with pytest.raises(Own) as caught:
        horovod.run(fail, num_proc=1)
    error = caught.value
    assert isinstance(error, WorkerError)
    assert (error.args, error.rank, error.host, error.exit_code) == (("table", [1, 2]), 0, "localhost", 1)
    assert type(error.__cause__) is Own
    # The complete traceback from the function on: the chain, source lines, and no internal frames.
    for message in ("in inner", "raise FileNotFoundError(2, 'no')  # of cell 3", "was the direct cause", "Own: ("):
        assert message in str(error)
        assert message in error.remote_traceback
    assert "function.worker" not in str(error).replace("/", ".")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"func": None}, "func must be a function, got None"),
        ({"args": 0.1}, r"args must be a tuple or list of arguments, got 0.1; write args=\(0.1,\)"),
        ({"args": "ab"}, "args must be a tuple or list of arguments, got 'ab'"),
        ({"kwargs": [1]}, r"kwargs must be a dict of arguments by name, got \[1\]"),
    ],
)
def test_uncallable_functions_are_named_before_anything_starts(function, message):
    with pytest.raises(TypeError, match=message):
        horovod.run(**{"func": print, **function})


def output_of(write, value, *more):
    """Return what a worker wrote to its file."""
    with tempfile.TemporaryFile() as file:
        write(file.fileno(), value, *more)
        file.seek(0)
        return bytearray(file.read())


def test_exceptions_that_cannot_be_unpickled_become_text():
    error = Unhappy(3, colour="red")
    data = output_of(outcome.write_exception, error, outcome.format_traceback(error))
    with pytest.raises(WorkerError, match=r"(?s)failed first.*Unhappy: code 3") as caught:
        outcome.by_rank(JobResult(1, "rank 0 failed first", 0, {0: data}), {0: "a"})
    assert re.search(r"not of its class: .*Unhappy cannot be pickled and unpickled: TypeError: .*", str(caught.value))
    assert type(caught.value) is WorkerError
    assert caught.value.cause is None


class OnlyThere:
    def __reduce__(self):
        return int, ("not here",)


def test_unpicklable_or_missing_results_are_named():
    with pytest.raises(OutcomeError, match=r"the result of rank 0, of type _thread.lock, cannot be sent back.*pickle"):
        output_of(outcome.write_value, threading.Lock(), 0)
    lost = output_of(outcome.write_value, OnlyThere(), 0)
    with pytest.raises(WorkerError, match=r"the result of rank 0, of type .*OnlyThere, cannot be unpickled.*not here"):
        outcome.by_rank(JobResult(0, results={0: lost}), {0: "a"})
    one = output_of(outcome.write_value, 7, 0)
    with pytest.raises(WorkerError, match="rank 1 on host b ended with exit code 0 without a result"):
        outcome.by_rank(JobResult(0, results={0: one}), {0: "a", 1: "b"})


def test_unpicklable_functions_and_arguments_are_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"args\[1\], of type _thread.lock, cannot be sent to the workers"):
        horovod.run(place, (1, lock))
    with pytest.raises(TypeError, match=r"kwargs\['offset'\], of type _thread.lock,"):
        horovod.run(place, (1,), {"offset": lock})
    with pytest.raises(TypeError, match=r"func, .*<lambda>, which uses 'lock', of type _thread.lock,"):
        horovod.run(lambda: lock.locked())


def test_output_goes_to_replaced_streams(capsys):
    def talk():
        for i in range(3):
            print(f"out {i} \u00fc")
        print("tail", end="")
        os.system("echo one >&2")

    horovod.run(talk, num_proc=1)
    out, err = capsys.readouterr()
    assert out == "".join(f"[0]<stdout>:{t}\n" for t in ("out 0 \u00fc", "out 1 \u00fc", "out 2 \u00fc", "tail"))
    assert err == "[0]<stderr>:one\n"


def test_classes_of_the_script_are_sent_both_ways(tmp_path):
    (tmp_path / "beside.py").write_text("def triple(x): return 3 * x\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import horovod, beside\n"
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "def work(point): return Point(beside.triple(point.x))\n"
        "if __name__ == '__main__':\n"
        "    [point] = horovod.run(work, (Point(5),))\n"
        "    assert isinstance(point, Point)\n"
        "    print(point.x)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd="/", env=marked_environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("15\n", "")


def test_np_is_deprecated():
    with (
        pytest.warns(DeprecationWarning, match="np is deprecated"),
        pytest.raises(ValueError, match=r"num_proc must be .* got 0"),
    ):
        horovod.run(place, (1,), np=0)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_proc": 0}, "num_proc must be .* got 0"),
        ({"hosts": "localhost:1", "hostfile": "f"}, "only one of hosts and hostfile must be given"),
        ({"use_gloo": True, "use_mpi": True}, "use_gloo and use_mpi"),
        ({"mpi_args": "-x A"}, "mpi_args must be None without use_mpi"),
        ({"max_num_proc": 2}, "max_num_proc must be None for a job of fixed size, got 2; give min_num_proc"),
        ({"min_num_proc": 1, "use_mpi": True}, "use_mpi must be False for an elastic job, got True: mpirun"),
        ({"min_num_proc": 2}, "got min_num_proc 2, num_proc 1 and max_num_proc any number"),
        (
            {"min_num_proc": 1, "hosts": "localhost:1"},
            r"\(min_num_proc\) must have .* got 1; with host_discovery_script one",
        ),
        ({"min_num_proc": 1, "hosts": "a:1,b:1", "reset_limit": -1}, "reset_limit must be 0 or more, got -1"),
        ({"host_discovery_script": "no.sh"}, "^host_discovery_script must be .*, got 'no.sh', which does not exist"),
        ({"host_discovery_script": "no.sh", "slots": 0}, "^slots must be 1 or more, got 0"),
        ({"num_proc": 3, "hosts": "localhost:2"}, "3 processes.*2 slots"),
        ({"start_timeout": -1}, r"START_TIMEOUT must be a number .* got '-1'"),
        ({"network_interfaces": "nope0"}, "nope0"),
    ],
)
def test_bad_parameters_are_named(options, named):
    with pytest.raises(ValueError, match=re.compile(named)):
        horovod.run(place, (1,), **options)


def test_runs_work_in_parallel_threads_without_leaks():
    horovod.run(place, (1,), num_proc=1)
    before = sorted(os.listdir("/proc/self/fd"))
    with concurrent.futures.ThreadPoolExecutor() as pool:
        runs = [pool.submit(horovod.run, place, (factor,), num_proc=2) for factor in (1, 10)]
        assert [run.result() for run in runs] == [[(0, 2), (1, 2)], [(0, 2), (10, 2)]]
    assert sorted(os.listdir("/proc/self/fd")) == before
