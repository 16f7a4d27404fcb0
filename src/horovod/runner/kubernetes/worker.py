"""Program of the worker pods, which starts one agent for each rank of the pod and connects it to the launcher.

The program ends when the job ends. If Kubernetes terminates the pod (SIGTERM), `hvd.should_stop()` becomes True in its
ranks.

    horovod.runner.kubernetes.worker --launcher NAME --port P --slots-per-pod K --patience S [--elastic]
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType

from horovod.common.network.interfaces import Endpoint, network_identity
from horovod.runner.base.linux import SHM_DEFAULT, WARNING
from horovod.runner.cluster import ArrivalError, Ticket, become_agent
from horovod.runner.kubernetes.manifests import (
    LAUNCHER_HOST,
    NAMESPACE_VARIABLE,
    NODE_VARIABLE,
    POD_VARIABLE,
    SHM_PATH,
    TOKEN_VARIABLE,
)
from horovod.runner.kubernetes.values import token_key

# Variable that Kubernetes sets in the pods of an Indexed Job
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"
EVERY = 0.5  # Seconds between two lookups of the launcher's name while it does not exist
ANOTHER_NAME = 1.2
"""Seconds before the second name is tried.

The cluster's name server can cache for 5 s that the first name does not exist. It knows the name of a pod about 1 s
after the pod has started.
"""
# Seconds between connection attempts while the launcher's name exists but the launcher is not listening yet.
LISTENS = 0.1
PROBE_SECONDS = 5.0


class Pod:
    """Agents of the ranks that run in this pod."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._agents: list[int] = []  # Process ids of the agents, which are process group leaders
        self._warned = False
        self.troubles: list[str] = []

    def started(self, leader: int) -> None:
        """Record the process id of an agent that has started."""
        with self._lock:
            self._agents.append(leader)
        if self._warned:
            self._warn(leader)

    def warn(self) -> bool:
        """Warn the ranks that the pod will be terminated. Return False if no ranks are running yet."""
        self._warned = True
        for leader in self._agents:
            self._warn(leader)
        return bool(self._agents)

    @staticmethod
    def _warn(leader: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, WARNING)

    def serve(self, ticket: Ticket, number: int, label: str, environ: Mapping[str, str]) -> None:
        """Run the agent of one rank until the job has ended."""
        try:
            become_agent(ticket, number, label=label, environ=environ, started=self.started)
        except (ArrivalError, OSError) as error:
            self.troubles.append(str(error))


def names_of(launcher: str, namespace: str = "") -> list[str]:
    """Return the possible names of the launcher's pod, in the order in which to try them.

    The full name, which contains the namespace, comes first. While it does not exist yet, the short name could resolve
    to another Service or to a host outside the cluster.

    Args:
        launcher: Name of the launcher's Service, or an address.
        namespace: Namespace of the job, or an empty string if unknown.
    """
    try:
        ipaddress.ip_address(launcher)
    except ValueError:
        return [f"{LAUNCHER_HOST}.{launcher}.{namespace}.svc", launcher] if namespace else [launcher]
    return [launcher]


def find(names: Sequence[str], port: int, seconds: float, now: Callable[[], float] = time.monotonic) -> list[Endpoint]:
    """Wait until the launcher listens at one of the given names, and return its addresses.

    Raises:
        TimeoutError: If the launcher is not listening after `seconds`.
    """
    until, tried = now() + seconds, 0
    while True:
        name, wait = names[tried % len(names)], ANOTHER_NAME if tried == 0 and len(names) > 1 else EVERY
        try:
            found = _addresses(name, port)
            if any(map(_responds, found)):
                return found
            trouble, wait = f"{', '.join(map(str, found))}: no answer", LISTENS
        except socket.gaierror as error:
            trouble = f"the name {name!r} cannot be resolved: {error.strerror}"
        if now() >= until:
            raise TimeoutError(
                f"waited {seconds:g} s for the launcher's pod ({trouble}); it has not started, or has ended already. A "
                "network policy has to let pods of the job reach each other"
            )
        time.sleep(min(wait, max(0.0, until - now())))
        tried += 1


