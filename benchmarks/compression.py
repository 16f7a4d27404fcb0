"""Compare loss curves and bytes sent of examples/pytorch/char_gpt.py for each compressor, over TCP on one host.

python benchmarks/compression.py --steps 200 [--np 2] [--ways none,wire_int8] [-- further flags of the example]

Prints a Markdown table: mean training loss over every ``--every`` steps, loss on held-out text, bytes that rank 0 sent
per step, and whether all ranks ended with equal parameters. All runs use the same seed, and runs without compression
are bitwise reproducible, so differences are due to rounding. Times are not measured.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve()
EXAMPLE = HERE.parents[1] / "examples/pytorch/char_gpt.py"
WAYS = ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8")


@dataclass
class Curve:
    """Results printed by one run of the example.

    ``losses`` maps a step to the mean loss since the previous entry.
    """

    losses: dict[int, float]
    held_out: float
    bytes_sent: int
    identical: bool


def parse(output: str) -> Curve:
    """Parse a run's output. Raise ValueError if any result is missing."""
    losses = {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)/\d+  loss ([\d.]+|nan)", output)}
    held_out = re.search(r"final held-out loss ([\d.]+|nan)", output)
    sent = re.search(r"bytes sent by rank 0: (\d+)", output)
    if not losses or not held_out or not sent:
        raise ValueError(
            "the run did not print its losses, its held-out loss and its bytes; it ended with:\n" + output[-2000:]
        )
    return Curve(losses, float(held_out[1]), int(sent[1]), "parameters identical on all" in output)


def table(curves: dict[str, Curve], steps: int) -> str:
    """Return a Markdown table of all compressors, with bytes relative to the first compressor."""
    # Skip the first loss, because it covers only a single step.
    marks = sorted(next(iter(curves.values())).losses)[1:]
    head = ["compression", *(f"step {m}" for m in marks), "held-out", "bytes a step", "share", "ranks equal"]
    rows = [head, ["---"] * len(head)]
    base = next(iter(curves.values())).bytes_sent
    for method, c in curves.items():
        losses = [f"{c.losses[m]:.4f}" for m in marks]
        share = f"{c.bytes_sent / base:.3f}"
        each = f"{c.bytes_sent / steps:,.0f}"
        rows.append([method, *losses, f"{c.held_out:.4f}", each, share, "yes" if c.identical else "NO"])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def run(method: str, args: argparse.Namespace) -> Curve:
    """Run a job. Raise a subprocess error if it fails or takes longer than ``--timeout`` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--steps", args.steps, "--log-every", args.every, "--compression", method, "--no-progress"]
        launcher = [sys.executable, "-m", "horovod.runner", "-np", args.np]
        command = [*launcher, sys.executable, HERE, "--worker", *flags, *args.rest]
        done = subprocess.run(
            [str(part) for part in command],
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ, "HOROVOD_TRANSPORT": "tcp"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=args.timeout,
        )
    if done.returncode != 0:
        raise subprocess.SubprocessError(f"{method}: exit code {done.returncode}\n{done.stdout[-3000:]}")
    return parse(done.stdout)


def work() -> None:
    """Run the example in a worker, then print how many bytes this rank has sent since startup."""
    sys.argv = [str(EXAMPLE), *sys.argv[2:]]
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    import horovod.torch as hvd
    from horovod.common.frontends import state

    if hvd.rank() == 0:
        print(f"bytes sent by rank 0: {state.engine.stats()['wire_bytes']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="steps of each run (default %(default)s)")
    parser.add_argument("--every", type=int, default=50, help="steps between two marks (default %(default)s)")
    parser.add_argument("--np", type=int, default=2, help="workers (default %(default)s)")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for a run (default %(default)s)")
    parser.add_argument("rest", nargs="*", help="further flags of the example, after --")
    args = parser.parse_args()
    methods = args.ways.split(",")
    if unknown := [method for method in methods if method not in WAYS]:
        parser.error(f"--ways must be of {', '.join(WAYS)}, got {', '.join(unknown)}")
    curves = {}
    for method in methods:
        curves[method] = run(method, args)
        print(table(curves, args.steps) + "\n", flush=True)


if __name__ == "__main__":
    work() if sys.argv[1:2] == ["--worker"] else main()
