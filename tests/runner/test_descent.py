"""Child processes of a rank inherit the job's variables, but are no ranks."""

import sys

import pytest

from tests.runner.launching import run_job

# With init at the top, as in many scripts: helpers started by multiprocessing import that, too.
SCRIPT = """
import multiprocessing, multiprocessing.forkserver, os, subprocess, sys
from horovod.common.basics import HorovodBasics
from horovod.common.objects import allgather_object

if __name__ == "__main__":
    multiprocessing.forkserver.ensure_running()  # before the rank is one
hvd = HorovodBasics("benchmark")
hvd.init()

def helper():
    pass

def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=50, **options)

if __name__ == "__main__":
    from horovod.common.frontends import named
    if hvd.rank() == 1:
        for method in ("spawn", "forkserver"):
            child = multiprocessing.get_context(method).Process(target=helper)
            child.start()
            child.join(50)
            print(method, child.exitcode)
        pid = os.fork()
        if pid == 0:
            try:
                hvd.init()
            except ValueError as error:
                print("fork", "forked" in str(error), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        code = "from horovod.common.basics import HorovodBasics as B; b = B('benchmark'); b.init(); print(b.size())"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        print("alone", run([sys.executable, "-c", code], env=clean).stdout.strip())
        inner = run([sys.executable, "-m", "horovod.runner", "-np", "2", sys.executable, "-c", code])
        print("job", sorted(inner.stdout.split()))
        again = run(["setsid", "--fork", "--wait", sys.executable, "-c", code])
        print("program", again.returncode, "was started by rank 1 (pid %d)" % os.getpid() in again.stderr)
    assert allgather_object(hvd.rank(), frontend=named("benchmark")) == [0, 1]
"""


@pytest.mark.heavy
def test_only_ranks_join(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = run_job(
        ["-np", "2", "--no-torch-distributed-env", sys.executable, str(path)],
        environment={"HOROVOD_START_TIMEOUT": "5"},
    )
    lines = dict(line.removeprefix("[1]<stdout>:").split(" ", 1) for line in done.out.splitlines())
    assert done.code == 0, done.err
    assert lines == {
        "spawn": "1",
        "forkserver": "1",
        "fork": "True",
        "alone": "1",
        "job": "['[0]<stdout>:2', '[1]<stdout>:2']",
        "program": "1 True",
    }
    assert done.err.count('below `if __name__ == "__main__":`') == 2  # of spawn's and the fork server's processes
