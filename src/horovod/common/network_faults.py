"""Injection of network faults: cutting off this host or slowing down a link, with Linux tools and sufficient rights.

``horovod.chaos.network`` (pure) makes the input for these tools. If a fault cannot be injected, the reason is logged
and the job continues.
"""

import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from horovod.chaos import Event, Kind
from horovod.chaos import network as said
from horovod.chaos.events import HEAD_START
from horovod.chaos.targets import Ranks, host, link, why_not
from horovod.common.network import interfaces

LIMIT = 5.0
"""Seconds allowed for one call of a tool."""

_SEARCH = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
_NET_ADMIN = 12  # CAP_NET_ADMIN
_UNKNOWN = "qdisc kind is unknown"
_PACKAGES = {"nft": "nftables", "tc": "iproute2"}


class NotDoneError(Exception):
    """The fault could not be injected; the text says why."""


def act(event: Event, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Inject a fault of the kinds in ``targets.ON_NETWORKS``.

    Args:
        event: The fault.
        ranks: Members of the job.
        say: Logs a remark on the event: its target, or "not done: " and the reason.
    """
    try:
        if why := why_not(event, ranks):
            raise NotDoneError(why)
        if not _may():
            raise NotDoneError("this process may not change the network; that takes CAP_NET_ADMIN")
        if event.kind is Kind.CUT:
            _cut(event, ranks, say)
        else:
            _slow(event, ranks, say)
    except NotDoneError as error:
        say(f"not done: {error}")


def addresses() -> tuple[str, ...]:
    """Return this process's network addresses that other hosts may reach; empty if the kernel does not list them."""
    try:
        return tuple(address.text for each in _outward() for address in each.addresses)
    except NotDoneError:
        return ()


def _cut(event: Event, ranks: Ranks, say: Callable[[str], None]) -> None:
    try:
        text = said.cut([each.name for each in _outward()], event.lasts)
    except ValueError as error:
        raise NotDoneError(str(error)) from None
    _run(["nft", "-f", "-"], said.prepare())
    say(f"host {host(event, ranks)}")
    time.sleep(HEAD_START)  # gives the log line time to reach the launcher
    _run(["nft", "-f", "-"], text)


def _slow(event: Event, ranks: Ranks, say: Callable[[str], None]) -> None:
    one, other = link(event, ranks)
    far = other if ranks.own == one else one
    ways = _ways(ranks.members[far].addresses)
    if not ways:
        raise NotDoneError(f"no way to rank {far} on host {ranks.members[far].host} is known")
    done: list[str] = []
    try:
        for name, targets in ways.items():
            first, *rest = said.slow(name, targets, event.by or 0.0)
            _run(first)
            done.append(name)
            for words in rest:
                _run(words)
        _undo_later([said.slow_no_more(name) for name in done], event.lasts)
    except NotDoneError:
        for name in done:
            _run(said.slow_no_more(name))
        raise
    say(f"packets to rank {far}" if ranks.own == one else f"the other end, packets to rank {far}")


def _ways(targets: Sequence[str]) -> dict[str, list[str]]:
    """Return the targets by the interface through which packets to them leave."""
    owners = {address.text: each.name for each in _outward() for address in each.addresses}
    ways: dict[str, list[str]] = {}
    for target in targets:
        name = owners.get(interfaces.source_address(target) or "")
        if name is not None:
            ways.setdefault(name, []).append(target)
    return ways


def _outward() -> list[interfaces.Interface]:
    try:
        found = [each for each in interfaces.scan() if not each.loopback]
    except OSError as error:
        raise NotDoneError(f"the network interfaces are not known: {error}") from None
    if not found:
        raise NotDoneError("this process sees no network but the loopback")
    return found


def _may() -> bool:
    try:
        with open("/proc/thread-self/status") as file:
            mask = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return True  # unknown; the tool will report an error
    return bool(int(mask, 16) >> _NET_ADMIN & 1)


def _program(name: str) -> str:
    path = shutil.which(name, path=_SEARCH)
    if path is None:
        raise NotDoneError(f"there is no program {name} here (package {_PACKAGES[name]})")
    return path


def _run(words: Sequence[str], text: str = "") -> None:
    command = [_program(words[0]), *words[1:]]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotDoneError(f"{shlex.join(words)} did not end within {LIMIT:g} s") from None
    except OSError as error:
        raise NotDoneError(f"{shlex.join(words)}: {error.strerror}") from None
    if done.returncode:
        complaint = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0]
        lacks = "this kernel lacks a part that it takes (sch_prio, sch_netem): " if _UNKNOWN in complaint else ""
        raise NotDoneError(f"{lacks}{shlex.join(words)}: {complaint}")


_held: set[int] = set()
"""Descriptors whose closing removes the slowdowns of this process."""


def _let_go(descriptor: int) -> None:
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def _not_in_children() -> None:
    """Close the descriptors in a forked child (such as a data loader worker), which may outlive this process."""
    for descriptor in list(_held):
        _let_go(descriptor)


os.register_at_fork(after_in_child=_not_in_children)


def _undo_later(commands: Sequence[Sequence[str]], lasts: float | None) -> None:
    """Run ``commands`` after ``lasts`` seconds, or when this process ends for whatever reason.

    A shell waits for both. It is reparented and in its own session, so that whatever ends this process does not end it.
    """
    reading, writing = os.pipe()
    _held.add(writing)
    undo = "; ".join(shlex.join([_program(words[0]), *words[1:]]) for words in commands)
    waiting = f"trap exit TERM INT HUP; trap {shlex.quote(undo)} EXIT; read nothing <&{reading}"
    try:
        subprocess.Popen(
            ["/bin/sh", "-c", f"({waiting}) >/dev/null 2>&1 </dev/null &"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(reading,),
            start_new_session=True,
        ).wait(LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        _let_go(writing)
        raise NotDoneError(f"a shell that would undo it does not start: {error}") from None
    finally:
        os.close(reading)
    if lasts is not None:
        timer = threading.Timer(lasts, _let_go, (writing,))
        timer.daemon = True
        timer.start()
