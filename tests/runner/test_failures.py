"""Jobs that fail or are stopped: attribution, exit code, and duration."""

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runner.launching import LIMIT, eventually, marked_environment, python, run_job, running

HEAVY = pytest.mark.heavy
VICTIM = "class HorovodInternalError(RuntimeError): pass\n"


def messages_of(err):
    return [line.removeprefix("horovodrun: ") for line in err.splitlines() if line.startswith("horovodrun: ")]


def test_the_first_exit_code_is_the_exit_code_of_the_job():
    start = time.monotonic()
    done = run_job(["-np", "3", "bash", "-c", "[ $HOROVOD_RANK = 1 ] && exit 7; sleep 60"])
    assert done.code == 7
    assert messages_of(done.err)[-1] == "rank 1 on host localhost failed first: exit code 7"
    assert time.monotonic() - start < 40  # well before the others would end by themselves


def test_victims_that_end_before_the_culprit_are_not_blamed(tmp_path):
    code = VICTIM + (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "here, rank = Path(sys.argv[1]), os.environ['HOROVOD_RANK']\n"
        "if rank == '0':\n"
        "    sys.stderr.write('Traceback (most recent call last):\\n  File x\\nValueError: the cause\\n')\n"
        "    (here / 'told').touch()\n"
        "    while not all((here / other).exists() for other in '12'): time.sleep(0.01)\n"
        "    while any(Path('/proc', (here / other).read_text()).exists() for other in '12'): time.sleep(0.01)\n"
        "    sys.exit(5)\n"
        "while not (here / 'told').exists(): time.sleep(0.01)\n"
        "(here / f'{rank}.new').write_text(str(os.getpid()))\n"
        "(here / f'{rank}.new').rename(here / rank)\n"
        "raise HorovodInternalError('rank 0 has left')\n"
    )
    done = run_job(["-np", "3", *python(code), str(tmp_path)])
    assert done.code == 5
    messages = messages_of(done.err)
    assert "rank 0 on host localhost failed first: exit code 5" in messages
    assert messages[-1].strip() == "ValueError: the cause"
    assert "ranks 1-2 failed with HorovodInternalError as a consequence" in done.err


def test_a_culprit_that_hangs_at_exit_is_blamed(tmp_path):
    code = VICTIM + (
        "import atexit, os, sys, time\n"
        "from pathlib import Path\n"
        "ends = Path(sys.argv[1], 'ends')\n"
        "if os.environ['HOROVOD_RANK'] == '1':\n"
        "    atexit.register(lambda: (ends.touch(), time.sleep(600))); raise ValueError('the cause')\n"
        "while not ends.exists(): time.sleep(0.01)\n"
        "raise HorovodInternalError('rank 1 has left')\n"
    )
    done = run_job(["-np", "2", *python(code), str(tmp_path)])
    messages = messages_of(done.err)
    assert done.code == 1
    assert messages[-1].strip() == "ValueError: the cause"
    assert any(line.startswith("rank 1 on host localhost failed first") for line in messages)


def test_a_rank_that_succeeds_does_not_end_the_others():
    done = run_job(["-np", "2", "bash", "-c", "[ $HOROVOD_RANK = 0 ] || { sleep 1.5; echo late; }"])
    assert (done.code, done.out, done.err) == (0, "[1]<stdout>:late\n", "")


def test_commands_that_cannot_be_executed(tmp_path):
    file = tmp_path / "script"
    file.write_text("echo")
    for path, why in ((file, "Permission denied"), (tmp_path, "it is a directory")):
        done = run_job(["-np", "1", str(path)])
        assert (done.code, messages_of(done.err)[-1].partition("': ")[2]) == (126, why)


def test_removed_working_directory(tmp_path):
    """Also if it is removed between the start of Python and that of the job."""
    (tmp_path / "gone").mkdir()
    code = (
        "import os, sys; from horovod.runner import launch\n"
        "os.rmdir(os.getcwd()); sys.exit(launch.main(['-np', '1', 'true']))"
    )
    done = subprocess.run(
        python(code), cwd=tmp_path / "gone", env=marked_environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 2
    assert "error: the working directory of this program no longer exists" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
def test_workers_that_ignore_sigterm_are_killed(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if os.environ['HOROVOD_RANK'] == '0':\n"
        "    while not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
        "    raise SystemExit(3)\n"
        "open(sys.argv[1], 'w').close(); time.sleep(600)\n"
    )
    start = time.monotonic()
    assert run_job(["-np", "2", *python(code), str(tmp_path / "ignores")]).code == 3
    assert time.monotonic() - start > 5


def started(job, count):
    """Wait until `count` workers report their start; the rest of their output is still unread."""
    for _ in range(count):
        assert job.process.stdout.readline().endswith(b"ready\n")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=HEAVY)])
