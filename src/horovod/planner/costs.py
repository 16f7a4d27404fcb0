"""Prediction of the duration of one allreduce on hosts with several workers, with the engine's cost formulas.

The engine's formulas (core/plan/cost.h) describe one level of links. This module combines two levels, between hosts and
inside a host, each with its own latency and bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from horovod import _core
from horovod.common import dtypes
from horovod.planner.network import Layout, Network

ALGORITHMS = ("auto", "ring", "hierarchical", "tree", "parameter-server")
_PROBE = 1 << 30  # size in bytes at which a formula is evaluated to find its slope


def _predict(
    collective: str, algorithm: str, nbytes: int, ranks: int, alpha: float, beta: float, gamma: float
) -> float:
    """Return the engine's prediction for one level of links, in which each rank has a separate link."""
    if ranks == 1:
        return 0.0
    model = {"alpha": alpha, "beta": beta, "gamma": gamma}
    return _core.predict(collective, algorithm, nbytes, list(range(ranks)), model)


def _ring(nbytes: int, layout: Layout, net: Network) -> float:
    """Return the cost of one ring over all workers, which enters and leaves each host once.

    A chunk passes all hops one after the other, so the cost uses the mean latency of the hops. All hops transfer at the
    same time, so the cost uses the lowest bandwidth.
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
    """Return the cost of binomial trees inside hosts, and a binomial tree between their first workers."""
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
    # The workers of a host exchange their parts at the same time and share one network interface.
    model = {
        "alpha": net.latency,
        "beta": _beta(net) * layout.per_node,
        "gamma": net.gamma,
        "local_alpha": net.intra_latency,
        "local_beta": 1 / net.intra_bandwidth,
    }
    return _core.predict("allreduce", name, nbytes, node_of, model), name


def _parameter_server(nbytes: int, largest: int, layout: Layout, net: Network) -> float:
    """Return the cost of sending gradients to servers and receiving parameters, with one server per host.

    Each tensor is stored on one server. The server with the most bytes determines the cost.
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
        """Fixed seconds, seconds per byte, and name of each algorithm. The formulas are linear in bytes."""
        for name in names:
            if name in _FORMULAS and layout.workers > 1:
                fixed = _FORMULAS[name](0, layout, net)
                self._lines.append((fixed, (_FORMULAS[name](_PROBE, layout, net) - fixed) / _PROBE, name))

    def predict(self, nbytes: int, largest: int = 0) -> tuple[float, str]:
        """Predict one allreduce.

        Args:
            nbytes: Bytes to reduce on each worker.
            largest: Size of the largest tensor in bytes, which a parameter server cannot split.

        Returns:
            (float, str): Seconds, and the name of the algorithm.
        """
        if self._layout.workers == 1:
            return 0.0, self._algorithm
        if self._by_engine:
            return _engine(nbytes, self._layout, self._net)
        if self._lines:
            return min((fixed + per_byte * nbytes, name) for fixed, per_byte, name in self._lines)
        return _parameter_server(nbytes, largest, self._layout, self._net), self._algorithm


def agreement(layout: Layout, net: Network) -> float:
    """Return the seconds until all ranks know that an operation is ready: one message to rank 0 and its reply."""
    if layout.workers == 1:
        return 0.0
    between = net.latency if layout.nodes > 1 else 0.0
    return 2 * (between + (net.intra_latency if layout.per_node > 1 else 0.0))
