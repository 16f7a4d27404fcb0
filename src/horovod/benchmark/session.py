"""Benchmark session of one rank.

All ranks run the same program. Engines and the libraries compared with them take turns (A B C A B C), so that a change
in the machine's speed affects all of them. Rank 0 writes the results.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from horovod import _core
from horovod._version import __version__
from horovod.benchmark import calibrate, report
from horovod.benchmark.calibrate import FITTED, fit_model
from horovod.benchmark.engines import EngineColumn
from horovod.benchmark.jobs import Gloo, JobError, Mpi, gloo_missing, mpi_missing
from horovod.benchmark.options import Case, Options, bus_factor, make_cases
from horovod.benchmark.standalone.serving import pin, timed
from horovod.common.basics import HorovodBasics
from horovod.common.bootstrap.calibration import World, store
from horovod.common.contract.settings import Settings
from horovod.common.network.interfaces import machine_identity
from horovod.common.objects import allgather_object, broadcast_object

HOROVOD = "horovod"
SHARED = "shared"  # label of the column for tensors in shared memory


class Session:
    """Engines and peers of a benchmark, set up on every rank."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._basics = HorovodBasics("benchmark")
        self._basics.init()
        self.rank, self.size = self._basics.rank(), self._basics.size()
        self._cores = sorted(os.sched_getaffinity(0))  # Cores of this process, before any thread is pinned to one.
        self._notes: list[str] = []
        self._node_of, self._one_host = self._nodes()
        self._horovod = EngineColumn(HOROVOD, {}, self._node_of)
        self._links: dict[str, EngineColumn] = {}
        self._model: dict[str, float] = {}
        self._gloo: Gloo | None = None
        self._mpi: Mpi | None = None
        self._with_mpi = False

    def _nodes(self) -> tuple[list[int], bool]:
        """Return each rank's node, and True if all ranks are on one host."""
        shared = os.environ.get("HOROVOD_TRANSPORT", "").lower() != "tcp"
        records = allgather_object((machine_identity(shared), socket.gethostname()), "benchmark.nodes")
        machines = list(dict.fromkeys(machine for machine, _ in records))
        return [machines.index(machine) for machine, _ in records], len({host for _, host in records}) == 1

    def print(self, text: str) -> None:
        """Print a line of the report on rank 0."""
        if self.rank == 0:
            print(text, flush=True)

    def note(self, text: str) -> None:
        """Print a note about the measurement to stderr, now and again at the end of the report."""
        if self.rank == 0 and text not in self._notes:
            self._notes.append(text)
            print(f"note: {text}", file=sys.stderr, flush=True)

    def set_up(self) -> None:
        """Start all engines, and the libraries to compare them with. Raises ValueError if an algorithm is unknown."""
        for name in self._algorithms():
            self._add_algorithm(name)
        self._start_peers()
        self.pin()

    def _algorithms(self) -> list[str]:
        existing = _core.algorithms("allreduce")
        names = existing if self._options.algorithms == ("all",) else list(dict.fromkeys(self._options.algorithms))
        for name in names:
            if name not in existing:
                raise ValueError(f"--algorithms must have {', '.join(existing)}, or all, got {name!r}")
        return names

    def _add_algorithm(self, name: str) -> None:
        """Add a results column for an algorithm.

        Ranks communicate over shared memory if the algorithm supports it, and otherwise over TCP.
        """
        choice = {"HOROVOD_ALGORITHM": f"allreduce={name}"}
        alone = list(range(self.size))
        if _core.runs_in("allreduce", name, self._node_of):
            self._links[name] = EngineColumn(name, choice, self._node_of)
        elif self.size > 1 and _core.runs_in("allreduce", name, alone):
            self._links[name] = EngineColumn(f"{name} (tcp)", {**choice, "HOROVOD_TRANSPORT": "tcp"}, alone)
        else:
            self.note(f"algorithm {name} is left out: it cannot run in this world")

    def _start_peers(self) -> None:
        if not self._options.peers or self.size == 1:
            return
        if not self._one_host:
            self.note("peers are measured on one host only, and are left out")
            return
        if "gloo" in self._options.peers:
            why = next(filter(None, allgather_object(gloo_missing(), "benchmark.gloo")), "")
            if why:
                self.note(f"gloo is left out: {why}")
            else:
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = broadcast_object(probe.getsockname()[1], name="benchmark.port")
                self._gloo = Gloo(self.rank, self.size, port)
        if "mpi" in self._options.peers:
            if self.rank == 0:
                self._start_mpi()
            self._with_mpi = broadcast_object(self._mpi is not None, name="benchmark.mpi")

    def _start_mpi(self) -> None:
        why = mpi_missing(self._options.mpi_prefix)
        if why:
            self.note(f"MPI is left out: {why}")
            return
        try:
            self._mpi = Mpi(self.size, self._options.mpi_prefix, self._options.pin, self._options.timeout)
        except JobError as error:
            self.note(f"MPI is left out: {error}")

    def measure(self) -> tuple[list[report.Result], dict[int, str]]:
        """Measure all cases and print a table per collective. Return rank 0's results and the labels of the sizes."""
        everything: list[report.Result] = []
        labels: dict[int, str] = {}
        parameters = fit_model(list(self._links.values()), self.rank, self.size) if self._links else {}
        for collective in self._options.collectives:
            cases = make_cases(collective, self._options.sizes, self.size)
            results = [found for case in cases for found in self._measure_case(case, parameters)]
            shown = {case.bytes: case.label for case in cases}
            labels |= shown
            if self.rank == 0:
                self._print(collective, results, shown)
            everything += results
        self._model = parameters
        return everything, labels

    def _print(self, collective: str, results: Sequence[report.Result], labels: dict[int, str]) -> None:
        named = {column.name for column in self._links.values()}
        self.print(f"\n{collective}, {self.size} ranks, float32; median (10th to 90th percentile)")
        self.print(report.comparison([r for r in results if r.column not in named], labels))
        compared = [r for r in results if r.column in named]
        if compared:
            self.print(f"\nalgorithms of {collective}")
            self.print(report.algorithms_table(compared, labels))

    def _columns(self, case: Case) -> list[tuple[str, EngineColumn | None, Callable[[], object], Callable[[], object]]]:
        """Return (name, engine, operation, barrier) for each table column that the job's own processes measure.

        This excludes MPI's column, because MPI runs in separate processes.
        """
        engines = [self._horovod, *(self._links.values() if case.collective == "allreduce" else ())]
        columns: list[Any] = [(e.name, e, e.prepare(case), e.barrier) for e in engines]
        if case.collective == "allreduce" and self._shares(case.bytes):
            columns.insert(1, (SHARED, self._horovod, self._horovod.prepare(case, shared=True), self._horovod.barrier))
        operation = self._gloo.prepare(case) if self._gloo else None
        if self._gloo and operation:
            columns.append((self._gloo.name, None, operation, self._gloo.barrier))
        return columns

    def _shares(self, nbytes: int) -> bool:
        """Return True if the ranks' shared memory has space for a tensor of the given size on every rank."""
        return all(allgather_object(self._horovod.shared_memory(nbytes) is not None, "benchmark.shared"))

    def _measure_case(self, case: Case, parameters: dict[str, float]) -> list[report.Result]:
        columns = self._columns(case)
        local: dict[str, list[float]] = {name: [] for name, *_ in columns}
        mpi: list[float] = []
        for turn in range(self._options.rounds):
            warm_up = (3 if turn == 0 else 1) * case.inner
            for name, _, operation, barrier in columns:
                local[name] += timed(operation, barrier, warm_up, case.samples, case.inner, case.inner // 4)
            if self._with_mpi:
                mpi += report.slowest(self._turn_of_mpi(case, warm_up))
                self._horovod.barrier()
        by_rank: list[dict[str, list[float]]] = allgather_object(local, "benchmark.samples")
        if self.rank != 0:
            return []
        factor = bus_factor(case.collective, self.size)
        results = []
        for name, engine, *_ in columns:
            samples = report.slowest([ranks[name] for ranks in by_rank])
            about = self._about(case, engine, parameters) if engine else {}
            results.append(report.result(case.collective, case.bytes, name, samples, factor, **about))
        if mpi and self._mpi:
            name = self._mpi.name
            results.append(report.result(case.collective, case.bytes, name, mpi, factor))
        return results

    def _about(self, case: Case, engine: EngineColumn, parameters: dict[str, float]) -> dict[str, Any]:
        name = engine.algorithm(case)
        about: dict[str, Any] = {
            "algorithm": name,
            "order": _core.addition_order(case.collective, name),
            "formula": _core.cost_formula(case.collective, name),
        }
        if parameters and self.size > 1:
            about["predicted"] = _core.predict(case.collective, name, case.bytes, engine.node_of, parameters)
        return about

    def _turn_of_mpi(self, case: Case, warm_up: int) -> list[list[float]]:
        """Return MPI's samples by rank on rank 0. The other ranks wait and return an empty list."""
        if self._mpi is None:
            return []
        try:
            return self._mpi.measure(case, warm_up)
        except JobError as error:
            self.note(
                f"{self._mpi.name} failed at {case.collective} of {case.label} and is left out from there: {error}"
            )
            self._mpi.stop()
            self._mpi = None
            return []

    def finish(self, results: Sequence[report.Result], labels: dict[int, str]) -> None:
        """Print a description of the machine, and write JSON and plots, on rank 0 only."""
        if self.rank != 0:
            return
        machine = self._machine()
        self.print("\n" + "\n".join(f"{name}: {value}" for name, value in machine.items() if value))
        if self._model:
            shown = ", ".join(f"{name} {value:.3g}" for name, value in self._model.items())
            self.print(f"cost model fitted to {', '.join(FITTED)} (s, s a byte): {shown}")
        if self._options.json:
            self._options.json.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(report.to_json(machine, results, self._model), indent=1)
            self._options.json.write_text(text + "\n", encoding="utf-8")
            self.print(f"results: {self._options.json}")
        if self._options.plot:
            self.print(report.draw(results, labels, self._options.plot))

    def _machine(self) -> dict[str, Any]:
        return {
            "ranks": self.size,
            "cores": len(self._cores),
            "pinned": self._options.pin,
            "machine": f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}",
            "horovod": f"{__version__}, kernels for {_core.isa()}",
            "gloo": self._gloo.about if self._gloo else "",
            "mpi": self._mpi.about if self._mpi else "",
            "notes": list(self._notes),
        }

    def calibrate(self) -> None:
        """Calibrate the tuned sizes, and store the new sizes if they are faster than the defaults."""
        outcome = calibrate.Calibration(self._node_of).run(self.pin)
        parameters = fit_model([self._horovod], self.rank, self.size)
        if self.rank != 0:
            return
        for name, (before, after) in outcome.gains.items():
            before_us, after_us = report.microseconds(before), report.microseconds(after)
            self.print(f"{name}: {before_us} us with the defaults, {after_us} us tuned, {before / after:.2f}x")
        shape = f"{self.size} ranks on this host, {outcome.seconds:.2f} s"
        job = self._basics
        transport = Settings.from_environ().text("HOROVOD_TRANSPORT")
        world = World.here(self.size, job.local_size(), job.cross_size(), transport)
        tuning = outcome.tuning if outcome.accepted else {}
        if outcome.tuning and not tuning:
            self.print("these sizes are not faster than the defaults altogether, and are dropped")
        try:
            gains = {name: {"default": b, "tuned": a} for name, (b, a) in outcome.gains.items()}
            path = store(world, tuning, gains, parameters)
        except OSError as error:
            raise ValueError(f"the measured thresholds cannot be saved: {error}") from None
        shown = ", ".join(f"{name} {value}" for name, value in tuning.items()) or "the defaults are as good"
        self.print(f"calibrated for {shape}: {shown}\n{path}")

    def pin(self) -> None:
        """Pin all threads of this process to one core, unless pinning is disabled."""
        if self._options.pin:
            pin(self._cores[self._basics.local_rank() % len(self._cores)])

    def close(self) -> None:
        """Stop the peers and engines of this rank."""
        if self._mpi:
            self._mpi.stop()
        if self._gloo:
            self._gloo.stop()
        for engine in (*self._links.values(), self._horovod):
            engine.stop()
        self._basics.shutdown()


def run(options: Options) -> None:
    """Run the benchmark. Raises ValueError if it cannot run, or HorovodInternalError if a rank is lost."""
    session = Session(options)
    try:
        if options.calibrate:
            session.calibrate()
        else:
            session.set_up()
            session.finish(*session.measure())
    finally:
        session.close()