def test_signals_stop_everything(number):
    with running(["-np", "3", "bash", "-c", "sleep 61 & echo ready; wait"]) as job:
        started(job, 3)
        start = time.monotonic()
        job.process.send_signal(number)
        done = job.finish()
        assert time.monotonic() - start < 40
        assert done.code == 128 + number
        assert messages_of(done.err)[-1] == f"stopped by {number.name}"
        assert job.left() == []


RANK = """
import atexit, multiprocessing, os, signal, sys, time
from horovod.common import basics
def help(_):
    signal.signal(2, lambda *_: print("a helper got SIGINT", flush=True))
    signal.signal(15, lambda *_: (print("a helper got SIGTERM", flush=True), os._exit(0)))
    queue.put(1)
    time.sleep(600)
queue = multiprocessing.SimpleQueue()
helper = multiprocessing.get_context("fork").Process(target=help, args=(0,), daemon=True)
helper.start()
queue.get()
hvd = basics.HorovodBasics("tests")
hvd.init()
atexit.register(print, "atexit", hvd.rank(), flush=True)
if "TERM" in sys.argv:
    signal.signal(15, lambda *_: sys.exit(0))
try:
    print("ready", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    time.sleep(float(os.environ.get("CLEANUP", 0)))
    print("finally; helper lives:", helper.is_alive(), flush=True)
"""


@pytest.mark.parametrize("around", ["", *(pytest.param(kind, marks=HEAVY) for kind in ("python", "sh", "bash"))])
def test_an_interrupt_reaches_ranks_but_not_their_children(tmp_path, around):
    """The cleanup takes a while; wrappers around the rank neither end it nor outlive it for long."""
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    command = [sys.executable, str(path)]
    if around == "python":
        command = python(f"import subprocess, sys; sys.exit(subprocess.call({command!r}))")
    elif around:
        command = [around, "-c", f"{shlex.join(command)}; sleep 600"]
    with running(["-np", "2", *command], environment={"CLEANUP": "2"}) as job:
        started(job, 2)
        job.process.send_signal(signal.SIGINT)
        done = job.finish()
        assert done.code == 130
        assert messages_of(done.err)[-1] == "stopped by SIGINT"
        messages = ["interrupted", "finally; helper lives: True"]
        expected = [f"[{rank}]<stdout>:{message}" for rank in (0, 1) for message in [*messages, f"atexit {rank}"]]
        lines = [line for line in done.out.splitlines() if "a helper got SIGTERM" not in line]
        assert sorted(lines) == sorted(expected)
        assert job.left() == []


def test_a_second_interrupt_kills_at_once():
    code = "import signal, time; [signal.signal(n, print) for n in (2, 15)]; print('ready'); time.sleep(600)"
    with running(["-np", "2", *python(code)]) as job:
        started(job, 2)
        job.process.send_signal(signal.SIGINT)
        while b"SIGINT received" not in job.process.stderr.readline():
            assert job.process.poll() is None
        start = time.monotonic()
        job.process.send_signal(signal.SIGINT)
        done = job.finish()
        assert done.code == 130
        assert "SIGINT received again: killing" in done.err
        assert time.monotonic() - start < 40
        assert job.left() == []


def test_an_idle_job_uses_no_processor_time():
    def ticks(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    with running(["-np", "2", "bash", "-c", "echo ready; exec sleep 60"]) as job:
        started(job, 2)
        pids = [job.process.pid, *job.agents()]
        assert len(pids) == 3

        def used():
            before = sum(map(ticks, pids))
            time.sleep(2)
            return sum(map(ticks, pids)) - before

        eventually(lambda: used() <= 1, LIMIT, "two seconds in which at most one tick of 10 ms is used")
