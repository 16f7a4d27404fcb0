"""Command line of the planner, ``python -m horovod.planner``. See ``--help`` and docs/planner.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from horovod.planner import calibrate, network, profile, report
from horovod.planner.network import power_of_two_nodes
from horovod.planner.predict import Prediction, predict
from horovod.planner.simulate import COMPRESSION, Settings
from horovod.planner.units import parse_bandwidth, parse_bytes, parse_time, show_bandwidth

T = TypeVar("T")
MAX_WORKERS = 4096
_EPILOG = """\
commands:
  python -m horovod.planner PROFILE --nodes N ...   predict (below)
  python -m horovod.planner compare --help          compare a prediction with a run
  python -m horovod.planner fit --help              fit network constants to measured points
  python -m horovod.planner describe --help         make a profile from a model description
  horovodrun -np N python -m horovod.planner --calibrate FILE   measure the links between hosts
"""


def _number(kind: Callable[[str], T]) -> Callable[[str], T]:
    """Return an argument type for argparse. The text of a ValueError that ``kind`` raises becomes the error message."""

    def parse(text: str) -> T:
        try:
            return kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _several(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Return an argument type for argparse that parses comma-separated values."""
    return _number(lambda text: [kind(part) for part in text.split(",")])


def _at_least_one(text: str) -> int:
    value = int(text) if text.strip().isdecimal() else 0
    if value < 1:
        raise ValueError(f"must be an integer of at least 1, got {text!r}")
    return value


def _price(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(f"must be a number of at least 0, got {text!r}")
    return value


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the command-line options that describe the job's hosts, links and settings."""
    add = parser.add_argument
    add("--nodes", type=_several(_at_least_one), default=None, metavar="N[,N...]", help="hosts (default 1)")
    add(
        "--gpus-per-node",
        "--workers-per-node",
        type=_number(_at_least_one),
        default=1,
        metavar="N",
        help="workers on each host (default 1)",
    )
    add(
        "--bandwidth",
        type=_several(parse_bandwidth),
        metavar="B[,B...]",
        help="line rate of a host's network interface, as in 25Gbit (required without --network)",
    )
    add("--latency", type=_number(parse_time), metavar="T", help="per message between hosts, as in 10us (default 30us)")
    add(
        "--intra",
        type=_number(parse_bandwidth),
        metavar="B",
        help="bandwidth inside a host, as in 80GB/s (default 10GB/s)",
    )
    add("--intra-latency", type=_number(parse_time), metavar="T", help="per message inside a host")
    add(
        "--network",
        metavar="FILE",
        help=f"calibrated network: a file, or {' or '.join(network.built_in())}; other options override it",
    )
    add("--algorithm", choices=network.ALGORITHMS, default="auto", help="algorithm of allreduce (default auto)")
    add("--compression", choices=tuple(COMPRESSION), default="none", help="format on the wire (default none)")
    add(
        "--local-steps",
        type=_number(_at_least_one),
        default=1,
        metavar="H",
        help="steps between synchronizations (default 1)",
    )
    add(
        "--batch", type=_number(_at_least_one), metavar="N", help="samples per worker and step (default: the profile's)"
    )
    add(
        "--fusion-threshold",
        type=_number(parse_bytes),
        default=128 << 20,
        metavar="SIZE",
        help="maximum bytes reduced together; 0: no fusion (default 128MiB)",
    )
    add("--cycle-time", type=_number(parse_time), default=1e-3, metavar="T", help="as HOROVOD_CYCLE_TIME (default 1ms)")


def predict_parser() -> argparse.ArgumentParser:
    """Create the argument parser for predictions."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.planner",
        description="Predict how fast a model trains on a cluster, what limits it, and what would make it faster.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("profile", nargs="?", help=f"profile: a file, or one of {', '.join(profile.built_in())}")
    add_cluster(parser)
    parser.add_argument(
        "--scale", action="store_true", help="also predict 1, 2, 4, ... hosts up to the largest --nodes"
    )
    parser.add_argument("--price", type=_number(_price), metavar="P", help="price of one worker for one hour")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw a .png or .svg over 1 to --nodes hosts")
    parser.add_argument(
        "--calibrate", type=Path, metavar="FILE", help="in a job: measure its links, write a network file"
    )
    return parser


def compare_parser() -> argparse.ArgumentParser:
    """Create the argument parser for ``compare``."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.planner compare",
        description="Show where a run differs from its prediction.",
        allow_abbrev=False,
    )
    parser.add_argument("profile", help="profile that the prediction is made from")
    parser.add_argument(
        "stats", type=Path, help="hvd.stats() of rank 0 as JSON, or the file of horovodrun --stats-file"
    )
    add_cluster(parser)
    return parser


def fit_parser() -> argparse.ArgumentParser:
    """Create the argument parser for ``fit``."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.planner fit",
        description="Fit efficiency and overhead of a network to measured points, and predict those held back.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "points", type=Path, help="CSV file: profile,nodes,workers_per_node,samples_per_second,held_back"
    )
    add_cluster(parser)
    parser.add_argument("-o", "--output", type=Path, help="network file to write")
    return parser


def describe_parser() -> argparse.ArgumentParser:
    """Create the argument parser for ``describe``."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.planner describe",
        description="Make a profile from a model description (JSON: name, layers with name, parameters and flops).",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, help="model description")
    parser.add_argument(
        "--throughput", type=_number(_price), required=True, metavar="N", help="samples/s of one device"
    )
    parser.add_argument("--batch", type=_number(_at_least_one), required=True, metavar="N", help="samples per step")
    parser.add_argument("-o", "--output", type=Path, required=True, help="profile to write")
    return parser


