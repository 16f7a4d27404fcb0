"""An agent without a launcher: what it does with requests that come one after the other."""

import os
import select
import signal
import subprocess
import sys
import time

from horovod.runner.base import boot, linux
from horovod.runner.protocol.messages import Finished, FrameReader, Output, Report, StartJob, Stop, Worker, frame
from tests.runner.launching import LIMIT, MARK, marked_environment, processes_with

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


def reports_until(agent, wanted, reader, seconds=LIMIT):
    """Reads what the agent says until one of these has come, and returns that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not select.select([agent.stdout], [], [], 1.0)[0]:
            continue
        for message in reader.feed(os.read(agent.stdout.fileno(), 1 << 16)):
            if isinstance(message, wanted):
                return message
    raise AssertionError(f"no {wanted.__name__} within {seconds} s")


def test_a_later_stop_brings_the_end_nearer_and_never_puts_it_off():
    environment = marked_environment()
    agent = subprocess.Popen(
        [sys.executable, *boot.words("horovod.runner.agent.agent")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    try:
        variables = [(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()]
        job = StartJob([b"sh", b"-c", STUBBORN.encode()], b"/", variables, [Worker(0, [])], b"k" * 32)
        reader: FrameReader = FrameReader(Report)
        os.write(agent.stdin.fileno(), frame(job))
        assert reports_until(agent, Output, reader).data == b"ready\n"
        for grace in (1000.0, 1.0, 1000.0):
            os.write(agent.stdin.fileno(), frame(Stop(grace)))
        assert reports_until(agent, Finished, reader).survivors == []
        assert agent.wait(timeout=LIMIT) == 0
        assert processes_with(environment[MARK]) == []
    finally:
        for pid in processes_with(environment[MARK]):  # only where something went wrong
            linux.send_signal(pid, signal.SIGKILL)
        agent.wait()
        agent.stdin.close()
        agent.stdout.close()
