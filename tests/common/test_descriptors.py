"""The limit of open files, in processes of their own."""

import os
import resource
import subprocess
import sys

import pytest

PROGRAM = """
import os, resource, sys
from horovod.common.descriptors import make_room
soft, hard, count = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    make_room(count)
except ValueError as error:
    sys.exit(str(error))
opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def run(soft, hard, count):
    command = [sys.executable, "-c", PROGRAM, str(soft), str(hard), str(count)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_limit_is_raised_as_far_as_needed():
    done = run(64, 500, 300)
    assert done.returncode == 0, done.stderr
    soft, hard = map(int, done.stdout.split())
    assert 300 < soft < 400
    assert hard == 500


def test_it_stays_where_there_is_room():
    assert run(400, 500, 300).stdout == "400 500\n"


def test_a_hard_limit_that_is_too_low_is_named():
    done = run(64, 100, 300)
    assert done.returncode == 1
    assert done.stderr.startswith("this process may have 100 files open, but in this job it needs 3")


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 200, reason="the hard limit is lower")
def test_a_job_forms_where_the_soft_limit_is_too_low():
    """Ten ranks as on ten hosts need more descriptors than they are given at first."""
    program = (
        "import resource; files = resource.RLIMIT_NOFILE\n"
        "resource.setrlimit(files, (30, resource.getrlimit(files)[1]))\n"
        "from horovod.common.basics import HorovodBasics\n"
        "hvd = HorovodBasics('benchmark'); hvd.init(); print(hvd.size()); hvd.shutdown()\n"
    )
    command = [sys.executable, "-m", "horovod.runner", "-np", "10", sys.executable, "-c", program]
    environment = {**os.environ, "HOROVOD_TRANSPORT": "tcp"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(":10\n") == 10
