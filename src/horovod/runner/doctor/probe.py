"""Program of the doctor on each host, run as the only worker there; writes a HostReport into its result file.

Environment, limits and cores of this process are those of a training script.
"""

from __future__ import annotations

import os

import msgspec

from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.network.connecting import Listeners
from horovod.common.network.interfaces import (
    Endpoint,
    network_identity,
    parse_names,
    parse_ports,
    source_address,
    to_listen,
    to_try,
)
from horovod.common.security.auth import derive_key
from horovod.common.store.client import StoreClient, StoreError
from horovod.runner.agent.workers import RESULT_FD
from horovod.runner.doctor import host, pairs
from horovod.runner.doctor.report import HostReport, Measured, Tried

ROUNDS = 7  # rounds of measurements between pairs; enough for all pairs of up to 8 hosts
MEET_SECONDS = 30.0


class _Meeting(msgspec.Struct, array_like=True):
    """Message that each rank sends to all others."""

    network: str
    endpoints: list[Endpoint]


def main() -> None:
    """Check this host and its network, and write the report."""
    fd = int(os.environb.pop(RESULT_FD))
    report = host.examine()
    env = WorkerEnv.from_environ()
    if env.size > 1:
        try:
            report = _with_network(report, env)
        except (StoreError, ValueError, OSError) as error:
            report = msgspec.structs.replace(report, pairs_error=str(error)[:4000])
    with open(fd, "wb") as file:
        file.write(msgspec.msgpack.encode(report))


def _with_network(report: HostReport, env: WorkerEnv) -> HostReport:
    assert env.rendezvous_addr is not None
    assert env.rendezvous_port is not None
    job_key = env.job_key()
    key = derive_key(job_key, "doctor")
    ports = parse_ports(os.environ.get("HOROVOD_PORT_RANGE", "").strip())
    # Check all interfaces, even if the user has selected one, because another may be the solution.
    listeners = Listeners(to_listen(report.interfaces, "", alone=False), 64, ports)
    server = pairs.Server(listeners, key, env.rank)
    try:
        with StoreClient(job_key, env.rendezvous_addr, env.rendezvous_port) as store:
            mine = msgspec.msgpack.encode(_Meeting(network_identity(), listeners.endpoints))
            _, values = store.exchange("doctor", env.rank, env.size, mine, MEET_SECONDS)
            peers = [msgspec.msgpack.decode(value, type=_Meeting) for value in values]
            tried = _try(peers, key, env.rank)
            _, values = store.exchange("tried", env.rank, env.size, msgspec.msgpack.encode(tried), MEET_SECONDS)
            everybodys = [msgspec.msgpack.decode(value, type=list[Tried]) for value in values]
            measured = []
            for number, round_ in enumerate(pairs.rounds(env.size, ROUNDS)):
                for pair in round_:
                    if env.rank in pair:
                        measured += _measure(pair, env.rank, peers, everybodys, key)
                store.exchange(f"measured {number}", env.rank, env.size, b"", MEET_SECONDS)
    finally:
        server.close()
    return msgspec.structs.replace(report, tried=tried, measured=measured)


def _try(peers: list[_Meeting], key: bytes, rank: int) -> list[Tried]:
    mine = peers[rank]
    targets = [
        (number, endpoint)
        for number, peer in enumerate(peers)
        if number != rank
        for endpoint in to_try(mine.endpoints, peer.endpoints, peer.network == mine.network, source_address)
    ]
    return pairs.try_all(targets, key, rank)


def _measure(
    pair: tuple[int, int], rank: int, peers: list[_Meeting], tried: list[list[Tried]], key: bytes
) -> list[Measured]:
    """Measure the pair's connection if this rank must: the lower rank sends, unless only the other one can connect."""
    wanted = parse_names(os.environ.get("HOROVOD_GLOO_IFACE", ""))
    for source, target in (pair, pair[::-1]):
        good = [each for each in tried[source] if each.peer == target and not each.outcome]
        good.sort(key=lambda each: bool(wanted) and each.interface not in wanted)
        if good:
            endpoint = next(each for each in peers[target].endpoints if each.address == good[0].address)
            return [pairs.measure(endpoint, key, rank, target)] if source == rank else []
    return []


if __name__ == "__main__":
    main()
