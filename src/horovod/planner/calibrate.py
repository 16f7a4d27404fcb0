"""Measures a job's links, using the benchmark's fit of the engine's cost model.

All ranks must run the measurement together.
"""

from __future__ import annotations

from pathlib import Path

from horovod.benchmark.calibrate import fit_model
from horovod.benchmark.engines import EngineColumn
from horovod.common.basics import HorovodBasics
from horovod.common.objects import allgather_object
from horovod.planner.network import Network, save
from horovod.planner.units import show_bandwidth, show_time


def calibrate(path: Path) -> None:
    """Measure latency and bandwidth in this job and write a network file on rank 0.

    Links between hosts are measured with TCP between all ranks. Start one rank per host, because the measurement cannot
    separate links between hosts from links inside hosts.

    Raises:
        ValueError: If the job has a single rank, or several ranks on some of several hosts.
    """
    basics = HorovodBasics("benchmark")
    basics.init()
    try:
        rank, size = basics.rank(), basics.size()
        on_host: list[int] = allgather_object(basics.local_size(), "planner.ranks")
        if size == 1 or 1 < max(on_host) < size:
            raise ValueError(
                "`--calibrate` must run in a job with one rank on each of several hosts, or with several ranks on one "
                f"host, got {size} ranks, up to {max(on_host)} on a host"
            )
        one_host = max(on_host) == size
        engines = [EngineColumn("links", {"HOROVOD_TRANSPORT": "tcp"}, list(range(size)))]
        if one_host:
            engines.append(EngineColumn("shared", {}, [0] * size))
        try:
            model = fit_model(engines, rank, size)
        finally:
            for engine in engines:
                engine.stop()
        if rank == 0:
            net = _network(model, size, 1 if one_host else size)
            save(net, path)
            print(
                f"between ranks over TCP: {show_bandwidth(net.bandwidth)}, {show_time(net.latency)} per message; "
                f"network: {path}"
            )
    finally:
        basics.shutdown()


def _network(model: dict[str, float], size: int, hosts: int) -> Network:
    bandwidth = 1 / max(model["beta"], 1e-15)
    return Network(
        name="calibrated",
        source=f"measured with {size} ranks on {hosts} hosts",
        bandwidth=bandwidth,
        latency=model["alpha"],
        intra_bandwidth=1 / max(model["local_beta"], 1e-15),
        intra_latency=model["local_alpha"],
        gamma=model["gamma"],
        calibrated_at=bandwidth,
        workers=(2, size),
    )
