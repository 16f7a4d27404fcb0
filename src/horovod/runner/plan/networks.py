"""Network that the hosts of a job share. Pure function of the facts that their agents report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from horovod.common.network.interfaces import Interface

Interfaces = Sequence[Interface]


def common_interfaces(hosts: Mapping[str, Interfaces]) -> dict[str, str]:
    """Return the interface of each host in the best network that all of them share; empty if they share none."""
    return {host: interface.name for host, (interface, _) in _common(hosts).items()}


def common_addresses(hosts: Mapping[str, Interfaces]) -> dict[str, str]:
    """Return the address of each host in that network; empty if they share none."""
    return {host: address for host, (_, address) in _common(hosts).items()}


def _common(hosts: Mapping[str, Interfaces]) -> dict[str, tuple[Interface, str]]:
    """Return interface and address of each host in the best network that all of them share.

    Physical devices are preferred to bridges and tunnels, then fast ones to slow ones, then IPv4 to IPv6. A network in
    which two machines have the same address does not connect them, such as every host's docker0.
    """
    machines = {_identity(interfaces): interfaces for interfaces in hosts.values()}
    best: tuple[tuple[bool, int, bool], str] | None = None
    for _, address, network in _places(next(iter(machines.values()), ())):
        entries = [_entry(interfaces, network) for interfaces in machines.values()]
        if any(entry is None for entry in entries):
            continue
        found = [entry for entry in entries if entry is not None]
        if len({text for _, text in found}) < len(found):
            continue
        every = [entry[0] for entry in found]
        rank = (all(i.physical for i in every), min(i.speed for i in every), ":" not in address)
        if best is None or rank > best[0]:
            best = (rank, network)
    if best is None:
        return {}
    chosen = {host: _entry(interfaces, best[1]) for host, interfaces in hosts.items()}
    return {host: entry for host, entry in chosen.items() if entry is not None}


def _places(interfaces: Interfaces) -> Iterator[tuple[Interface, str, str]]:
    for interface in interfaces:
        if interface.up and not interface.loopback:
            for address in interface.addresses:
                yield interface, address.text, str(address.network)


def _entry(interfaces: Interfaces, network: str) -> tuple[Interface, str] | None:
    return next(((i, address) for i, address, of in _places(interfaces) if of == network), None)


def _identity(interfaces: Interfaces) -> frozenset[str]:
    """Return a key that is equal for two names of one machine: the set of all its addresses."""
    return frozenset(address for _, address, _ in _places(interfaces))
