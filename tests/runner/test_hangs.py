"""Real jobs that hang, each for another reason, and their reports."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runner.dashboard import jobs
from tests.runner.launching import LIMIT, eventually, launcher, marked_environment, running

HEAD = f"""import ctypes, os, signal{jobs.HEAD}
for name in "ab":
    allreduce(name)
"""
# The code that makes each job hang; %%% is the line that the report must name.
PLANTS = {
    "sleep": """
if rank == 1:
    time.sleep(1000)  # %%%
allreduce("a")
""",
    "holding the lock": """
if rank == 1:
    while ctypes.PyDLL(None).sleep(1000) + 1: pass  # a signal ends it; %%%
allreduce("a")
""",
    "stopped": """
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
allreduce("a")
""",
    "rank 0 is stopped": """
if rank == 0:
    os.kill(os.getpid(), signal.SIGSTOP)
allreduce("a")
""",
    "each something else": """
allreduce(NAME)
if rank == 1:
    tracer = os.fork()
    if tracer == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        while libc.ptrace(16, os.getppid(), None, None):  # PTRACE_ATTACH
            time.sleep(0.05)
        time.sleep(1000)
    ctypes.CDLL(None).prctl(0x59616D61, tracer)  # PR_SET_PTRACER, where the kernel asks for it
    time.sleep(1000)
if rank == 2:
    while True:
        pass
if rank == 3:
    os.mkfifo(FIFO)
    actions = [(os.POSIX_SPAWN_OPEN, 0, FIFO, os.O_RDONLY, 0)]
    os.posix_spawn(sys.executable, ["python"], {}, file_actions=actions)  # %%%
allreduce(NAME)
""",
    "branch": """
if rank == 0:
    allreduce("log")  # %%%
