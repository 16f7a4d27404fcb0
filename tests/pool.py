"""Worker processes that tests share.

    def test_sum(pool):
        def work(x):                      # runs on every rank; shipped by cloudpickle
            return hvd.allreduce(...)
        assert pool(3).run(work, 5) == [...]            # results by rank
        pool(2, HOROVOD_TRANSPORT="tcp").run(work, 5)   # another world size, other settings

One fleet of processes serves all world sizes and settings: workers join another job by shutdown and init with
another environment, as they would under the launcher. A worker that dies or hangs fails the test and is replaced.
Choices that a process makes only once, such as the imported framework and the Keras backend, are the fleet's Kind.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle

from horovod.common.contract.pickling import dumps
from horovod.common.contract.worker_env import WorkerEnv, make_key, make_key_fd
from horovod.common.store import StoreServer
from tests.stuck import describe

ROOT = Path(__file__).resolve().parent.parent
GRACE = 3.0  # seconds that ranks get to end by themselves after another rank failed
GRACE_DEAD = 20.0  # the same if a process died: its peers must notice without its help
START_SECONDS = 180.0
RUN_SECONDS = 180.0  # also for fleets that import a framework (5 s of CPU each) and trace functions, on a busy machine
AWAKE = 1  # other fleets that stay alive besides the plain one: a TensorFlow worker takes 600 MB


class WorkerDied(RuntimeError):
    """A worker process ended, or was killed because it did not answer in time."""


class RemoteTraceback(Exception):
    """The traceback of a worker's exception, as the cause of the exception raised here."""

    def __str__(self) -> str:
        return "\n" + str(self.args[0])


@dataclass(frozen=True)
class Failure:
    """A worker's exception and its traceback."""

    error: BaseException
    trace: str


@dataclass(frozen=True)
class Kind:
    """Properties of a fleet's processes that are fixed when they start."""

    frontends: tuple[str, ...] = ("tests", "torch", "numpy")
    """Frontends that are initialized in a job."""
    environ: tuple[tuple[str, str], ...] = ()
    imports: tuple[str, ...] = ()
    """Modules to import before the first job, so that no test's time limit pays for them."""


PLAIN = Kind()
"""NumPy and the engine, without a framework."""
TORCH = Kind(imports=("torch", "torch._dynamo"))  # optimizers need the second, which is as slow to import as the first


def _framework_kind(backend: str, *imports: str, **environ: str) -> Kind:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    settings = {**quiet, "KERAS_BACKEND": backend, **environ}
    frontends = ("tests", "torch", "numpy", "tensorflow", "tensorflow.keras", "keras")
    return Kind(frontends, tuple(sorted(settings.items())), imports)


TENSORFLOW = _framework_kind("tensorflow", "tensorflow")
KERAS = {
    "tensorflow": TENSORFLOW,
    "torch": _framework_kind("torch", "keras"),
    "jax": _framework_kind("jax", "keras"),
    "legacy": _framework_kind("tensorflow", "tensorflow", TF_USE_LEGACY_KERAS="1"),
}
"""Kinds for the backends of Keras 3; "legacy" is Keras 2 (tf_keras with TensorFlow 2.16 and later)."""
MXNET = Kind(("tests", "mxnet"), imports=("horovod.mxnet",))

JAX = Kind(("tests", "torch", "jax"), (("JAX_PLATFORMS", "cpu"),), ("jax",))


