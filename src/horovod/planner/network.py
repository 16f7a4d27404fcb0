"""Parameters of the cluster and the network in a prediction, and files with calibrated parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from horovod import _core
from horovod.planner import files

FORMAT = 1
_BUILT_IN = Path(__file__).with_name("networks")


@dataclass(frozen=True)
class Layout:
    """Layout of a cluster: the number of hosts, and the number of workers on each host."""

    nodes: int
    per_node: int = 1

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.per_node < 1:
            raise ValueError(f"nodes and workers per node must be at least 1, got {self.nodes} and {self.per_node}")

    @property
    def workers(self) -> int:
        """Total number of workers in the cluster."""
        return self.nodes * self.per_node


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Properties of the links between and inside hosts, and constants that were fitted to measurements.

    Attributes:
        format: Version of the file format.
        name: Name of the network.
        source: Text that names the origin of the figures.
        bandwidth: Line rate of a host's network interface, in bytes per second in each direction.
        latency: Latency of a message between hosts, in seconds.
        intra_bandwidth: Bandwidth between workers of a host, in bytes per second in each direction.
        intra_latency: Latency of a message inside a host, in seconds.
        gamma: Time to reduce one byte, in seconds.
        efficiency: Fraction of ``bandwidth`` that transfers achieve.
        overhead: Fraction by which forward and backward passes take longer with several workers.
        calibrated_at: Line rate at which the constants were fitted, or None if they were not calibrated.
        workers: Smallest and largest number of workers in the fit, or None if the constants were not calibrated.
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
    """Return an uncalibrated network, with default values for all properties except the bandwidth.

    The defaults are those of the engine's cost model. For GPUs, the latency inside a host comes from a published fit
    for four GPUs (arXiv 1811.11141), and a reduction takes no longer than its transfer.
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
    """Return the names of the package's networks."""
    return files.names_in(_BUILT_IN)


def load(name_or_path: str | Path) -> Network:
    """Read a network from a file, or load one of the package's networks by name.

    Raises:
        ValueError: If the content is invalid. The message names the file and the field.
        OSError: If the file cannot be read.
    """
    return files.load(Network, "network", _BUILT_IN, _check, name_or_path)


def save(network: Network, path: str | Path) -> None:
    """Write a network to a file. Raises ValueError if it is invalid."""
    _check(network)
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(network), indent=1) + b"\n")


def power_of_two_nodes(largest: int) -> Sequence[int]:
    """Return the powers of two below ``largest``, followed by ``largest``."""
    steps = [1 << k for k in range(largest.bit_length()) if 1 << k < largest]
    return [*steps, largest]
