"""Checks of a job's hosts, which produce findings.

Each check is a pure function that converts the hosts' answers to findings. A check that finds no problem returns at
most one finding per host.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Sequence

from horovod.common.network.interfaces import parse_names
from horovod.runner.command.check_build import usable
from horovod.runner.doctor import container, devices, mpi
from horovod.runner.doctor.report import FAIL, OK, WARN, Finding, HostReport, HostResult, LinkSpeed

# Connection time in seconds above which a host is reported as slow
SLOW_CONNECT = 5.0
# Difference in seconds above which the clocks of two hosts are reported
CLOCK_TOLERANCE = 2.0
LOW_MEMORY = 0.05  # Fraction of available memory below which a host is reported
LOW_PROCESSES = 2048
SLOW_GIGABITS = 0.5
# Warn if a single TCP connection is slower than SLOW_PART times its interface's nominal speed. Interfaces with a
# nominal speed above TRUSTED_MEGABITS Mbit/s are not checked.
SLOW_PART = 0.25
TRUSTED_MEGABITS = 10000
SLOW_ROUND_TRIP_US = 1000.0

Check = Callable[[Sequence[HostResult]], Iterator[Finding]]
FIREWALL = (
    "let ranks connect to each other's ports in the firewall; HOROVOD_PORT_RANGE=low-high limits which ports they are"
)


def judge(results: Sequence[HostResult]) -> list[Finding]:
    """Run all checks, and return their findings in order."""
    return [finding for check in CHECKS for finding in check(results)]


def _reports(results: Sequence[HostResult]) -> Iterator[tuple[HostResult, HostReport]]:
    for answer in results:
        if answer.report is not None:
            yield answer, answer.report


def connection(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the agent on each host has answered, and report slow answers."""
    for each in results:
        if each.failure:
            what, _, advice = each.failure.partition("\n")
            yield Finding(FAIL, "connection", each.host, what, advice)
        elif each.report is None:
            yield Finding(FAIL, "connection", each.host, "the checks there did not finish")
        elif each.remote and each.connect_seconds > SLOW_CONNECT:
            yield Finding(
                WARN,
                "connection",
                each.host,
                f"it took {each.connect_seconds:.1f} s until the agent answered",
                "sshd may look up names (`UseDNS no` in its configuration), or Python starts from a slow disk",
            )
        else:
            yield Finding(OK, "connection", each.host, "an agent answers")


