"""Calibration of networks: measured links of a real job, or constants fitted to measured throughput.

A fit reports its errors for points that are held back.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from horovod.planner import profile as profiles
from horovod.planner import report
from horovod.planner.network import Layout, Network, save
from horovod.planner.profile import Profile
from horovod.planner.simulate import Settings, simulate
from horovod.planner.units import show_bandwidth, show_time


def measure_links(path: Path) -> None:
    """Measure latency and bandwidth in this job and write a network file on rank 0.

    Links between hosts are measured with TCP between all ranks. Start one rank per host, because the measurement cannot
    separate links between hosts from links inside hosts. All ranks must call this function.

    Raises:
        ValueError: If the job has a single rank, or several ranks on some of several hosts.
    """
    # Import these modules here, because a fit does not need the engine.
    from horovod.benchmark.calibrate import fit_model
    from horovod.benchmark.engines import EngineColumn
    from horovod.common.basics import HorovodBasics
    from horovod.common.objects import allgather_object

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


# Fit to measured throughput (pure, except for reading the points).

COLUMNS = ("profile", "nodes", "workers_per_node", "samples_per_second", "held_back")


@dataclass(frozen=True)
class Point:
    """Measured throughput of a job, used for a fit.

    Attributes:
        profile: Profile of the model, scaled to the throughput of one worker of this cluster.
        layout: Hosts and workers.
        measured: Throughput of the whole job, in samples per second.
        held_back: True if this point is held back: the fit must not use it.
    """

    profile: Profile
    layout: Layout
    measured: float
    held_back: bool = False

    def predicted(self, net: Network, settings: Settings) -> float:
        """Return the predicted throughput in samples per second."""
        seconds = simulate(self.profile, self.layout, net, settings).seconds
        return self.layout.workers * self.profile.batch / seconds

    def error(self, net: Network, settings: Settings) -> float:
        """Return the relative error of the prediction, which is positive if the prediction is too high."""
        return self.predicted(net, settings) / self.measured - 1


def read_points(path: Path) -> list[Point]:
    """Read measured points from a CSV file.

    A row with one worker is not a measured point, but defines the single-worker throughput of its profile.

    Raises:
        ValueError: If the file is invalid. The message names the line.
        OSError: If the file cannot be read.
    """
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS[:4] if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(f"{path} must have the columns {', '.join(COLUMNS)}; missing: {', '.join(missing)}")
        rows = []
        for line, row in enumerate(reader, 2):
            try:
                layout = Layout(int(row["nodes"]), int(row["workers_per_node"]))
                measured = float(row["samples_per_second"])
                if not 0 < measured < math.inf:
                    raise ValueError(f"samples_per_second must be above 0, got {measured}")
                held = (row.get("held_back") or "").strip().lower() in ("1", "true", "yes")
                rows.append((row["profile"], layout, measured, held))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path}, line {line}: {error}") from None
    single = {name: measured for name, layout, measured, _ in rows if layout.workers == 1}
    loaded = {name: profiles.load(name) for name in dict.fromkeys(name for name, *_ in rows)}
    shapes = {name: shape.at(single[name]) if name in single else shape for name, shape in loaded.items()}
    return [Point(shapes[name], layout, rate, held) for name, layout, rate, held in rows if layout.workers > 1]


def fit(points: Sequence[Point], net: Network, settings: Settings) -> Network:
    """Return the network with the efficiency and overhead that minimize the sum of squared relative errors.

    The search starts at several points and reduces its step size, because the error is not smooth. Held-out points are
    ignored.

    Raises:
        ValueError: If fewer than two points are left for the fit.
    """
    fitted = [point for point in points if not point.held_back]
    if len(fitted) < 2:
        raise ValueError(f"a fit of two constants needs at least 2 points that are not held back, got {len(fitted)}")

    def network_at(efficiency: float, overhead: float) -> Network:
        return msgspec.structs.replace(net, efficiency=efficiency, overhead=overhead)

    def loss(at: tuple[float, float]) -> float:
        candidate = network_at(math.exp(at[0]), at[1])
        return sum(point.error(candidate, settings) ** 2 for point in fitted)

    best, least = (0.0, 0.0), math.inf
    for start in ((0.0, 0.0), (math.log(0.5), 0.05), (math.log(0.1), 0.1)):
        at, here, width = start, loss(start), 0.25
        while width > 1e-4:
            around = [(at[0] + i * width, at[1] + j * width / 4) for i, j in ((-1, 0), (1, 0), (0, -1), (0, 1), (1, 1))]
            around = [(e, o) for e, o in around if e <= 0 and o >= 0]
            found, value = min(((x, loss(x)) for x in around), key=lambda pair: pair[1])
            if value < here:
                at, here = found, value
            else:
                width /= 2
        if here < least:
            best, least = at, here
    counts = [point.layout.workers for point in fitted]
    return msgspec.structs.replace(
        network_at(round(math.exp(best[0]), 4), round(best[1], 4)),
        workers=(min(counts), max(counts)),
        calibrated_at=net.bandwidth,
    )


def render(points: Sequence[Point], net: Network, settings: Settings) -> str:
    """Format the fitted constants, and a table with the error of each point, as text."""
    rows = [["Model", "Hosts x workers", "Measured", "Predicted", "Error", ""]]
    for point in points:
        rows.append(
            [
                point.profile.name,
                f"{point.layout.nodes} x {point.layout.per_node}",
                f"{point.measured:,.0f}/s",
                f"{point.predicted(net, settings):,.0f}/s",
                f"{point.error(net, settings):+.1%}",
                "held back" if point.held_back else "fitted",
            ]
        )
    text = (
        f"efficiency {net.efficiency:.3f} of the line rate, overhead {net.overhead:.1%} of forward and backward\n\n"
        + report.table(rows)
    )
    held = [abs(point.error(net, settings)) for point in points if point.held_back]
    if held:
        text += f"\n\nPoints held back: mean error {sum(held) / len(held):.1%}, largest {max(held):.1%}."
    return text + "\n"
