"""Cluster and network parameters of a prediction, and the files that keep calibrated ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from horovod import _core

FORMAT = 1
_BUILT_IN = Path(__file__).with_name("networks")


@dataclass(frozen=True)
class Layout:
    """Number of hosts, and of workers on each."""

    nodes: int
    per_node: int = 1

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_node < 1:
            raise ValueError(f"nodes and workers per node must be at least 1, got {self.nodes} and {self.per_node}")

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.nodes * self.per_node


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Links between and inside hosts, and the constants that were fitted to measurements.

    Attributes:
        format: Version of the format.
        name: Name.
        source: Where the figures come from.
        bandwidth: Line rate of a host's network interface, in bytes per second and direction.
        latency: Seconds per message between hosts.
        intra_bandwidth: Bytes per second and direction between workers of a host.
        intra_latency: Seconds per message inside a host.
        gamma: Seconds per byte of a reduction.
        efficiency: Fraction of ``bandwidth`` that transfers reach.
        overhead: Fraction by which forward and backward take longer as soon as there are several workers.
        calibrated_at: Line rate at which the constants were fitted; None: not calibrated.
        workers: Smallest and largest number of workers that the constants were fitted to; None: not calibrated.
    """

    format: int = FORMAT
    name: str = ""
    source: str = ""
    bandwidth: float
    latency: float
    intra_bandwidth: float
    intra_latency: float
    gamma: float = 0.0
    efficiency: float = 1.0
    overhead: float = 0.0
    calibrated_at: float | None = None
    workers: tuple[int, int] | None = None


def assumed(device: str, bandwidth: float) -> Network:
    """Return a network that is not calibrated, with defaults for all but the bandwidth.

    The defaults are those of the engine's cost model. For GPUs, the latency inside a host is that of a fit that was
    published for four GPUs (arXiv 1811.11141), and reductions cost nothing beside the transfer.
    """
    model = _core.cost_model()
    gpu = device == "gpu"
    return Network(
        bandwidth=bandwidth,
        latency=model["alpha"],
        intra_bandwidth=1 / model["local_beta"],
        intra_latency=7e-6 if gpu else model["local_alpha"],
        gamma=0.0 if gpu else model["gamma"],
    )


def _check(network: Network) -> None:
    if network.format != FORMAT:
        raise ValueError(f"`format` must be {FORMAT}, got {network.format}: it was written by another version")
    for name in ("bandwidth", "intra_bandwidth", "efficiency"):
        if not getattr(network, name) > 0:
            raise ValueError(f"`{name}` must be above 0, got {getattr(network, name)}")
    for name in ("latency", "intra_latency", "gamma", "overhead"):
        if not 0 <= getattr(network, name) < float("inf"):
            raise ValueError(f"`{name}` must be a number of at least 0, got {getattr(network, name)}")


def built_in() -> list[str]:
    """Return the names of the networks that ship with the package."""
    return sorted(path.stem for path in _BUILT_IN.glob("*.json"))


def load(name_or_path: str | Path) -> Network:
    """Read a network from a file, or a built-in one by its name.

    Raises:
        ValueError: If the content is not valid; the message names the file and the field.
        OSError: If the file cannot be read.
    """
    name = str(name_or_path)
    path = _BUILT_IN / f"{name}.json" if name in built_in() else Path(name)
    if not path.exists():
        names = ", ".join(built_in())
        raise ValueError(f"no network {name!r}: there is no such file, and the built-in ones are {names}")
    try:
        network = msgspec.json.decode(path.read_bytes(), type=Network)
        _check(network)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path} is not a network: {error}") from None
    return network


def save(network: Network, path: str | Path) -> None:
    """Write a network to a file. Raises ValueError if it is invalid."""
    _check(network)
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(network), indent=1) + b"\n")


def power_of_two_nodes(largest: int) -> Sequence[int]:
    """Return 1, 2, 4, ... up to ``largest``, which is included."""
    steps = [1 << k for k in range(largest.bit_length()) if 1 << k < largest]
    return [*steps, largest]
