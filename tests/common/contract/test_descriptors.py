"""The limit of open files, tested in separate processes."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, sys
from horovod.common.contract.descriptors import make_room
soft, hard, count, *at_least = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room(count, *at_least)
except ValueError as error:
    sys.exit(str(error))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(min([count, *at_least]))]
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(*numbers):
    command = [sys.executable, "-c", PROGRAM, *map(str, numbers)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("numbers", "limits"),
    [
        ((64, 500, 300), range(301, 400)),  # raised only as far as needed
        ((400, 500, 300), [400]),  # already high enough
        ((64, 200, 300, 100), [200]),  # fewer may suffice
    ],
)
def test_the_limit_is_raised_as_far_as_needed_and_possible(numbers, limits):
    done = run(*numbers)
    assert done.returncode == 0, done.stderr
    soft, hard = map(int, done.stdout.split())
    assert soft in limits
    assert hard == numbers[1]


@pytest.mark.parametrize(("numbers", "needed"), [((64, 100, 300), "3"), ((64, 100, 300, 150), "1")])
def test_a_hard_limit_that_is_too_low_is_named(numbers, needed):
    done = run(*numbers)
    assert done.returncode == 1
    assert done.stderr.startswith(f"this process may have 100 files open, but in this job it needs {needed}")


MEET = """
import resource, sys
from horovod.common.key_exchange.methods import Group
from horovod.common.key_exchange.meeting import meet
from horovod.common.launchers import Place
from horovod.common.contract.worker_env import make_key
resource.setrlimit(resource.RLIMIT_NOFILE, (128, int(sys.argv[1])))
place = Place("a launcher", 0, 300, local_rank=0, local_size=300, job=f"room {sys.argv[2]}")
try:
    meeting = meet(Group(place, (), None), make_key, 10)
except ValueError as error:
    sys.exit(str(error))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)
meeting.formed()
meeting.server.close()
"""


def test_rank_0_makes_room_for_all_that_come_to_its_store():
    def run(hard):
        command = [sys.executable, "-c", MEET, str(hard), str(os.getpid())]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = run(2000)
    assert done.returncode == 0, done.stderr
    assert 2 * 300 * 8 / 7 < int(done.stdout) < 1000
    assert run(500).stdout == "500\n"
    assert run(200).stderr.startswith("this process may have 200 files open, but in this job it needs 4")