def network_of(args: argparse.Namespace, device: str, bandwidth: float | None) -> network.Network:
    """Return the network that the options describe. Raises ValueError if no bandwidth is given."""
    import msgspec

    if args.network is not None:
        base = network.load(args.network)
    elif bandwidth is not None:
        base = network.assumed(device, bandwidth)
    else:
        raise ValueError("--bandwidth must be given, as in --bandwidth 25Gbit, or --network FILE")
    given: dict[str, Any] = {
        "bandwidth": bandwidth,
        "latency": args.latency,
        "intra_bandwidth": args.intra,
        "intra_latency": args.intra_latency,
    }
    return msgspec.structs.replace(base, **{name: value for name, value in given.items() if value is not None})


def layouts(nodes: Sequence[int], per_node: int) -> list[network.Layout]:
    """Return the layouts that the options describe. Raises ValueError if there are too many workers."""
    if max(nodes) * per_node > MAX_WORKERS:
        raise ValueError(f"nodes x workers must be at most {MAX_WORKERS}, got {max(nodes)} x {per_node}")
    return [network.Layout(count, per_node) for count in nodes]


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(args.algorithm, args.compression, args.fusion_threshold, args.cycle_time, args.local_steps)


def _predictions(args: argparse.Namespace, nodes: Sequence[int], variants: bool) -> dict[str, list[Prediction]]:
    """Return the predictions for each bandwidth. Keys are bandwidths as text, such as ``25 Gbit/s``."""
    shape = profile.load(args.profile)
    found: dict[str, list[Prediction]] = {}
    for bandwidth in args.bandwidth or [None]:
        net = network_of(args, shape.device, bandwidth)
        found[show_bandwidth(net.bandwidth)] = [
            predict(shape, layout, net, _settings(args), args.batch, variants)
            for layout in layouts(nodes, args.gpus_per_node)
        ]
    return found


def _predict(arguments: Sequence[str]) -> int:
    parser = predict_parser()
    args = parser.parse_args(arguments)
    if args.calibrate is not None:
        calibrate.measure_links(args.calibrate)
        return 0
    if args.profile is None:
        parser.error("the profile is missing")
    nodes = sorted(set(args.nodes or [1]))
    if args.scale:
        nodes = sorted({*nodes, *power_of_two_nodes(max(nodes))})
    single = len(nodes) == 1 and len(args.bandwidth or [None]) == 1
    lines = _predictions(args, nodes, single or args.json)
    everything = [prediction for line in lines.values() for prediction in line]
    sys.stdout.write(report.to_json(everything, args.price) if args.json else report.render(everything, args.price))
    if args.plot is not None:
        if args.plot.suffix not in (".png", ".svg"):
            raise ValueError(f"--plot must end with .png or .svg, got {str(args.plot)!r}")
        print(report.draw_plot(_predictions(args, power_of_two_nodes(max(nodes)), False), args.plot), file=sys.stderr)
    return 0


def _describe(arguments: Sequence[str]) -> int:
    args = describe_parser().parse_args(arguments)
    model = profile.load_model(args.model)
    profile.save(profile.profile_of_model(model, args.batch, args.throughput, "model description"), args.output)
    print(f"profile: {args.output}")
    return 0


def _one_network(args: argparse.Namespace, device: str) -> network.Network:
    bandwidths = args.bandwidth or [None]
    if len(bandwidths) > 1:
        raise ValueError(f"--bandwidth must be one value here, got {len(bandwidths)}")
    return network_of(args, device, bandwidths[0])


def _fit(arguments: Sequence[str]) -> int:
    args = fit_parser().parse_args(arguments)
    points = calibrate.read_points(args.points)
    if not points:
        raise ValueError(f"{args.points} has no point with several workers")
    net = calibrate.fit(points, _one_network(args, points[0].profile.device), _settings(args))
    print(calibrate.render(points, net, _settings(args)), end="")
    if args.output is not None:
        network.save(net, args.output)
        print(f"network: {args.output}")
    return 0


def _compare(arguments: Sequence[str]) -> int:
    args = compare_parser().parse_args(arguments)
    shape = profile.load(args.profile)
    stats = report.read_statistics(args.stats)
    nodes = args.nodes or [max(int(stats.get("size", 1)) // args.gpus_per_node, 1)]
    layout = layouts(nodes[:1], args.gpus_per_node)[0]
    found = predict(shape, layout, _one_network(args, shape.device), _settings(args), args.batch)
    print(report.render_comparison(found, stats), end="")
    return 0


_COMMANDS = {"compare": _compare, "describe": _describe, "fit": _fit}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program. Return the exit code: 0, 1 after an error message, or 2 for invalid arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments and arguments[0] in _COMMANDS:
            return _COMMANDS[arguments[0]](arguments[1:])
        return _predict(arguments)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
