"""Command line of the planner, ``python -m horovod.planner``. See ``--help`` and docs/planner.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from horovod.planner import fit, network, options, profile, report
from horovod.planner.network import power_of_two_nodes
from horovod.planner.predict import Prediction, predict
from horovod.planner.simulate import Settings
from horovod.planner.units import show_bandwidth


def _settings(args: argparse.Namespace) -> Settings:
    return Settings(args.algorithm, args.compression, args.fusion_threshold, args.cycle_time, args.local_steps)


def _predictions(args: argparse.Namespace, nodes: Sequence[int], variants: bool) -> dict[str, list[Prediction]]:
    """Return the predictions for each bandwidth. Keys are bandwidths as text, such as ``25 Gbit/s``."""
    shape = profile.load(args.profile)
    found: dict[str, list[Prediction]] = {}
    for bandwidth in args.bandwidth or [None]:
        net = options.network_of(args, shape.device, bandwidth)
        found[show_bandwidth(net.bandwidth)] = [
            predict(shape, layout, net, _settings(args), args.batch, variants)
            for layout in options.layouts(nodes, args.gpus_per_node)
        ]
    return found


def _predict(words: Sequence[str]) -> int:
    parser = options.predict_parser()
    args = parser.parse_args(words)
    if args.calibrate is not None:
        from horovod.planner.calibrate import calibrate  # import this module late, because it needs the engine

        calibrate(args.calibrate)
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


def _describe(words: Sequence[str]) -> int:
    args = options.describe_parser().parse_args(words)
    model = profile.load_model(args.model)
    profile.save(profile.profile_of_model(model, args.batch, args.throughput, "model description"), args.output)
    print(f"profile: {args.output}")
    return 0


def _one_network(args: argparse.Namespace, device: str) -> network.Network:
    bandwidths = args.bandwidth or [None]
    if len(bandwidths) > 1:
        raise ValueError(f"--bandwidth must be one value here, got {len(bandwidths)}")
    return options.network_of(args, device, bandwidths[0])


def _fit(words: Sequence[str]) -> int:
    args = options.fit_parser().parse_args(words)
    points = fit.read_points(args.points)
    if not points:
        raise ValueError(f"{args.points} has no point with several workers")
    net = fit.fit(points, _one_network(args, points[0].profile.device), _settings(args))
    print(fit.render(points, net, _settings(args)), end="")
    if args.output is not None:
        network.save(net, args.output)
        print(f"network: {args.output}")
    return 0


def _compare(words: Sequence[str]) -> int:
    args = options.compare_parser().parse_args(words)
    shape = profile.load(args.profile)
    stats = report.read_statistics(args.stats)
    nodes = args.nodes or [max(int(stats.get("size", 1)) // args.gpus_per_node, 1)]
    layout = options.layouts(nodes[:1], args.gpus_per_node)[0]
    found = predict(shape, layout, _one_network(args, shape.device), _settings(args), args.batch)
    print(report.render_comparison(found, stats), end="")
    return 0


_COMMANDS = {"compare": _compare, "describe": _describe, "fit": _fit}


def main(words: Sequence[str] | None = None) -> int:
    """Run the program. Return the exit code: 0, 1 after an error message, or 2 for invalid arguments."""
    words = sys.argv[1:] if words is None else words
    try:
        if words and words[0] in _COMMANDS:
            return _COMMANDS[words[0]](words[1:])
        return _predict(words)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
