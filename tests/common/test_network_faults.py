"""A rank cuts its host off or makes a link slow, with fake tools that record their arguments.

tests/cluster/test_elastic.py uses the real tools.
"""

import time
from pathlib import Path

import pytest

from horovod.chaos import Event, Kind
from horovod.chaos.events import Member, Ranks
from horovod.common import faults
from horovod.common.network.interfaces import Address, Interface

RANKS = Ranks(0, (Member("a", "1", ("10.0.0.1",)), Member("b", "2", ("10.0.0.2",))))
CUT = Event(Kind.CUT, host="a", lasts=2.0)
SLOW = Event(Kind.SLOW, link=(0, 1), by=0.005)
TOOL = """#!/bin/sh
[ "$1" = -f ] && cat >> {log}
echo "$(basename $0) $*" >> {log}
case "$*" in {fails}) echo "{complaint}" >&2; exit 2;; esac
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of tools; `write(fails=...)` rewrites them so that calls whose arguments match the pattern fail."""
    log = tmp_path / "log"
    log.touch()

    def write(fails="none", complaint="Error: it cannot.") -> Path:
        for name in ("nft", "tc"):
            (tmp_path / name).write_text(TOOL.format(log=log, fails=fails, complaint=complaint))
            (tmp_path / name).chmod(0o755)
        return log

    found = [
        Interface("lo", True, True, False, 65536, 0, [Address("127.0.0.1", 8)]),
        Interface("eth0", True, False, True, 1500, 0, [Address("10.0.0.1", 24)]),
    ]
    monkeypatch.setattr(faults, "_SEARCH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(faults, "HEAD_START", 0.01)
    monkeypatch.setattr(faults, "_may", lambda: True)
    monkeypatch.setattr(faults.interfaces, "scan", lambda: found)
    monkeypatch.setattr(faults.interfaces, "source_address", lambda target: "10.0.0.1")
    return write


def commands(event: Event, ranks: Ranks = RANKS) -> list[str]:
    remarks: list[str] = []
    faults.inject_on_network(event, ranks, remarks.append)
    return remarks


def test_cuts_are_prepared_logged_and_executed(tools):
    log = tools()
    assert commands(CUT) == ["host a"]
    lines = log.read_text().splitlines()
    assert [line for line in lines if line.startswith("nft")] == ["nft -f -"] * 2
    assert lines[-2] == 'add element inet horovod_chaos down { "eth0" timeout 2000ms }'
    assert lines.count("flush set inet horovod_chaos down") == 1, "only the second call cuts it off"


def test_a_slow_link_ends_after_its_time(tools):
    log = tools()
    assert commands(Event(Kind.SLOW, link=(0, 1), by=0.005, lasts=0.2)) == ["packets to rank 1"]
    assert log.read_text().splitlines()[:3] == [
        "tc qdisc add dev eth0 root handle c4a0: prio bands 4",
        "tc qdisc add dev eth0 parent c4a0:4 handle c4a1: netem delay 5000us limit 100000",
        "tc filter add dev eth0 parent c4a0: protocol ip prio 1 u32 match ip dst 10.0.0.2/32 flowid c4a0:4",
    ]
    wait_for(log, "tc qdisc del dev eth0 root handle c4a0:")


def test_the_remote_end_of_a_link(tools):
    tools()
    there = Ranks(1, RANKS.members)
    assert commands(Event(Kind.SLOW, link=(0, 1), by=0.005, lasts=0.01), there) == ["the other end, packets to rank 0"]


def wait_for(log: Path, line: str) -> None:
    deadline = time.monotonic() + 30
    while line not in log.read_text().splitlines():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.01)
