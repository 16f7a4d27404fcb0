"""Command-line options of `python -m horovod.benchmark` and `horovodrun --benchmark`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from horovod.benchmark.cases import COLLECTIVES, FULL, QUICK, parse_size

PEERS = ("gloo", "mpi")


@dataclass(frozen=True)
class Options:
    """Options of one benchmark; the same on all ranks."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    """In bytes."""
    rounds: int
    """Number of turns of every column."""
    algorithms: tuple[str, ...]
    """Allreduce algorithms to compare; empty: only the one that the table chooses."""
    peers: tuple[str, ...]
    pin: bool
    mpi_prefix: str
    timeout: float
    """Maximum seconds for one measurement of a peer in separate processes."""
    calibrate: bool
    """True to only calibrate the sizes at which collectives change their algorithm, and store them."""
    json: Path | None
    plot: Path | None
    """Path of the pictures without suffix."""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all options. -np applies to `python -m horovod.benchmark` outside a job."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.benchmark",
        description="Measure collectives of this installation, beside gloo and MPI where these are installed.",
        allow_abbrev=False,
    )
    parser.add_argument("-np", "--num-proc", type=_positive, help="ranks to start (default 2; inside a job: its own)")
    parser.add_argument(
        "--collectives",
        type=_names(COLLECTIVES),
        default=("allreduce",),
        metavar="NAME[,NAME...]",
        help=f"of {', '.join(COLLECTIVES)}, or all (default allreduce)",
    )
    parser.add_argument("--sizes", type=_sizes, metavar="S[,S...]", help="bytes, as in 4,64K,16M (default 4 to 64M)")
    parser.add_argument("--quick", action="store_true", help="few sizes and turns: seconds")
    parser.add_argument("--rounds", type=_positive, help="turns of every column (default 5; --quick: 2)")
    parser.add_argument(
        "--algorithms",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        default=(),
        metavar="NAME[,NAME...]",
        help="compare algorithms of allreduce: their names, or all; on one host those over links run over TCP",
    )
    parser.add_argument(
        "--peers",
        type=_names((*PEERS, "none")),
        default=PEERS,
        metavar="NAME[,NAME...]",
        help="of gloo, mpi, or none (default: those that are installed)",
    )
    parser.add_argument("--mpi-prefix", default="", help="environment with mpiexec and mpi4py (default: this one)")
    parser.add_argument("--no-pin", action="store_true", help="leave it to the system which core runs which thread")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one measurement of MPI (default 120)")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="instead, find the sizes at which collectives should change their ways here, for later jobs of this shape",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here")
    parser.add_argument("--plot", type=Path, metavar="NAME", help="draw NAME.png and NAME.svg (needs matplotlib)")
    return parser


def parse(words: Sequence[str]) -> tuple[Options, int | None]:
    """Return the options, and -np if given. Exits with a message for invalid arguments."""
    args = make_parser().parse_args(words)
    peers = tuple(peer for peer in args.peers if peer != "none")
    options = Options(
        collectives=args.collectives,
        sizes=args.sizes or (QUICK if args.quick else FULL),
        rounds=args.rounds or (2 if args.quick else 5),
        algorithms=args.algorithms,
        peers=peers,
        pin=not args.no_pin,
        mpi_prefix=args.mpi_prefix,
        timeout=args.timeout,
        calibrate=args.calibrate,
        json=args.json,
        plot=args.plot,
    )
    return options, args.num_proc


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not accepted; expected an integer of at least 1")
    return value


def _names(accepted: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = [name.strip() for name in text.split(",")]
        if names == ["all"]:
            return tuple(name for name in accepted if name != "none")
        for name in names:
            if name not in accepted:
                raise argparse.ArgumentTypeError(f"{name!r} is not accepted; expected of {', '.join(accepted)}, or all")
        return tuple(dict.fromkeys(names))

    return parse


def _sizes(text: str) -> tuple[int, ...]:
    sizes = []
    for part in text.split(","):
        try:
            size = parse_size(part)
        except ValueError:
            size = 0
        if not 1 <= size <= 1 << 34:
            raise argparse.ArgumentTypeError(f"{part!r} is not accepted; expected bytes from 1 to 16G, as in 4,64K,16M")
        sizes.append(size)
    return tuple(sizes)
