"""Fit the planner's network models to published benchmark tables, and show the errors.

    python tools/planner_networks.py [--write]

The tables are those that Horovod's README.md showed in September 2017 (revision d54e3a88): batch 64 per GPU, synthetic
ImageNet data, images per second. The efficiencies on 512 GPUs are those of the current documentation. Per network, two
constants are fitted to two cells of the 16-GPU table: the efficiency of the links, and the overhead of computation. No
constant is fitted per model. Latencies are not fitted here. Latencies per message, between and inside hosts, are from a
published fit to allreduces on 16 GPUs over 10 Gbit/s TCP and over 56 Gbit/s InfiniBand, and on 4 GPUs in a host (arXiv
1811.11141).
"""

import sys
from pathlib import Path

import msgspec

from horovod.planner import calibrate, network, profile, report
from horovod.planner.calibrate import Point
from horovod.planner.network import Layout, Network
from horovod.planner.simulate import Settings
from horovod.planner.units import show_bandwidth

FOLDER = Path(__file__).resolve().parents[1] / "src/horovod/planner/networks"
GBIT = 1e9 / 8
MODELS = ("inception3", "resnet101", "vgg16")
ALPHA_TCP, ALPHA_RDMA, ALPHA_INSIDE = 0.908e-3 / 30, 0.236e-3 / 30, 0.042e-3 / 6
"""Seconds per message: the published seconds of an allreduce without bytes, by its 2 (n - 1) messages."""
PCIE = 10e9

SINGLE_16 = (134.4, 119.4, 130.9)
SINGLE_64 = (148.8, 136.0, 149.6)
TABLE_16 = {
    "tcp": (1990.7, 1685.1, 1308.7),
    "rdma": (2022.6, 1746.2, 1787.4),
    "tcp-host": (2073.3, 1338.3, 616.8),
}
"""16 GPUs, 4 servers, 25 Gbit/s RoCE: NCCL over TCP, NCCL over RDMA, allreduce in host memory over TCP."""
TITLES = {"tcp": "NCCL over TCP", "rdma": "NCCL over RDMA", "tcp-host": "allreduce in host memory over TCP"}
TABLE_64 = (7932.1, 7741.6, 6084.2)
"""64 GPUs, 16 servers, 40 Gbit/s TCP, NCCL."""
EFFICIENCY_512 = (0.90, 0.90, 0.68)
"""512 GPUs, 128 servers, 25 Gbit/s RoCE."""
SERVERS_16 = (1345.8, 959.6, 74.7)
"""16 GPUs, distributed TensorFlow with parameter servers over TCP."""
FITTED = ("resnet101", "vgg16")
SHIPPED = ("tcp", "rdma")
RING = Settings(algorithm="ring")


def points(single: tuple[float, ...], layout: Layout, measured: tuple[float, ...], fitted: bool) -> list[Point]:
    """Return the data points of one table row."""
    shapes = [profile.load(name).at(rate) for name, rate in zip(MODELS, single, strict=True)]
    return [
        Point(shape, layout, rate, not (fitted and name in FITTED))
        for name, shape, rate in zip(MODELS, shapes, measured, strict=True)
    ]


def fitted_network(kind: str) -> Network:
    """Return a network model that is fitted to a row of the table of measurements on 16 GPUs."""
    base = Network(
        name=f"published-{kind}",
        source=f"fitted to ResNet-101 and VGG-16 ({TITLES[kind]}) in Horovod's published 16-GPU table (2017-09)",
        bandwidth=25 * GBIT,
        latency=round(ALPHA_RDMA if kind == "rdma" else ALPHA_TCP, 8),
        intra_bandwidth=PCIE,
        intra_latency=round(ALPHA_INSIDE, 8),
    )
    return calibrate.fit(points(SINGLE_16, Layout(4, 4), TABLE_16[kind], True), base, RING)


def efficiency_512(net: Network) -> list[list[str]]:
    """Return table rows that compare published and predicted scaling efficiencies on 512 GPUs."""
    rows = [["512 GPUs, 25 Gbit/s RDMA", "Published", "Predicted", "Difference"]]
    for name, single, published in zip(MODELS, SINGLE_16, EFFICIENCY_512, strict=True):
        shape = profile.load(name).at(single)
        point = Point(shape, Layout(128, 4), 512 * single * published, True)
        found = point.predicted(net, RING) / (512 * single)
        rows.append([shape.name, f"{published:.0%}", f"{found:.1%}", f"{100 * (found - published):+.1f} points"])
    return rows


def statements(nets: dict[str, Network]) -> list[list[str]]:
    """Return table rows that compare the speedups from RDMA and fusion on 128 GPUs (arXiv 1802.05799)."""
    slow = msgspec.structs.replace(nets["tcp"], latency=300e-6)
    rows = [["128 GPUs, 25 Gbit/s", "TCP: efficiency", "RDMA gains", "Fusion gains (TCP)", "Fusion gains (300 us)"]]
    for name, single in zip(MODELS, SINGLE_16, strict=True):
        point = Point(profile.load(name).at(single), Layout(32, 4), 128 * single)
        tcp, rdma, fused = (point.predicted(net, RING) for net in (nets["tcp"], nets["rdma"], slow))
        unfused, alone = (point.predicted(net, Settings("ring", fusion_threshold=0)) for net in (nets["tcp"], slow))
        gains = [f"{gain - 1:+.0%}" for gain in (rdma / tcp, tcp / unfused, fused / alone)]
        rows.append([point.profile.name, f"{tcp / (128 * single):.0%}", *gains])
    return rows


def main(write: bool = False) -> None:
    """Print all tables. With ``write``, also update the planner's network models."""
    nets = {kind: fitted_network(kind) for kind in TABLE_16}
    for kind, net in nets.items():
        print(f"16 GPUs, 25 Gbit/s, {TITLES[kind]}:")
        print(calibrate.render(points(SINGLE_16, Layout(4, 4), TABLE_16[kind], True), net, RING))
        if write and kind in SHIPPED:
            network.save(net, FOLDER / f"{net.name}.json")
    same_fraction = msgspec.structs.replace(nets["tcp"], bandwidth=40 * GBIT)
    same_rate = msgspec.structs.replace(same_fraction, efficiency=nets["tcp"].efficiency * 25 / 40)
    for title, net in (("the same fraction of 40 Gbit/s", same_fraction), ("the same rate as at 25 Gbit/s", same_rate)):
        effective = show_bandwidth(net.bandwidth * net.efficiency)
        print(f"64 GPUs, 40 Gbit/s TCP, if NCCL reaches {title} ({effective}):")
        print(calibrate.render(points(SINGLE_64, Layout(16, 4), TABLE_64, False), net, RING))
    print(report.table(efficiency_512(nets["rdma"])), end="\n\n")
    print("16 GPUs, 25 Gbit/s TCP, distributed TensorFlow:")
    servers = Settings(algorithm="parameter-server")
    print(calibrate.render(points(SINGLE_16, Layout(4, 4), SERVERS_16, False), nets["tcp"], servers))
    print(report.table(statements(nets)))


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