def versions(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that all hosts have the same Python version. Different versions of horovod are detected earlier."""
    found = {answer.host: ".".join(report.python.split(".")[:2]) for answer, report in _reports(results)}
    yield from _compare(
        "Python",
        found,
        "what horovod.run sends, and files of checkpoints, may not be readable elsewhere; --remote-python or `python=` "
        "in the host file name another interpreter",
    )


def frameworks(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that all hosts have the same versions of the same frameworks."""
    names = sorted({name for _, report in _reports(results) for name in report.frameworks})
    if any(answer.report for answer in results) and not usable(names):
        what = "no usable framework is installed"
        yield Finding(WARN, "frameworks", "", what, "install PyTorch, TensorFlow or Keras")
    for name in names:
        found = {answer.host: report.frameworks.get(name, "none") for answer, report in _reports(results)}
        yield from _compare(name, found, "install the same version on all hosts")


def _compare(check: str, found: dict[str, str], advice: str) -> Iterator[Finding]:
    """Yield a warning if the values in `found` differ between hosts."""
    if len(set(found.values())) > 1:
        texts = [
            f"{value} on {_list([h for h, v in found.items() if v == value])}" for value in sorted(set(found.values()))
        ]
        yield Finding(WARN, check, "", "differs: " + "; ".join(texts), advice)
    elif found:
        yield Finding(OK, check, "", next(iter(found.values())))


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def engine(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that each host can load the native engine and supports encrypted connections."""
    for result, report in _reports(results):
        if report.engine_error:
            yield Finding(
                FAIL,
                "engine",
                result.host,
                f"the engine cannot be loaded: {report.engine_error}",
                f"reinstall horovod for {report.executable} (Python {report.python})",
            )
        elif not report.ciphers and len(results) > 1:
            yield Finding(
                FAIL,
                "engine",
                result.host,
                "no library to encrypt connections between hosts with",
                "install OpenSSL's libcrypto (Debian: libssl3), or pyzmq from its wheel, which brings libsodium",
            )
        else:
            yield Finding(OK, "engine", result.host, "it loads")


def processors(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that each host has enough cores for its ranks and is otherwise idle."""
    for result, report in _reports(results):
        usable = report.cores if report.quota is None else min(report.cores, report.quota)
        if result.slots > usable:
            why = "" if report.quota is None or report.quota >= report.cores else ", the container's quota"
            yield Finding(
                WARN,
                "cores",
                result.host,
                f"{result.slots} ranks on {usable:g} cores{why}",
                "ranks that share cores wait for each other; start fewer, or allow more cores",
            )
        elif report.load > max(0.5, 0.5 * report.cores):
            yield Finding(
                WARN,
                "cores",
                result.host,
                f"its load is {report.load:.1f} on {report.cores} cores: something else is running",
                "the figures between hosts may be lower than usual",
            )
        else:
            yield Finding(OK, "cores", result.host, f"{report.cores}")


def memory(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the ranks of a host can share memory, and that enough memory is available."""
    for result, report in _reports(results):
        if report.memfd_error:
            yield Finding(
                FAIL,
                "memory",
                result.host,
                f"ranks there cannot share memory: {report.memfd_error}",
                "raise the limit of file sizes (`ulimit -f`, LimitFSIZE of a service) or of the container's memory",
            )
        elif 0 <= report.memory_available < LOW_MEMORY * report.memory:
            free = f"{report.memory_available / (1 << 30):.1f} GiB"
            yield Finding(
                WARN, "memory", result.host, f"only {free} of memory is available", "end what else runs there"
            )
        else:
            yield Finding(OK, "memory", result.host, "can be shared")


def limits(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check the limits on processes and file descriptors. Each rank needs a connection to every other rank."""
    ranks = sum(result.slots for result in results)
    needed = 256 + 4 * ranks
    for result, report in _reports(results):
        files, processes = (report.limits.get(name, (-1, -1))[0] for name in ("nofile", "nproc"))
        if files not in (-1, resource.RLIM_INFINITY) and files < needed:
            yield Finding(
                FAIL,
                "limits",
                result.host,
                f"a process may open {files} files and sockets; {ranks} ranks need about {needed}",
                "raise `ulimit -n` (nofile in /etc/security/limits.conf, LimitNOFILE of a service)",
            )
        elif processes not in (-1, resource.RLIM_INFINITY) and processes < LOW_PROCESSES:
            yield Finding(
                WARN,
                "limits",
                result.host,
                f"the user may have {processes} processes and threads; frameworks start many",
                "raise `ulimit -u` (nproc in /etc/security/limits.conf, pids of the container)",
            )
        else:
            yield Finding(OK, "limits", result.host, "high enough")


def clocks(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that the hosts' clocks agree, so that timestamps in logs and files are comparable."""
    for answer, _ in _reports(results):
        if abs(answer.clock_offset) > CLOCK_TOLERANCE:
            way = "ahead of" if answer.clock_offset > 0 else "behind"
            text = f"its clock is {abs(answer.clock_offset):.1f} s {way} this machine's"
            yield Finding(WARN, "clock", answer.host, text, "let NTP (chrony, systemd-timesyncd) set both")
        else:
            yield Finding(OK, "clock", answer.host, "the same")


def interfaces(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that each host has a network interface, and that all hosts on a network use the same MTU."""
    if len(results) < 2:
        return
    sizes: dict[str, dict[str, int]] = {}
    for answer, report in _reports(results):
        useful = [each for each in report.interfaces if each.up and not each.loopback and each.addresses]
        if not useful:
            yield Finding(FAIL, "network", answer.host, "no interface is up and has an address", "see `ip address`")
        for each in useful:
            for address in each.addresses:
                sizes.setdefault(str(address.network), {})[answer.host] = each.mtu
    for network, by_host in sizes.items():
        if len(set(by_host.values())) > 1:
            shown = ", ".join(f"{size} on {host}" for host, size in by_host.items())
            yield Finding(
                WARN,
                "network",
                "",
                f"hosts on {network} send packets of different sizes (MTU {shown})",
                "large ones may be lost on the way: `ip link set INTERFACE mtu N`, the same everywhere",
            )


def reachability(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Check that each pair of hosts can connect in at least one direction. Using both directions is faster."""
    known = [answer for answer, _ in _reports(results)]
    for i, one in enumerate(known):
        for other in known[i + 1 :]:
            yield from _between(one, other)
    for answer, report in _reports(results):
        if report.pairs_error:
            text = f"connections could not all be tried: {report.pairs_error}"
            yield Finding(FAIL, "network", answer.host, text, "the other findings may say why")


def _between(one: HostResult, other: HostResult) -> Iterator[Finding]:
    there, back = _gets_through(one, other), _gets_through(other, one)
    if there is None or back is None:
        return
    name = f"{one.host} and {other.host}"
    if there and back:
        yield Finding(OK, "network", "", f"{name} reach each other")
    elif there or back:
        source, closed = (one, other) if there else (other, one)
        yield Finding(
            WARN,
            "network",
            "",
            f"{closed.host} does not reach {source.host}, only the other way round: {_outcomes(closed, source)}",
            f"a job works, but takes seconds longer to start; {FIREWALL}",
        )
    else:
        yield Finding(
            FAIL,
            "network",
            "",
            f"{name} do not reach each other: {_outcomes(one, other)}",
            f"{FIREWALL}; or name another network with --network-interfaces",
        )


def _gets_through(result: HostResult, peer: HostResult) -> bool | None:
    """Return True if the host can connect to its peer over a selected interface, or None if this was not tried."""
    assert result.report is not None
    if result.report.pairs_error:
        return None
    wanted = parse_names(result.report.wanted_interfaces)
    tried = [each for each in result.report.tried if each.peer == peer.rank]
    return any(not each.outcome and (not wanted or each.interface in wanted) for each in tried)


def _outcomes(result: HostResult, peer: HostResult) -> str:
    assert result.report is not None
    tried = [each for each in result.report.tried if each.peer == peer.rank]
    shown = [f"{each.address} ({each.interface}): {each.outcome or 'answers'}" for each in tried[:8]]
    return "; ".join(shown) or "they have no network in common"


def speeds(results: Sequence[HostResult]) -> Iterator[Finding]:
    """Report the network speeds that were measured between hosts."""
    known = {answer.rank: answer for answer, _ in _reports(results)}
    for answer, report in _reports(results):
        for each in report.measured:
            if each.peer in known:
                yield _speed(answer, known[each.peer], report, each)


def _speed(result: HostResult, other: HostResult, report: HostReport, each: LinkSpeed) -> Finding:
    name = f"{result.host} to {other.host} at {each.address}"
    if each.error:
        advice = "connections are possible, but data does not get through: are large packets lost (MTU)?"
        return Finding(FAIL, "speed", "", f"{name}: {each.error}", advice)
    figures = f"{name}: {each.gigabits:.2f} Gbit/s, round trip {each.round_trip_us:.0f} us"
    nominal = _nominal(report, each)
    if nominal and each.gigabits * 1000 < SLOW_PART * nominal:
        advice = f"the interface says {nominal / 1000:g} Gbit/s: who else uses the network, is it a busy machine?"
        return Finding(WARN, "speed", "", figures, advice)
    if each.gigabits < SLOW_GIGABITS or each.round_trip_us > SLOW_ROUND_TRIP_US:
        advice = "slow for training: is there a faster network (--network-interfaces)? Compression halves what travels"
        return Finding(WARN, "speed", "", figures, advice)
    return Finding(OK, "speed", "", figures)


def _nominal(report: HostReport, each: LinkSpeed) -> int:
    """Return the interface's nominal speed in Mbit/s, or 0 if it is not comparable with measurements."""
    for interface in report.interfaces:
        if interface.name == each.interface and interface.physical and interface.speed <= TRUSTED_MEGABITS:
            return interface.speed
    return 0


CHECKS: tuple[Check, ...] = (
    connection,
    versions,
    engine,
    frameworks,
    processors,
    memory,
    limits,
    clocks,
    interfaces,
    reachability,
    speeds,
    *container.CHECKS,
    *devices.CHECKS,
    mpi.check,
)
