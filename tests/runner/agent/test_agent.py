"""An agent without a launcher: how it handles a sequence of requests."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

from horovod.common.contract import boot
from horovod.runner.agent.messages import (
    Exited,
    Finished,
    FrameReader,
    KillWorker,
    Output,
    PassOn,
    Payload,
    Report,
    Started,
    StartJob,
    StartWorker,
    Stop,
    Stopped,
    Worker,
    frame,
)
from horovod.runner.base import linux
from tests.runner.launching import LIMIT, MARK, eventually, marked_environment, processes_with

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.1; done"


class Talk:
    """A conversation with an agent."""

    def __init__(self, environment):
        self.variables = [(os.fsencode(name), os.fsencode(value)) for name, value in environment.items()]
        self._agent = subprocess.Popen(
            [sys.executable, *boot.arguments("horovod.runner.agent.agent")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._reader: FrameReader = FrameReader(Report)
        self._come = []
        self.mark = environment[MARK]

    @property
    def pid(self):
        return self._agent.pid

    def send(self, message):
        os.write(self._agent.stdin.fileno(), frame(message))

    def until(self, kind, seconds=LIMIT):
        """Read the agent's messages until one of these types arrives, and return that message."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            while self._come:
                if isinstance(message := self._come.pop(0), kind):
                    return message
            if select.select([self._agent.stdout], [], [], 1.0)[0]:
                self._come += self._reader.feed(os.read(self._agent.stdout.fileno(), 1 << 16))
        raise AssertionError(f"no {kind} within {seconds} s")

    def ended(self):
        return self._agent.wait(timeout=LIMIT)

    def close(self):
        self._agent.wait()
        self._agent.stdin.close()
        self._agent.stdout.close()


@contextlib.contextmanager
def talk():
    environment = marked_environment()
    agent = Talk(environment)
    try:
        yield agent
        assert agent.ended() == 0
        assert processes_with(environment[MARK]) == []
    finally:
        for pid in processes_with(environment[MARK]):  # leftovers of a failed test
            linux.send_signal(pid, signal.SIGKILL)
        agent.close()


def test_a_later_stop_only_shortens_the_grace():
    with talk() as agent:
        agent.send(StartJob([b"sh", b"-c", STUBBORN.encode()], b"/", agent.variables, [Worker(0, [])], b"k" * 32))
        assert agent.until(Output).data == b"ready\n"
        for grace in (1000.0, 1.0, 1000.0):
            agent.send(Stop(grace))
        assert agent.until(Finished).survivors == []


def test_workers_of_an_agent_start_and_end_one_by_one():
    program = "sleep 1000 & echo $HOROVOD_RUN_FUNCTION_FD $NUMBER; [ $NUMBER = 9 ] || wait"
    with talk() as agent:
        agent.send(Payload(b"function"))
        agent.send(StartJob([b"sh", b"-c", program.encode()], b"/", agent.variables, [], b"k" * 32, lasting=True))
        pids = {}
        for number in (7, 8):
            agent.send(StartWorker(Worker(number, [(b"NUMBER", b"%d" % number)])))
            pids.update(agent.until(Started).pids)
            output = agent.until(Output)
            assert (output.rank, output.data.split()[1]) == (number, b"%d" % number)
            assert output.data.split()[0].isdigit(), "the payload is there for later ones too"
        # One worker is stopped and continued, which needs no detection.
        for sent, stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            os.kill(pids[8], sent)
            assert agent.until(Stopped) == Stopped(8, stopped)
        # One worker is killed together with its children; the other survives.
        below = linux.descendants(pids[7])
        assert len(below) == 1
        agent.send(KillWorker(7))
        assert agent.until(Exited) == Exited(7, -signal.SIGKILL)
        eventually(lambda: below[0] not in processes_with(agent.mark), 10, "its child is killed")
        assert pids[8] in processes_with(agent.mark)
        agent.send(KillWorker(7))  # too late, which is no error
        # One worker ends by itself: its leftover processes end soon, although the job continues.
        agent.send(StartWorker(Worker(9, [(b"NUMBER", b"9")])))
        pids.update(agent.until(Started).pids)
        assert agent.until(Exited) == Exited(9, 0)
        eventually(lambda: len(processes_with(agent.mark)) == 4, 10, "guard, agent, worker 8 and its child are left")
        agent.send(Stop(5.0))
        assert agent.until(Exited).rank == 8
        assert agent.until(Finished).survivors == []


def test_warnings_do_not_end_processes():
    """Processes that do not catch the warning survive it, whoever sends it, and it is delivered once."""
    program = 'if [ $NUMBER = 1 ]; then trap "echo warned" USR1; fi; echo ready; while :; do sleep 0.05; done'
    with talk() as agent:
        agent.send(StartJob([b"sh", b"-c", program.encode()], b"/", agent.variables, [], b"k" * 32, lasting=True))
        pids = {}
        for number in (0, 1):
            agent.send(StartWorker(Worker(number, [(b"NUMBER", b"%d" % number)])))
            pids.update(agent.until(Started).pids)
            assert agent.until(Output) == Output(number, 1, b"ready\n")
        for pid in (agent.pid, linux.descendants(agent.pid)[0]):  # as Slurm does: to guard and agent
            os.kill(pid, signal.SIGUSR1)
        assert agent.until(Output) == Output(1, 1, b"warned\n")
        agent.send(PassOn(signal.SIGUSR1))
        agent.send(KillWorker(0))
        assert agent.until(Exited) == Exited(0, -signal.SIGKILL)
        agent.send(Stop(5.0))
        assert agent.until((Output, Exited)) == Exited(1, -signal.SIGTERM)
        assert agent.until(Finished).survivors == []
