"""The live page of a job whose ranks are all on other hosts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.cluster.jobs import no_litter, running
from tests.runner.dashboard.jobs import HEAD
from tests.testbed.cluster import Cluster

PROGRAM = (
    HEAD
    + """
print("hello from", rank, flush=True)
for step in range(400):
    allreduce("grad")
    hvd.report(loss=1.0 / (step + 1))
    hvd.step()
    time.sleep(0.01)
"""
)
# Follows the page to the end and prints the last of each part.
FOLLOW = """
import json, sys, urllib.request
known = {}
with urllib.request.urlopen(sys.argv[1] + "events", timeout=60) as stream:
    for line in stream:
        if line.startswith(b"data: "):
            known.update(json.loads(line[6:]))
print(json.dumps(known))
"""


def test_figures_of_ranks_on_other_hosts_reach_the_page(cluster: Cluster, tmp_path: Path) -> None:
    hosts = ["-np", "2", "-H", "host1:1,host2:1"]
    words = ["--dashboard", *hosts, sys.executable, "-c", PROGRAM]
    with running(cluster, tmp_path, *words, on=cluster.desk) as job:
        job.wait_for(lambda: "live page: " in job.err, "the address of the page")
        found = re.search(r"http://\S+", job.err)
        assert found is not None
        followed = cluster.desk.run([sys.executable, "-c", FOLLOW, found.group()], timeout=120)
        assert (followed.returncode, followed.stderr) == (0, "")
        assert job.finish().code == 0
    known = json.loads(followed.stdout)
    assert (known["job"]["hosts"], known["job"]["made"], known["job"]["ended"]["code"]) == (2, 400, 0)
    assert {one["rank"]: one["host"] for one in known["ranks"]} == {0: "host1", 1: "host2"}
    assert known["values"][0]["name"] == "loss"
    no_litter(cluster)
