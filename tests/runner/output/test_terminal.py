"""The launcher in a terminal: typing, Ctrl-C, Ctrl-D, and in the background."""

import contextlib
import os
import select
import signal
import sys
import time

import pytest

from tests.runner.launching import MARK, marked_environment, processes_with

LAUNCH = f"{sys.executable} -m horovod.runner"


@contextlib.contextmanager
def terminal(command):
    """Run a shell command in a terminal of its own; gives a function that types, and one that reads until some text."""
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


def test_what_is_typed_reaches_rank_0():
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


def test_in_the_background_it_is_not_stopped():
    # Job control puts it into a background process group, where reading the terminal would stop it.
    shell = f"set -m; {LAUNCH} -np 2 bash -c 'sleep 0.5; echo done' & wait $!; echo code $?"
    with terminal(shell) as (type_keys, until):
        type_keys(b"for somebody else\n")
        until(b"[0]<stdout>:done")
        until(b"[1]<stdout>:done")
        until(b"code 0")


def test_a_colour_left_on_does_not_reach_the_next_line():
    script = "printf '\\033[31mred\\nstill\\n'; sleep 0.5; echo end"
    with terminal(f'{LAUNCH} -np 1 bash -c "{script}"; echo code $?') as (_, until):
        until(b"[0]<stdout>:\x1b[31mred\x1b[0m\r\n[0]<stdout>:\x1b[31mstill\x1b[0m\r\n[0]<stdout>:\x1b[31mend\x1b[0m")
        until(b"code 0")
