"""A misspelt variable is reported once, wherever it was set."""

import sys

from tests.runner.launching import run_job

CODE = (
    "import os, sys\nos.environ.update(word.split('=') for word in sys.argv[1:])\nfrom horovod.common import basics\n"
    "hvd = basics.HorovodBasics('tests')\nhvd.init()\nhvd.init()\n"
)
TOLD = "HOROVOD_FUSION_TRESHOLD is set, but there is no such setting, so it has no effect; did you mean"


def test_warnings_about_the_launchers_environment():
    done = run_job(["-np", "2", sys.executable, "-c", CODE], environment={"HOROVOD_FUSION_TRESHOLD": "0"})
    assert done.code == 0
    assert done.err.count(TOLD) == 1
    assert f"horovodrun: warning: {TOLD} HOROVOD_FUSION_THRESHOLD?" in done.err
