"""Measure allreduce between hosts with Horovod, gloo and plain sockets, in alternation within one run.

    python benchmarks/hosts.py --hosts 2 [--ranks 1] [--rate 1000] [--sizes ...] [--rounds 3]
        [--variant "ring:HOROVOD_ALGORITHM=allreduce=ring" ...]

The hosts are network namespaces on one bridge (namespaces.py), which are removed at the end. Needs root, iproute2 and
util-linux. A variant is an additional column of Horovod with other environment variables. benchmarks/README.md explains
the results.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import namespaces
from cases import KIB, MIB, Case, allreduce
from jobs import HERE, SERVING, Job, JobError
from report import quantile, slowest

OURS, GLOO, BARE = "horovod", "gloo", "bare"
SIZES = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]
_MODES = {OURS: "allreduce_", GLOO: "blocking", BARE: "bare"}
_PEERS = {OURS: "ours", GLOO: "torch_dist", BARE: "bare"}


@dataclass(frozen=True)
class Column:
    """Column of the table: a peer (horovod, gloo or bare) and its additional environment variables."""

    name: str
    kind: str
    environ: dict[str, str] = field(default_factory=dict)


def parse_variant(text: str) -> Column:
    """Parse `name:VARIABLE=value;VARIABLE=value`; raise ValueError if invalid."""
    name, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in rest.split(";") if part]
    if not name or not colon or not pairs or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(f"--variant must be name:VARIABLE=value;VARIABLE=value, got {text!r}")
    kind = BARE if all(key.startswith("BENCH_") for key, _, _ in pairs) else OURS
    return Column(name, kind, {key: value for key, _, value in pairs})


def bytes_to_send(hosts: int, nbytes: int) -> float:
    """Return the bytes that each of H hosts must send in an allreduce of N bytes: 2 (H-1)/H N."""
    return 2 * (hosts - 1) / hosts * nbytes


def gbit(hosts: int, nbytes: int, seconds: float) -> float:
    """Return the bus bandwidth in Gbit/s, which is comparable to the rate of a link."""
    return bytes_to_send(hosts, nbytes) * 8 / seconds / 1e9


def environments(
    column: Column, hosts: int, ranks: int, rendezvous: tuple[str, int], key_file: str
) -> list[dict[str, str]]:
    """Return additional environment variables for each rank. The ranks of a host are consecutive."""
    size = hosts * ranks
    result = []
    for rank in range(size):
        host, local = divmod(rank, ranks)
        environment = {"OMP_NUM_THREADS": "1"}
        if column.kind == OURS:
            environment |= {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(size),
                "HOROVOD_LOCAL_RANK": str(local),
                "HOROVOD_LOCAL_SIZE": str(ranks),
                "HOROVOD_CROSS_RANK": str(host),
                "HOROVOD_CROSS_SIZE": str(hosts),
                "HOROVOD_HOSTNAME": f"host{host}",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": rendezvous[0],
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(rendezvous[1]),
                "HOROVOD_KEY_FILE": key_file,
            }
        elif column.kind == GLOO:
            environment |= {"MASTER_ADDR": namespaces.address(0), "MASTER_PORT": "41500", "GLOO_SOCKET_IFNAME": "eth0"}
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(local), "WORLD_SIZE": str(size)}
        else:
            addresses = ",".join(namespaces.address(r // ranks) for r in range(size))
            environment |= {"BENCH_RANK": str(rank), "BENCH_SIZE": str(size), "BENCH_ADDRESSES": addresses}
        result.append(environment | column.environ)
    return result


class HostJob(Job):
    """Job without a launcher. Each of its processes is a rank."""

    def cpu_seconds(self) -> float:
        """Return the CPU seconds used by the ranks, with a resolution of 10 ms."""
        ticks = 0
        for process in self._processes:
            try:
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                # Skip processes that have ended.
                continue
            # Add user and system time, which are fields 14 and 15 of /proc/PID/stat.
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


class HostJobs:
    """Jobs of all columns, running on the simulated hosts."""

    def __init__(self, hosts: namespaces.Hosts, args: argparse.Namespace) -> None:
        self._hosts, self._args = hosts, args
        self._stack = ExitStack()

    def __enter__(self) -> HostJobs:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, column: Column) -> HostJob:
        from horovod.common.contract.worker_env import make_key
        from horovod.common.store import StoreServer

        rendezvous, key_file = ("", 0), ""
        if column.kind == OURS:
            key = make_key()
            server = StoreServer(key, host=namespaces.GATEWAY)
            self._stack.callback(server.close)
            key_file = str(Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")), "key"))
            Path(key_file).touch(mode=0o600)
            Path(key_file).write_bytes(key)
            rendezvous = server.address
        extra = environments(column, self._args.hosts, self._args.ranks, rendezvous, key_file)

        def processes(path: str) -> list[tuple[list[str], dict[str, str]]]:
            pin = [] if self._args.pin else ["--no-pin"]
            worker = [sys.executable, str(HERE / "worker.py"), *pin, "--socket", path, "--peer", _PEERS[column.kind]]
            return [(self._hosts.inside(rank // self._args.ranks, worker), env) for rank, env in enumerate(extra)]

        return self._stack.enter_context(HostJob(column.name, len(extra), processes))


@dataclass
class Cell:
    """Results for one column and size: seconds per sample, and CPU seconds per operation in each round."""

    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def line(label: str, hosts: int, nbytes: int, cells: dict[str, Cell]) -> str:
    """Return a table row: median and percentiles in ms, bus bandwidth, CPU time, and ratios to Horovod."""
    horovod = cells.get(OURS)
    texts = []
    for name, cell in cells.items():
        if not cell.seconds:
            texts.append("failed")
            continue
        low, median, high = (quantile(cell.seconds, q) for q in (0.1, 0.5, 0.9))
        cpu = quantile(cell.cpu, 0.5)
        text = f"{median * 1e3:.4g} ({low * 1e3:.4g}-{high * 1e3:.4g}), {gbit(hosts, nbytes, median):.2f}"
        if horovod and horovod.seconds and name != OURS:
            text += f" **{median / quantile(horovod.seconds, 0.5):.2f}x**"
        text += f"; cpu {cpu * 1e3:.3f}"
        if horovod and horovod.seconds and name != OURS:
            text += f" {cpu / quantile(horovod.cpu, 0.5):.2f}x"
        texts.append(text)
    return f"| {label} | " + " | ".join(texts) + " |"


def measure(
    jobs: dict[str, HostJob], columns: dict[str, Column], case: Case, args: argparse.Namespace
) -> dict[str, Cell]:
    cells = {name: Cell() for name in columns}
    for turn in range(args.rounds):
        for name in list(jobs):
            request = {"case": asdict(case), "mode": _MODES[columns[name].kind]}
            warm_up = (3 if turn == 0 else 1) * case.inner
            request["warm_up"] = warm_up
            try:
                before = jobs[name].cpu_seconds()
                cells[name].seconds += slowest(jobs[name].ask(request, timeout=args.timeout))
                used = jobs[name].cpu_seconds() - before
                cells[name].cpu.append(used / (warm_up + case.samples * case.inner))
            except JobError as error:
                print(f"note: {name} failed at {case.label} and is left out from there: {error}", file=sys.stderr)
                cells[name] = Cell()
                jobs.pop(name).close()
    for job in jobs.values():
        job.ask({"forget": True}, timeout=30)
    return cells


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure allreduce between hosts made of network namespaces.")
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=1, help="ranks on each host (default %(default)s)")
    parser.add_argument("--rate", type=float, help="Mbit/s that a host sends at most (default: as fast as it goes)")
    parser.add_argument("--incoming", action="store_true", help="apply --rate to what a host receives as well")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of the tensors, multiples of 4")
    parser.add_argument("--columns", nargs="+", choices=[OURS, GLOO, BARE], default=[OURS, GLOO, BARE])
    parser.add_argument(
        "--variant", action="append", default=[], help="another column: name:VARIABLE=value;VARIABLE=value; repeatable"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every column (default %(default)s)")
    parser.add_argument(
        "--pin", action="store_true", help="bind each rank's threads to one core, ranks to cores in turn"
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds for one measurement (default %(default)s)"
    )
    args = parser.parse_args(argv)
    for name, value, least in (("--hosts", args.hosts, 2), ("--ranks", args.ranks, 1), ("--rounds", args.rounds, 1)):
        if value < least:
            parser.error(f"{name}: {value} is below {least}")
    if args.hosts > 200:
        parser.error(f"--hosts: {args.hosts} is above 200")
    if args.rate is not None and args.rate <= 0:
        parser.error(f"--rate: {args.rate:g} is not above 0")
    if any(size < 4 or size % 4 for size in args.sizes):
        parser.error(f"--sizes: {args.sizes} are not all multiples of 4 bytes (float32)")
    try:
        variants = [parse_variant(text) for text in args.variant]
    except ValueError as error:
        parser.error(str(error))
    args.columns = [Column(name, name) for name in args.columns] + variants
    return args


def main() -> None:
    args = parse_args()
    why = namespaces.missing()
    if why:
        sys.exit(f"benchmarks/hosts.py: {why}")
    # Make SIGTERM a normal exit, so that cleanup handlers stop the jobs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SERVING, os.environ.get("PYTHONPATH")]))
    columns = {column.name: column for column in args.columns}
    with namespaces.Hosts(args.hosts, args.rate, args.incoming) as hosts, HostJobs(hosts, args) as host_jobs:
        jobs: dict[str, HostJob] = {}
        for name, column in columns.items():
            try:
                jobs[name] = host_jobs.start(column)
            except JobError as error:
                print(f"note: {name} is left out: {error}", file=sys.stderr)
        shaped = f"{args.rate:g} Mbit/s" if args.rate else "unshaped"
        print(f"### {args.hosts} hosts of {args.ranks} rank(s), {shaped}\n")
        print("| ms, Gbit/s, cpu ms | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|", flush=True)
        for size in args.sizes:
            case = allreduce(size)
            print(line(case.label, args.hosts, size, measure(jobs, columns, case, args)), flush=True)


if __name__ == "__main__":
    main()
