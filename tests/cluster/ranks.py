"""Ranks on hosts of the test bed, started without a launcher, to test only how they interact."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from horovod.common.contract.worker_env import WorkerEnv, make_key
from tests.testbed.cluster import Cluster
from tests.testbed.hosts import HostProcess

PROGRAM = Path(__file__).with_name("rank_program.py")
STORE = """
import sys, time
from horovod.common.store import StoreServer
server = StoreServer(open(sys.argv[1], "rb").read(), host=sys.argv[2])
print(server.address[1], flush=True)
sys.stdin.read()
"""
PATIENCE = 120.0  # seconds to wait for any expected event


class Rank:
    """A running rank and its reports, in order."""

    def __init__(self, process: HostProcess) -> None:
        self.process = process
        self._buffer = b""

    def receive(self, seconds: float = PATIENCE) -> dict[str, Any]:
        """Return the rank's next report; raise AssertionError with its stderr if none arrives."""
        deadline = time.monotonic() + seconds
        stream = self.process.stdout
        assert stream is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(stream.fileno(), 65536) if ready else b""
            if not data:
                self.process.kill()
                raise AssertionError(f"nothing for {seconds} s: {self.process.communicate()[1].decode()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def is_silent(self, seconds: float) -> bool:
        """Return True if no report arrives for so many seconds."""
        return not self._buffer and not select.select([self.process.stdout], [], [], seconds)[0]


@contextlib.contextmanager
def ranks(
    cluster: Cluster,
    hosts: Sequence[int],
    what: str = "gather",
    env: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
    store: str = "",
) -> Iterator[list[Rank]]:
    """Start a rank on each of `hosts`, given by number; a number may repeat for several ranks on a host.

    Host identities are `names`, host1 and so on by default. The job's store is on the desk, which faults of hosts
    do not cut off; ranks reach it at `store`, by default its address on the first network.
    """
    names = names or [f"host{number}" for number in hosts]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        key = Path(folder, "key")
        key.touch(mode=0o600)
        key.write_bytes(make_key())
        address = store or cluster.desk.address
        server = cluster.desk.popen([sys.executable, "-c", STORE, key, address], stdin=-1)
        stack.callback(_end, server)
        assert server.stdout is not None
        port = int(server.stdout.readline())
        ranks = []
        for rank, number in enumerate(hosts):
            local = [r for r, name in enumerate(names) if name == names[rank]]
            place = WorkerEnv(
                rank=rank,
                size=len(hosts),
                local_rank=local.index(rank),
                local_size=len(local),
                hostname=names[rank],
                rendezvous_addr=address,
                rendezvous_port=port,
                key_file=str(key),
            )
            process = cluster.host(number).popen(
                [sys.executable, PROGRAM, what], env={**place.to_environ(), **(env or {})}
            )
            stack.callback(_end, process)
            ranks.append(Rank(process))
        yield ranks


def _end(process: HostProcess) -> None:
    if process.poll() is None:
        with contextlib.suppress(Exception):
            process.send(9)
    process.kill()
    process.communicate()
