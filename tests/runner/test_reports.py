"""Real jobs whose end the launcher explains by the ranks' reports."""

import subprocess
import sys

import pytest

from tests.runner.launching import LIMIT, marked_environment, run_job

SCRIPT = """
import os, sys, time
from pathlib import Path
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.frontends import named
from horovod.common.objects import allgather_object

hvd = HorovodBasics("benchmark")
rank, what = int(os.environ["HOROVOD_RANK"]), sys.argv[1]

def gather():
    return allgather_object(0, frontend=named("benchmark"))

if what == "absent":
    if rank == 2:
        time.sleep(600)
    here = Path(__file__).with_name("here")
    if rank == 1:
        os.environ["HOROVOD_START_TIMEOUT"] = "15"  # it still waits when rank 0 gives up
        here.touch()
    while not here.exists():  # imports may take long on a busy machine
        time.sleep(0.01)
    try:
        hvd.init()
    except ValueError:
        if rank == 1:
            raise
        time.sleep(600)  # gave up first, and is not done with that
hvd.init()
gather()
if rank == 1:
    if what == "vanish":
        os._exit(0)
    os.execv("/bin/sleep", ["sleep", "600"])
try:
    gather()
except HorovodInternalError:
    if rank == 0:
        raise
    sys.exit(4)  # without a word
"""


def train(tmp_path, fault):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    done = run_job(["-np", "3", sys.executable, str(path), fault], environment={"HOROVOD_START_TIMEOUT": "2"})
    messages = [line.removeprefix("horovodrun: ") for line in done.err.splitlines() if line.startswith("horovodrun: ")]
    return done, messages


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("vanish", "it ended with exit code 0 without leaving", marks=pytest.mark.heavy),
        ("exec", "the others lost their conn"),
    ],
)
def test_a_rank_that_exits_silently_is_blamed(tmp_path, fault, reason):
    done, messages = train(tmp_path, fault)
    assert done.code in (1, 4)  # the exit code of the first victim
    assert messages[0] == "ranks 0, 2 failed with HorovodInternalError as a consequence"
    assert any(line.startswith("rank 1 on host localhost failed first: " + reason) for line in messages), messages
    assert ("stopped by horovodrun: rank 1" in messages) == (fault == "exec")


@pytest.mark.heavy
def test_ranks_that_gave_up_waiting_are_not_called_absent(tmp_path):
    done, messages = train(tmp_path, "absent")
    assert done.code == 1
    assert "waited 15 s for rank 2 (of 3) to call hvd.init(); see" in done.err
    assert "(rank 0 had come and given up before)" in done.err
    at = messages.index("stopped by horovodrun: ranks 0, 2")
    assert messages[at + 1 : at + 4] == [
        "rank 2 on host localhost failed first: it did not call hvd.init() within 15 s",
        "rank 1 also failed (exit code 1)",
        "what rank 1 on host localhost says:",
    ]


@pytest.mark.heavy
def test_missing_init_is_reported_soon_and_at_the_end(tmp_path):
    """Soon means after a minute, shortened to half a second here."""
    path = tmp_path / "train.py"
    path.write_text("import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n")
    soon = (
        "from horovod.runner import launch; from horovod.runner.job import progress; "
        "progress.FIRST_LOOK = 0.5; raise SystemExit(launch.main())"
    )
    command = [sys.executable, "-c", soon, "-np", "2", sys.executable, str(path), str(tmp_path / "told")]
    with subprocess.Popen(command, env=marked_environment(), stdout=-1, stderr=-1, text=True) as job:
        early = job.stderr.readline()
        (tmp_path / "told").touch()
        out, late = job.communicate(timeout=LIMIT)
    assert early.startswith("horovodrun: still starting: after 0.5 s no rank has called hvd.init() yet. Imports and")
    assert late.startswith("horovodrun: warning: no rank has called hvd.init(), so the same program ran 2 times")
    assert (job.returncode, out, late.count("\n")) == (0, "", 1)