def _addresses(launcher: str, port: int) -> list[Endpoint]:
    found = socket.getaddrinfo(launcher, port, type=socket.SOCK_STREAM)
    return [
        Endpoint("", str(address[0]), 128 if family == socket.AF_INET6 else 32, port)
        for family, _, _, _, address in found
    ]


def _responds(endpoint: Endpoint) -> bool:
    try:
        socket.create_connection((endpoint.address, endpoint.port), PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def shm_warning(total: int, path: str = SHM_PATH) -> str:
    """Return a warning if /dev/shm is too small, or an empty string. `total` is its size in bytes."""
    if total > SHM_DEFAULT:
        return ""
    return (
        f"{path} has {total / 2**20:g} MiB, which NCCL and data loaders soon fill; mount an emptyDir of medium Memory "
        "there (horovodrun kubernetes does so, where no template says something else)"
    )


def _look_at_shm() -> None:
    try:
        found = os.statvfs(SHM_PATH)
        text = shm_warning(found.f_blocks * found.f_frsize)
    except OSError as error:
        text = f"{SHM_PATH} cannot be used: {error.strerror}; NCCL and data loaders need it"
    if text:
        _log(f"warning: {text}")


def number_of(environ: Mapping[str, str]) -> int:
    """Return the completion index of this pod. Raises ValueError if the pod does not belong to an Indexed Job."""
    text = environ.get(INDEX_VARIABLE, "")
    if not text.isdecimal():
        raise ValueError(f"{INDEX_VARIABLE} must be the number of a pod of an Indexed Job, got {text!r}")
    return int(text)


def run(options: argparse.Namespace, environ: dict[str, str]) -> int:
    """Run the agents of this pod and return the exit code. Raises ValueError or TimeoutError."""
    pod = Pod()

    def end(number: int, _frame: FrameType | None) -> None:
        if not pod.warn():
            os._exit(128 + number)  # Exit now, because no rank is running that needs time to save its state.

    signal.signal(signal.SIGTERM, end)
    key = token_key(environ.pop(TOKEN_VARIABLE, ""))
    index = number_of(environ)
    name, node, namespace = (environ.pop(each, "") for each in (POD_VARIABLE, NODE_VARIABLE, NAMESPACE_VARIABLE))
    _look_at_shm()
    endpoints = find(names_of(options.launcher, namespace), options.port, options.patience)
    # Use all addresses of the launcher's name. On the host network, this includes all addresses of its node.
    ticket = Ticket(tuple(endpoints), network_identity(), key)
    threads = []
    for slot in range(options.slots_per_pod):
        # If two pods choose the same number, the launcher rejects the second, and its replacement chooses a new one.
        number = secrets.randbits(31) if options.elastic else index * options.slots_per_pod + slot
        parts = [f"pod {name}" if name else f"pod {index}", *([f"slot {slot}"] if options.slots_per_pod > 1 else [])]
        label = " ".join([", ".join(parts), *([f"on {node}"] if node else [])])
        threads.append(threading.Thread(target=pod.serve, args=(ticket, number, label, environ)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for trouble in pod.troubles:
        _log(f"error: {trouble}")
    # Exit with code 1 so that Kubernetes replaces this pod while the elastic job continues.
    lost = options.elastic and any(map(_responds, endpoints))
    return 1 if pod.troubles or lost else 0


def _log(text: str) -> None:
    print(f"horovod pod: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the worker pod's program with the arguments of this process and return the exit code."""
    parser = argparse.ArgumentParser(prog="horovod.runner.kubernetes.worker")
    parser.add_argument("--launcher", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots-per-pod", type=int, default=1)
    parser.add_argument("--patience", type=float, default=600.0)
    parser.add_argument("--elastic", action="store_true")
    try:
        return run(parser.parse_args(), dict(os.environ))
    except (OSError, ValueError) as error:
        _log(f"error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
