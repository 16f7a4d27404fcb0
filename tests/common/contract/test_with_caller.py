"""A process that ends together with its parent, even during a slow import."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

SLOW = """
import os, sys, time
print(os.getpid(), flush=True)
{imported}
def main():
    from horovod.common.contract.boot import wait_for_go
    wait_for_go()
    print(sys.argv[1], flush=True)
    time.sleep(600)
"""

CALLER = """
import os, socket, subprocess, sys, time
pair, other = socket.socketpair()
from horovod.common.contract import boot
command = [sys.executable, *boot.arguments("horovod.common.contract.boot"), "slow_program", "argument"]
child = subprocess.Popen(command, stdin=other)
other.close()
if "fork" in sys.argv and os.fork() == 0:  # a data loader's worker, say, has this end too
    time.sleep(600)
    os._exit(0)
if "go" in sys.argv:
    assert pair.recv(1) == b"r"
    pair.sendall(b"g")
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["import fork", "go"])
def test_process_ends_with_its_caller(tmp_path, how):
    imported = "time.sleep(600)" if "import" in how else ""
    (tmp_path / "slow_program.py").write_text(textwrap.dedent(SLOW.format(imported=imported)))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", CALLER, *how.split()]
    caller = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        pid = int(caller.stdout.readline())
        if how == "go":
            assert caller.stdout.readline() == "argument\n"
        ended = select.poll()
        ended.register(os.pidfd_open(pid), select.POLLIN)
        caller.kill()
        caller.wait()
        assert ended.poll(60_000), "it outlives its caller"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(caller.pid, signal.SIGKILL)
        caller.stdout.close()