allreduce("grad")
""",
}


@contextlib.contextmanager
def job(tmp_path, plant, size=2, head="", **environment):
    """Return the running job, and the line that its report must name.

    ``plant``: one of PLANTS, or a program after HEAD.
    """
    path = tmp_path / "train.py"
    path.write_text(head + HEAD + PLANTS.get(plant, plant))
    line = next((n for n, text in enumerate(path.read_text().splitlines(), 1) if "%%%" in text), 0)
    settings = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_REPORT_DIR": str(tmp_path / "reports")}
    arguments = ["-np", str(size), sys.executable, str(path)]
    with (
        (tmp_path / "stderr").open("wb") as err,
        running(arguments, environment={**settings, **environment}, stderr=err) as job,
    ):
        yield job, line


def errs(tmp_path):
    return (tmp_path / "stderr").read_text()


def reason(tmp_path):
    """Return the reported reason, once it has been printed."""
    eventually(lambda: "stacks of all threads" in errs(tmp_path), LIMIT, "an explanation")
    return re.search(r"why the job waits: (.*)", errs(tmp_path))[1]


def report(tmp_path):
    path = re.search(r"the last operations: (.*)", errs(tmp_path))[1]
    assert Path(path).parent.parent == tmp_path / "reports"
    return Path(path).read_text()


@pytest.mark.heavy
def test_a_sleeping_rank_ends_the_job_after_the_shutdown_time(tmp_path):
    with job(tmp_path, "sleep", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="6") as (running_job, line):
        assert reason(tmp_path) == f"rank 1 is at train.py:{line} (`time.sleep(1000)  # %%%`)"
        text = report(tmp_path)
        assert "allreduce 'a': for " in text
        assert "submitted by rank 0, missing on rank 1" in text
        about = text[text.index("== rank 1 ") : text.index("== rank 0 ")]
        assert "state: it sleeps (clock_nanosleep)" in about or "state: it sleeps (" in about
        assert "last finished: allreduce 'b' (float32[4])" in about
        assert "submitted and waiting: nothing" in about
        assert f"-> {tmp_path}/train.py:{line} in <module>    time.sleep(1000)" in about
        assert "submitted and waiting: allreduce 'a'" in text[text.index("== rank 0 ") :]
        running_job.process.wait(LIMIT)
    folder = next((tmp_path / "reports").iterdir())
    assert f"What the ranks were doing is in {folder}/hang.txt" in errs(tmp_path)
    assert (folder / "hang.txt").exists()
    assert {path.name for path in folder.glob("*.jsonl")} >= {"recorder.rank0.jsonl"}  # rank 1's may have been killed


@pytest.mark.heavy
def test_another_rank_reports_a_stopped_rank_0(tmp_path):
    with job(tmp_path, "rank 0 is stopped") as (_, _):
        eventually(lambda: "rank 0 does not go on: its process is stopped" in errs(tmp_path), LIMIT, "a word of rank 1")


@pytest.mark.heavy
def test_stopped_looping_and_blocked_processes_are_reported(tmp_path):
    """In one job, each absent rank does something else, and all are described."""
    odd = """läyer "7"\n'日本'\x07"""
    head = f"NAME, FIFO = {odd!r}, {str(tmp_path / 'fifo')!r}\n"
    with job(tmp_path, "each something else", 4, head=head) as (_, line):
        found = reason(tmp_path)
        expected = [
            "state: it computes",
            "state: it waits for a process that it starts to begin its program (vfork)",
            f"train.py:{line} in <module>",
        ]
        # On a busy machine the first report may have been written before some answers arrived.
        eventually(lambda: all(part in report(tmp_path) for part in expected), LIMIT, "what all ranks do")
        text = report(tmp_path)
    assert re.match(r"rank 1 does not go on: a debugger has it \(pid \d+\)", found)
    assert found.endswith("; it goes on when the debugger lets it (--debug-rank keeps the others from warning)")
    shown = """läyer "7"\\n'日本'\\x07"""
    assert errs(tmp_path).count(shown) >= 2
    assert f"allreduce '{shown}' waits " in errs(tmp_path)
    assert odd not in errs(tmp_path) + text


def test_collectives_called_on_only_one_rank(tmp_path):
    with job(tmp_path, "branch", 3) as (_, _):
        found = reason(tmp_path)
        assert found.startswith("rank 0 alone calls allreduce 'log' (train.py:"), found
        assert "ranks 1 and 2 call allreduce 'grad' (train.py:" in found
        assert found.endswith("is one of them under a condition that holds on some ranks only?")


def explain(target):
    done = subprocess.run(
        launcher(["--explain", str(target)]), capture_output=True, text=True, timeout=LIMIT, env=marked_environment()
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.heavy
def test_hangs_are_explained_before_warnings_and_on_a_signal(tmp_path):
    with job(tmp_path, "sleep", HOROVOD_STALL_CHECK_TIME_SECONDS="60") as (running_job, line):
        started = []

        def waits():
            started[:] = explain(running_job.process.pid)
            return f"rank 1 is at train.py:{line}" in started[1]

        eventually(waits, LIMIT, "an answer")
        assert "Operations that wait:" in started[1]
        assert "== rank 1 " in started[1]
        folder = Path(re.search(r"This report: (.*)/hang.txt", started[1])[1])
        ranks = dict(map(reversed, re.findall(r"rank (\d) \(host localhost, pid (\d+)\)", started[1])))
        pid = {rank: int(number) for number, rank in ranks.items()}
        for target in (folder, pid["0"], pid["1"]):
            assert f"rank 1 is at train.py:{line}" in explain(target)[1]
        assert errs(tmp_path) == ""
        for rank in "01":
            os.kill(pid[rank], signal.SIGUSR2)
        eventually(lambda: len(list(folder.glob("stacks.rank*.txt"))) == 2, 20, "dumps")
        eventually(lambda: len(list(folder.glob("recorder.rank*.jsonl"))) == 2, 20, "dumps")
        assert f'train.py", line {line} in <module>' in (folder / "stacks.rank1.txt").read_text()
        done = subprocess.run(
            [sys.executable, "-m", "horovod.recorder", "diff", str(folder)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert done.stdout.splitlines()[-2:] == ["  rank 0: allreduce 'a' (float32[4], Sum)", "  rank 1: nothing"]
        os.kill(pid["0"], signal.SIGKILL)
        running_job.process.wait(LIMIT)
    time.sleep(0.1)
    code, _, err = explain(running_job.process.pid)
    assert (code, "no job found on this host" in err) == (2, True)
