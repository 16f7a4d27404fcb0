"""Jobs on several hosts that are slow or hang because of a host or the network, and their reports."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.cluster.jobs import LIMIT, launcher, no_leftovers, run_job, running
from tests.runner.test_hangs import HEAD
from tests.testbed.cluster import Cluster

STEPS = """
x = np.ones(100_000, np.float32)
for step in range(60):  # without computing, in which a busy machine would make one of them late
    at = x.ctypes.data
    frontend.run(_core.KIND_ALLREDUCE, "gradient", at, at, x.shape, 7, 1, 0, 1.0, 1.0, 0, None, "", 0).wait()
    hvd.step()
hvd.shutdown()
"""


def test_slow_links_are_distinguished_from_slow_ranks(cluster: Cluster, tmp_path: Path) -> None:
    """No rank is blamed, the link's speed is reported, and the doctor names the hosts."""
    program = tmp_path / "train.py"
    program.write_text(HEAD + STEPS)
    hosts = ["-H", "host1:1,host2:1"]
    cluster.slow_link(2, "100mbit")
    done = run_job(cluster, "-np", "2", *hosts, sys.executable, program)
    assert done.code == 0, done.err
    sentence = re.search(r"2 workers, 60 steps, \d+% of linear; (.*)", done.err)
    assert sentence, done.err
    found = re.fullmatch(
        r"(\d+) ms of each (\d+) ms step were exposed communication \(0\.4 MB at ([\d.]+) MB/s\)", sentence[1]
    )
    assert found, sentence[0]
    assert float(found[3]) < 20
    doctor = cluster.launcher.run([sys.executable, "-m", "horovod.runner", "--doctor", *hosts], timeout=LIMIT)
    warning = r"WARN speed: host1 to host2 at 10\.77\.0\.2: 0\.(0[1-9]|10) Gbit/s"
    assert re.search(warning, doctor.stdout), doctor.stdout + doctor.stderr
    no_leftovers(cluster)


STOPS = """
if rank == 3:
    os.kill(os.getpid(), signal.SIGSTOP)
allreduce("a")
"""


def test_a_stopped_rank_on_another_host(cluster: Cluster, tmp_path: Path) -> None:
    """A neighbour on its host inspects it; the report is requested on rank 0's host before any warning is printed."""
    program = tmp_path / "train.py"
    program.write_text(HEAD + STOPS)
    reports = tmp_path / "reports"
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "600", "HOROVOD_REPORT_DIR": str(reports)}
    arguments = ["-np", "4", "-H", "host1:2,host2:2", sys.executable, program]
    text = ""
    with running(cluster, tmp_path, *arguments, env=env) as job:

        def explained() -> bool:
            nonlocal text
            text = cluster.launcher.run(launcher("--explain", "."), timeout=LIMIT).stdout  # both in its home
            return "its process is stopped" in text

        job.wait_for(explained, "an explanation")
    assert re.search(
        r"rank 3 does not go on: its process is stopped \(SIGSTOP or Ctrl-Z\); `kill -CONT \d+` on its host", text
    )
    assert re.search(r"== rank 3 \(host host2, pid \d+\), which is waited for", text)
    assert "it did not answer; its state was seen from its host" in text
    assert f"This report: {reports}/" in text
