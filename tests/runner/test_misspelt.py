"""A misspelt variable is told once, wherever it was set."""

import subprocess
import sys

from tests.runner.launching import marked_environment, run_job

CODE = (
    "import os, sys\nos.environ.update(word.split('=') for word in sys.argv[1:])\nfrom horovod.common import basics\n"
    "hvd = basics.HorovodBasics('tests')\nhvd.init()\nhvd.init()\n"
)
TOLD = "HOROVOD_FUSION_TRESHOLD is set, but there is no such setting, so it has no effect; did you mean"
GIVEN = "HOROVOD_FUSION_TRESHOLD=0"


def test_in_the_launchers_environment():
    done = run_job(["-np", "2", sys.executable, "-c", CODE], environment={"HOROVOD_FUSION_TRESHOLD": "0"})
    assert done.code == 0
    assert done.err.count(TOLD) == 1
    assert f"horovodrun: warning: {TOLD} HOROVOD_FUSION_THRESHOLD?" in done.err


def test_in_front_of_the_command():
    done = run_job(["-np", "2", GIVEN, sys.executable, "-c", CODE])
    assert done.err.count(TOLD) == 1


def test_in_the_program():
    done = run_job(["-np", "2", sys.executable, "-c", CODE, GIVEN])
    assert done.err.count(TOLD) == 1
    assert "[0]<stderr>:" in done.err


def test_without_a_launcher():
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=marked_environment({"HOROVOD_FUSION_TRESHOLD": "0"}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr.count(TOLD)) == (0, 1), done.stderr
