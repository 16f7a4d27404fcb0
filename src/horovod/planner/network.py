"""Hosts and links of a prediction, files with calibrated parameters, and the duration of one allreduce."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from horovod import _core
from horovod.common import dtypes
from horovod.planner import units

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
        source: Origin of the figures, as text.
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
    """Return the names of the bundled networks."""
    return units.names_in(_BUILT_IN)


def load(name_or_path: str | Path) -> Network:
    """Read a network from a file, or load a bundled network by name.

    Raises:
        ValueError: If the content is invalid. The message names the file and the field.
        OSError: If the file cannot be read.
    """
    return units.load(Network, "network", _BUILT_IN, _check, name_or_path)


def save(network: Network, path: str | Path) -> None:
    """Write the description of a network to a file. Raises ValueError if it is invalid."""
    _check(network)
    Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(network), indent=1) + b"\n")


def power_of_two_nodes(largest: int) -> Sequence[int]:
    """Return all powers of two below ``largest``, and ``largest`` itself."""
    steps = [1 << k for k in range(largest.bit_length()) if 1 << k < largest]
    return [*steps, largest]


# The engine's cost formulas (core/plan/cost.h) describe one level of links. ``Allreduce`` combines two levels, between
# hosts and inside a host, each with its own latency and bandwidth.

ALGORITHMS = ("auto", "ring", "hierarchical", "tree", "parameter-server")
_PROBE = 1 << 30  # message size in bytes at which cost formulas are evaluated to find the seconds per byte


def _predict(
    collective: str, algorithm: str, nbytes: int, ranks: int, alpha: float, beta: float, gamma: float
) -> float:
    """Return the cost that the engine predicts if all ranks are connected by the same kind of link."""
    if ranks == 1:
        return 0.0
    model = {"alpha": alpha, "beta": beta, "gamma": gamma}
    return _core.predict(collective, algorithm, nbytes, list(range(ranks)), model)


def _ring(nbytes: int, layout: Layout, net: Network) -> float:
    """Return the cost of one ring over all workers, which enters and leaves each host once.

    A chunk traverses the hops one after another, so the latency is the mean over the hops times their number. All hops
    transfer concurrently, so the bandwidth is that of the slowest hop.
    """
    nodes, workers = layout.nodes, layout.workers
    alpha, beta = net.intra_latency, 1 / net.intra_bandwidth
    if nodes > 1:
        alpha = (nodes * net.latency + (workers - nodes) * net.intra_latency) / workers
        beta = max(_beta(net), beta if layout.per_node > 1 else 0.0)
    return _predict("allreduce", "ring", nbytes, workers, alpha, beta, net.gamma)


def _hierarchical(nbytes: int, layout: Layout, net: Network) -> float:
    """Return the cost of a reduce-scatter inside hosts, rings between hosts, and an allgather inside hosts.

    The workers of a host share its network interface.
    """
    nodes, inside = layout.nodes, layout.per_node
    alpha, beta = net.intra_latency, 1 / net.intra_bandwidth
    return (
        _predict("reducescatter", "pairwise", nbytes, inside, alpha, beta, net.gamma)
        + _predict("allreduce", "ring", nbytes // inside, nodes, net.latency, _beta(net) * inside, net.gamma)
        + _predict("allgather", "ring", nbytes, inside, alpha, beta, net.gamma)
    )


def _tree(nbytes: int, layout: Layout, net: Network) -> float:
    """Return the cost of a tree algorithm.

    It uses binomial trees inside hosts, and a binomial tree between the first workers of the hosts.
    """
    inside = _predict(
        "allreduce", "tree", nbytes, layout.per_node, net.intra_latency, 1 / net.intra_bandwidth, net.gamma
    )
    return inside + _predict("allreduce", "tree", nbytes, layout.nodes, net.latency, _beta(net), net.gamma)


_FORMULAS: dict[str, Callable[[int, Layout, Network], float]] = {
    "ring": _ring,
    "hierarchical": _hierarchical,
    "tree": _tree,
}


def _beta(net: Network) -> float:
    return 1 / (net.bandwidth * net.efficiency)


@lru_cache(maxsize=65536)
def _engine(nbytes: int, layout: Layout, net: Network) -> tuple[float, str]:
    """Return the cost and the name of the algorithm that the engine would choose for tensors in host memory."""
    node_of = [rank // layout.per_node for rank in range(layout.workers)]
    name = _core.choose_algorithm("allreduce", dtypes.FLOAT32, nbytes, node_of)
    # All workers of a host exchange their parts at the same time over the host's network interface.
    model = {
        "alpha": net.latency,
        "beta": _beta(net) * layout.per_node,
        "gamma": net.gamma,
        "local_alpha": net.intra_latency,
        "local_beta": 1 / net.intra_bandwidth,
    }
    return _core.predict("allreduce", name, nbytes, node_of, model), name


def _parameter_server(nbytes: int, largest: int, layout: Layout, net: Network) -> float:
    """Return the cost of sending gradients to parameter servers and receiving parameters, with one server per host.

    Each tensor is stored on one server. The server that stores the most bytes determines the cost.
    """
    if layout.nodes == 1:
        senders, alpha, beta = layout.workers - 1, net.intra_latency, 1 / net.intra_bandwidth
    else:
        senders, alpha, beta = layout.workers - layout.per_node, net.latency, _beta(net)
    load = max(largest, nbytes / layout.nodes)
    return 2 * (alpha + senders * load * beta) + senders * load * net.gamma


class Allreduce:
    """Predictor of the cost of allreduces in one cluster.

    Args:
        algorithm: One of ``ALGORITHMS``. For tensors in host memory, "auto" is the engine's choice. For other tensors,
            it is the fastest of ring, hierarchical and tree, among which libraries such as NCCL choose.
        layout: Hosts and workers.
        net: Links.
        device: "cpu" or "gpu".
    """

    def __init__(self, algorithm: str, layout: Layout, net: Network, device: str = "gpu") -> None:
        self._algorithm, self._layout, self._net = algorithm, layout, net
        self._by_engine = algorithm == "auto" and device == "cpu"
        names = tuple(_FORMULAS) if algorithm == "auto" and not self._by_engine else (algorithm,)
        self._lines: list[tuple[float, float, str]] = []
        """(fixed seconds, seconds per byte, name) of each algorithm. The formulas are linear in bytes."""
        for name in names:
            if name in _FORMULAS and layout.workers > 1:
                fixed = _FORMULAS[name](0, layout, net)
                self._lines.append((fixed, (_FORMULAS[name](_PROBE, layout, net) - fixed) / _PROBE, name))

    def predict(self, nbytes: int, largest: int = 0) -> tuple[float, str]:
        """Predict the duration of one allreduce.

        Args:
            nbytes: Bytes to reduce on each worker.
            largest: Size of the largest tensor in bytes, which a parameter server cannot split.

        Returns:
            (float, str): Time in seconds, and the name of the algorithm.
        """
        if self._layout.workers == 1:
            return 0.0, self._algorithm
        if self._by_engine:
            return _engine(nbytes, self._layout, self._net)
        if self._lines:
            return min((fixed + per_byte * nbytes, name) for fixed, per_byte, name in self._lines)
        return _parameter_server(nbytes, largest, self._layout, self._net), self._algorithm


def agreement(layout: Layout, net: Network) -> float:
    """Return the time in seconds to negotiate an operation: one message to rank 0, and its reply."""
    if layout.workers == 1:
        return 0.0
    between = net.latency if layout.nodes > 1 else 0.0
    return 2 * (between + (net.intra_latency if layout.per_node > 1 else 0.0))
