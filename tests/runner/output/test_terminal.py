"""The launcher in a terminal: typing, Ctrl-C, Ctrl-D, and running in the background."""

import contextlib
import os
import select
import signal
import sys
import threading
import time

import pytest

from horovod.runner.output.output import OutputQueue
from tests.runner.launching import MARK, eventually, marked_environment, processes_with

LAUNCH = f"{sys.executable} -m horovod.runner"


@contextlib.contextmanager
def terminal(command):
    """Run a shell command in a new terminal; yield a function that types, and one that reads until a text appears."""
    environment = marked_environment()
    pid, fd = os.forkpty()
    if pid == 0:
        os.execvpe("bash", ["bash", "-c", command], environment)
    seen = b""

    def until(text, seconds=60.0):
        nonlocal seen
        end = time.monotonic() + seconds
        while text not in seen:
            if not select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
                pytest.fail(f"no {text!r} within {seconds} s in {seen!r}")
            try:
                data = os.read(fd, 4096)
            except OSError:  # the last process with this terminal has ended
                data = b""
            if not data:
                pytest.fail(f"ended without {text!r}: {seen!r}")
            seen += data

    try:
        yield lambda keys: os.write(fd, keys), until
    finally:
        for left in {pid, *processes_with(environment[MARK])}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(fd)


def test_typed_input_reaches_rank_0():
    with terminal(f"{LAUNCH} -np 2 bash -c 'echo ready; cat; echo gone'; echo code $?") as (type_keys, until):
        until(b"[0]<stdout>:ready")
        until(b"[1]<stdout>:gone")
        type_keys(b"hello\n")
        until(b"[0]<stdout>:hello")
        type_keys(b"\x04")
        until(b"[0]<stdout>:gone")
        until(b"code 0")


def test_ctrl_c():
    shell = "trap : INT; {} -np 2 bash -c 'echo ready; sleep 67'; echo code $?"
    with terminal(shell.format(LAUNCH)) as (type_keys, until):
        until(b"[0]<stdout>:ready")
        until(b"[1]<stdout>:ready")
        type_keys(b"\x03")
        until(b"stopped by SIGINT", 5)
        until(b"code 130")


def test_a_terminal_that_is_not_read_does_not_block():
    # As if its window hangs: poll() reports space, but only for a byte and not for a whole chunk.
    master, slave = os.openpty()
    queue = OutputQueue(slave, slave)
    text = b"".join(b"line %d\n" % number for number in range(20_000))
    queue.put(1, text)
    writing = threading.Thread(target=queue.write, daemon=True)
    writing.start()
    writing.join(60)
    held_up = writing.is_alive()
    shown = text.replace(b"\n", b"\r\n")
    seen = b""
    while len(seen) < len(shown):
        if not held_up:
            queue.write()
        assert select.select([master], [], [], 10)[0]
        seen += os.read(master, 65536)
    writing.join(60)
    queue.close()
    os.close(slave)
    with pytest.raises(OSError, match="Input/output error"):  # no other process has it open any more
        os.read(master, 1)
    os.close(master)
    assert seen == shown
    assert not held_up


@pytest.mark.heavy
def test_a_launcher_with_a_blocked_terminal_can_be_stopped():
    environment = marked_environment()
    pid, fd = os.forkpty()
    if pid == 0:
        os.execvpe(sys.executable, [*LAUNCH.split(), "-np", "1", "yes"], environment)
    try:
        os.read(fd, 1)
        time.sleep(1)  # it is full
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None, 15, "its end")
        assert processes_with(environment[MARK]) == []
    finally:
        for left in {pid, *processes_with(environment[MARK])}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(fd)
    assert code == 143