class Worker:
    """One worker process."""

    def __init__(self, number: int, key_fd: int, folder: str, kind: Kind = PLAIN) -> None:
        self.number = number
        local, remote = socket.socketpair()
        self._log = os.path.join(folder, f"worker-{number}-{time.monotonic_ns()}.log")
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HOROVOD_")}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
        environ.setdefault("OMP_NUM_THREADS", "1")
        environ["TMPDIR"] = (
            folder  # TensorFlow's AutoGraph removes its generated files only if a process exits by itself
        )
        environ.update(kind.environ)
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.pool_worker", str(remote.fileno()), str(os.getpid())],
                pass_fds=(remote.fileno(), key_fd),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=ROOT,
            )
        remote.close()
        self.connection = Connection(local.detach())

    def send(self, *message: Any) -> None:
        # A dead worker is detected when its answer is awaited.
        with contextlib.suppress(OSError):
            self.connection.send_bytes(cloudpickle.dumps(message))

    def receive(self) -> Any:
        """Return the worker's answer; raise WorkerDied if it ended instead."""
        try:
            return cloudpickle.loads(self.connection.recv_bytes())
        except (EOFError, OSError):
            code = self.process.wait(60)
            cause = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
            raise WorkerDied(
                f"worker {self.number} (pid {self.process.pid}) ended with {cause}\n{self.log_tail()}"
            ) from None

    def dump_stacks(self) -> None:
        """Ask the worker to write the stacks of all its threads to its log."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)

    def log_tail(self) -> str:
        text = Path(self._log).read_bytes()[-6000:].decode(errors="replace")
        return f"--- output of worker {self.number} ---\n{text}"

    def end(self) -> None:
        self.connection.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)


class Fleet:
    """Worker processes of one kind and the job that they currently form; grows to the largest size requested."""

    def __init__(self, kind: Kind = PLAIN) -> None:
        self.kind = kind
        self._folder = tempfile.mkdtemp(prefix="horovod-pool-")
        self._key = make_key()
        self._key_fd = make_key_fd(self._key)
        self._server = StoreServer(self._key)
        self._workers: list[Worker] = []
        self._job: tuple[Any, ...] | None = None

    def dismiss(self) -> None:
        """End the processes; the next job starts new ones."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._job = None

    def close(self) -> None:
        self.dismiss()
        self._server.close()
        os.close(self._key_fd)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def run(self, job: "Pool", message: tuple[Any, ...], timeout: float, fresh: bool) -> list[Any]:
        """Run a function on the first ranks; return its result, or a Failure, by rank."""
        requested = (job.size, job.environ, job.initialized)
        if fresh or not job.initialized or self._job != requested:  # an earlier function may have left a job running
            self._form(job)
            self._job = requested
        results = self._ask(self._workers[: job.size], message, timeout)
        if any(isinstance(result, Failure) for result in results):
            self._job = None  # the engines' state is unknown
        return results

    def _form(self, job: "Pool") -> None:
        for number, worker in enumerate(self._workers):
            if worker.process.poll() is not None:
                worker.end()
                self._workers[number] = Worker(number, self._key_fd, self._folder, self.kind)
        for number in range(len(self._workers), job.size):
            self._workers.append(Worker(number, self._key_fd, self._folder, self.kind))
        # Import in all workers at once, even those this job does not need; repeated imports are free.
        for failure in self._ask(self._workers, ("leave", self.kind.imports), START_SECONDS):
            raise_if_failed(failure)
        if self._job is None:  # remove keys that a failed worker left in the store
            self._server.close()
            self._server = StoreServer(self._key)
        messages = [
            ("join", self._environ(job, rank), job.initialized, self.kind.frontends) for rank in range(job.size)
        ]
        for worker, message in zip(self._workers, messages, strict=False):
            worker.send(*message)
        results = self._collect(self._workers[: job.size], START_SECONDS, abort=False)
        for result in results:
            raise_if_failed(result)

    def _environ(self, job: "Pool", rank: int) -> dict[str, str]:
        host, port = self._server.address
        env = WorkerEnv(
            rank=rank,
            size=job.size,
            local_rank=rank,
            local_size=job.size,
            rendezvous_addr=host,
            rendezvous_port=port,
            key_fd=self._key_fd,
        )
        quiet = {"HOROVOD_CALIBRATE": "0", "HOROVOD_REPORT_DIR": self._folder}
        return {**env.to_environ(), **quiet, **dict(job.environ)}

    def _ask(self, workers: Sequence[Worker], message: tuple[Any, ...], timeout: float) -> list[Any]:
        for worker in workers:
            worker.send(*message)
        return self._collect(workers, timeout, abort=message[0] == "run")

    def _collect(self, workers: Sequence[Worker], timeout: float, abort: bool) -> list[Any]:
        """Return the workers' answers by rank.

        After a failure the other ranks get GRACE seconds (GRACE_DEAD if a worker died). Then the failed ranks leave
        the job, which ends the operations that the others wait for. Workers that still do not answer are killed.
        """
        results: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        failed = aborted = False
        while len(results) < len(workers):
            waiting = {w.connection: i for i, w in enumerate(workers) if i not in results}
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                if failed and abort and not aborted:
                    aborted = True
                    deadline = time.monotonic() + 2 * GRACE
                    self._abort([w for i, w in enumerate(workers) if isinstance(results.get(i), Failure)])
                    continue
                self._give_up(workers, waiting.values(), results, timeout)
                break
            for connection in ready:
                index = waiting[connection]  # type: ignore[index]
                results[index] = self._reply(workers[index])
                if isinstance(results[index], Failure) and not failed:
                    failed = True
                    grace = GRACE_DEAD if isinstance(results[index].error, WorkerDied) else GRACE
                    deadline = min(deadline, time.monotonic() + grace)
        return [results[i] for i in range(len(workers))]

    def _reply(self, worker: Worker) -> Any:
        try:
            return worker.receive()
        except WorkerDied as error:
            return Failure(error, "")

    def _abort(self, workers: Sequence[Worker]) -> None:
        for worker in workers:
            worker.send("leave")
            if worker.connection.poll(10):
                self._reply(worker)

    def _give_up(self, workers: Sequence[Worker], indices: Any, results: dict[int, Any], timeout: float) -> None:
        """Kill workers that have not answered.

        Each error lists all of them, because the first one need not be the one that hangs.
        """
        stuck = {index: workers[index] for index in indices}
        texts = []
        for worker in stuck.values():
            worker.dump_stacks()
            doing = describe(worker.process.pid, native=timeout >= 60)
            reason = f"worker {worker.number} did not answer within {timeout:g} s and was killed"
            texts.append(f"{reason}\n{worker.log_tail()}\n{doing}")
        for index, worker in stuck.items():
            worker.end()
            results[index] = Failure(WorkerDied("\n".join(texts)), "")


