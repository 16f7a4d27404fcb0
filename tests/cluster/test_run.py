"""horovod.run from a script on one host, workers on others."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.jobs import no_leftovers
from tests.testbed.cluster import Cluster

SCRIPT = """
import contextlib, io, os, socket, sys
import horovod

class Place:
    def __init__(self, rank, host, text): self.rank, self.host, self.text = rank, host, text

class Own(Exception): pass

def where(text):
    from horovod.common.basics import HorovodBasics
    from horovod.common.objects import allgather_object
    hvd = HorovodBasics("benchmark")
    hvd.init()
    hosts = allgather_object(socket.gethostname(), "hosts")
    hvd.shutdown()
    assert len(set(hosts)) == 3, hosts
    return Place(hvd_rank(), socket.gethostname(), text)

def hvd_rank():
    return int(os.environ["HOROVOD_RANK"])

def fail():
    print("soon")
    if hvd_rank() == 2:
        raise Own("far away", socket.gethostname())

options = dict(num_proc=3, hosts="host1:1,host2:1,host3:1")
large = os.urandom(3_000_000)
text = io.StringIO()
with contextlib.redirect_stdout(text):
    places = horovod.run(where, (large,), **options)
assert all(isinstance(place, Place) and place.text == large for place in places)
assert text.getvalue() == ""
print([(place.rank, place.host) for place in places])
try:
    horovod.run(fail, **options)
except Own as error:
    print(error.args, error.rank, error.host, error.exit_code)
    assert 'raise Own("far away", socket.gethostname())' in str(error)
"""


def test_functions_results_and_exceptions_cross_hosts(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = cluster.launcher.run([sys.executable, script])
    assert done.returncode == 0, done.stderr
    places, *printed, error = done.stdout.splitlines()
    assert places == "[(0, 'host1'), (1, 'host2'), (2, 'host3')]"
    assert sorted(printed) == [f"[{rank}]<stdout>:soon" for rank in range(3)]
    assert error == "('far away', 'host3') 2 host3 1"
    no_leftovers(cluster)
