"""Command-line options of `python -m horovod.benchmark` and `horovodrun --benchmark`, and the cases to measure."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20

COLLECTIVES: Final = ("allreduce", "broadcast", "allgather", "alltoall", "reducescatter", "barrier")
FULL: Final = (4, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
QUICK: Final = (4, 4 * KIB, 64 * KIB, MIB, 4 * MIB)


@dataclass(frozen=True)
class Case:
    """Benchmark case: one collective at one size. A sample is the mean time of ``inner`` consecutive operations."""

    collective: str
    bytes: int
    """Bytes on one rank, as float32.

    Allreduce and broadcast: the tensor; allgather: the result; alltoall: what a rank sends; reducescatter: the input;
    barrier: 0.
    """
    inner: int
    samples: int

    @property
    def label(self) -> str:
        """Size of the case as text, such as "64 KiB"."""
        return size_label(self.bytes)


def size_label(nbytes: int) -> str:
    """Format a size as text such as "4 B", "64 KiB" or "1.5 MiB"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:g} {name}"
    return f"{nbytes} B"


def parse_size(text: str) -> int:
    """Parse a size such as "65536", "64K", "64KiB" or "16 MiB", and return it in bytes.

    Raises ValueError if the text is not a size.
    """
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    factor = {"k": KIB, "m": MIB, "g": 1 << 30}.get(number[-1:], 1)
    return int(number.rstrip("kmg") if factor > 1 else number) * factor


def repeats(nbytes: int) -> tuple[int, int]:
    """Return (operations per sample, samples per turn), chosen so that all sizes take about the same time."""
    table = ((64 * KIB, 20, 25), (MIB, 5, 20), (16 * MIB, 1, 12), (64 * MIB, 1, 6), (1 << 62, 1, 4))
    return next((inner, samples) for most, inner, samples in table if nbytes <= most)


def make_cases(collective: str, sizes: tuple[int, ...], ranks: int) -> list[Case]:
    """Return the cases of one collective.

    If the collective splits the tensor among ranks, sizes are rounded up so that each rank's part is a multiple of 4
    bytes.
    """
    if collective == "barrier":
        return [Case("barrier", 0, *repeats(0))]
    unit = 4 if collective in ("allreduce", "broadcast") else 4 * ranks
    rounded = dict.fromkeys(max(-(-size // unit), 1) * unit for size in sizes)
    return [Case(collective, size, *repeats(size)) for size in rounded]


def bus_factor(collective: str, ranks: int) -> float:
    """Return the factor by which bytes / time is multiplied to get the bus bandwidth.

    The factor is the minimum number of bytes that a rank must send, divided by ``Case.bytes``. With this factor, all
    collectives show the same bandwidth on equally fast links, for any number of ranks.
    """
    if collective == "barrier" or ranks < 2:
        return 0.0
    share = (ranks - 1) / ranks
    return {"allreduce": 2 * share, "broadcast": 1.0}.get(collective, share)


PEERS = ("gloo", "mpi")


@dataclass(frozen=True)
class Options:
    """Options of one benchmark, which are the same on all ranks."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]
    """Sizes to measure, in bytes."""
    rounds: int
    """Number of turns of every column."""
    algorithms: tuple[str, ...]
    """Allreduce algorithms to compare. Empty means only the one that the table selects."""
    peers: tuple[str, ...]
    pin: bool
    mpi_prefix: str
    timeout: float
    """Maximum seconds for one measurement of a peer in separate processes."""
    calibrate: bool
    """True to only calibrate and store the sizes at which collectives switch algorithms."""
    json: Path | None
    plot: Path | None
    """Path of the plots without their suffix."""


def make_parser() -> argparse.ArgumentParser:
    """Create the argument parser. -np has an effect only outside a job."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.benchmark",
        description="Measure collectives of this installation, beside gloo and MPI where these are installed.",
        allow_abbrev=False,
    )
    parser.add_argument("-np", "--num-proc", type=_positive, help="ranks to start (default 2; in a job: its ranks)")
    parser.add_argument(
        "--collectives",
        type=_names(COLLECTIVES),
        default=("allreduce",),
        metavar="NAME[,NAME...]",
        help=f"collectives to measure: {', '.join(COLLECTIVES)}, or all (default allreduce)",
    )
    parser.add_argument("--sizes", type=_sizes, metavar="S[,S...]", help="bytes, as in 4,64K,16M (default 4 to 64M)")
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds, takes seconds")
    parser.add_argument("--rounds", type=_positive, help="rounds of measurements (default 5; --quick: 2)")
    parser.add_argument(
        "--algorithms",
        type=lambda text: tuple(name.strip() for name in text.split(",")),
        default=(),
        metavar="NAME[,NAME...]",
        help="compare allreduce algorithms by name, or all; on one host, those over links use TCP",
    )
    parser.add_argument(
        "--peers",
        type=_names((*PEERS, "none")),
        default=PEERS,
        metavar="NAME[,NAME...]",
        help="compare with gloo or mpi, or none (default: those that are installed)",
    )
    parser.add_argument(
        "--mpi-prefix", default="", help="prefix of an environment with mpiexec and mpi4py (default: this one)"
    )
    parser.add_argument("--no-pin", action="store_true", help="do not pin threads to cores")
    parser.add_argument(
        "--timeout", type=float, default=120.0, help="timeout of one MPI measurement in seconds (default 120)"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="instead, measure at which sizes collectives should switch algorithms, for later jobs of this shape",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results to FILE")
    parser.add_argument("--plot", type=Path, metavar="NAME", help="draw NAME.png and NAME.svg (needs matplotlib)")
    return parser


def parse(arguments: Sequence[str]) -> tuple[Options, int | None]:
    """Parse the arguments. Return the options, and the value of -np or None.

    Exits with a message if an argument is invalid.
    """
    args = make_parser().parse_args(arguments)
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
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return value


def _names(accepted: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = [name.strip() for name in text.split(",")]
        if names == ["all"]:
            return tuple(name for name in accepted if name != "none")
        for name in names:
            if name not in accepted:
                raise argparse.ArgumentTypeError(f"must have names of {', '.join(accepted)}, or all, got {name!r}")
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
            raise argparse.ArgumentTypeError(f"must be bytes from 1 to 16G, as in 4,64K,16M, got {part!r}")
        sizes.append(size)
    return tuple(sizes)