class Fleets:
    """The fleets of a test session by kind, each started on first use.

    If more than AWAKE kinds run, the least recently used ones lose their processes.
    """

    def __init__(self) -> None:
        self._fleets: dict[Kind, Fleet] = {}  # ordered by last use, most recent last

    def of(self, kind: Kind) -> Fleet:
        fleet = self._fleets.pop(kind, None) or Fleet(kind)
        self._fleets[kind] = fleet
        idle = [fleet for fleet in self._fleets.values() if fleet.kind != PLAIN]
        for each in idle[:-AWAKE]:
            each.dismiss()
        return fleet

    def maker(self, kind: Kind) -> Callable[..., "Pool"]:
        """make(size, initialized=True, **environment) -> Pool."""
        fleet = self.of(kind)

        def make(size: int, initialized: bool = True, **environ: str) -> Pool:
            return Pool(fleet, size, tuple(sorted(environ.items())), initialized)

        return make

    def close(self) -> None:
        for fleet in self._fleets.values():
            fleet.close()


def raise_if_failed(result: Any) -> None:
    """Raise a worker's exception here, with its traceback as the cause."""
    if isinstance(result, Failure):
        raise result.error from (RemoteTraceback(result.trace) if result.trace else None)


def _is_test_module(name: str) -> bool:
    return name.split(".")[0] in ("tests", "__main__") or name.startswith("test_")


@dataclass(frozen=True)
class Pool:
    """A job of ``size`` ranks with some environment variables; created by a fixture such as pool or tf_pool."""

    fleet: Fleet
    size: int
    environ: tuple[tuple[str, str], ...]
    initialized: bool = True
    """False if the test's function calls hvd.init itself."""

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        fresh: bool = False,
        errors: bool = False,
        **kwargs: Any,
    ) -> list[Any]:
        """Run ``function(*args, **kwargs)`` on every rank; return the results by rank.

        Args:
            timeout: seconds; RUN_SECONDS by default.
            fresh: shut down and initialize again first.
            errors: return exceptions in place of results. Otherwise the first exception that is not a consequence
                of another rank's is raised; WorkerDied for a worker that ended or hung.
        """
        if _is_test_module(function.__module__):
            cloudpickle.register_pickle_by_value(sys.modules[function.__module__])
        message = ("run", dumps((function, args, kwargs)))
        results = self.fleet.run(self, message, RUN_SECONDS if timeout is None else timeout, fresh)
        if errors:
            return [result.error if isinstance(result, Failure) else result for result in results]
        failures = [result for result in results if isinstance(result, Failure)]
        # Ranks that only lost a peer are victims; look for the original failure.
        failures.sort(key=lambda failure: type(failure.error).__name__ == "HorovodInternalError")
        for failure in failures:
            raise_if_failed(failure)
        return results
