"""Program that runs one process of a data service, which preprocesses data for a training job.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker compute.json

Rank 0 also runs the service through which all processes find each other. It writes the configuration file, and removes
it on exit.
"""

import argparse
import contextlib
import io
import os
import socket
import subprocess
import sys

import horovod.tensorflow as hvd
from horovod.common.compute import ComputeService
from horovod.common.contract import boot
from horovod.common.contract.boot import GO
from horovod.common.contract.worker_env import make_key
from horovod.tensorflow.data.compute_service import begin_dispatcher
from horovod.tensorflow.data.config import SIDES, TfDataServiceConfig

RESTARTS = 10


class DataWorkerFailed(RuntimeError):
    """Error raised if the data worker fails.

    ``code`` is the exit code for this process: the worker's exit code, or 128 + the signal number if signals killed it.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Run one process of the data service until the training ends.

    Args:
        dispatchers: Number of dispatchers, a divisor of the number of processes.
        dispatcher_side: "compute" or "training".
        configfile: Configuration file that the training processes read to find the service.
        timeout: Maximum seconds that parts of the service wait for each other once all data workers are ready.

    Raises:
        ValueError: If the number of processes is not a multiple of ``dispatchers``.
        DataWorkerFailed: If the data worker cannot continue.
    """
    begun_here = not hvd.is_initialized()
    hvd.init()
    service = None
    size, names = hvd.size(), os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")
    nics = {name.strip() for name in names if name.strip()}
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"dispatchers must be a divisor of the number of processes, {size}, got {dispatchers} (rank {hvd.rank()})"
        )
    with contextlib.ExitStack() as ends:
        worker = ends.enter_context(DataWorker(configfile, hvd.rank()))
        worker.wait_until_ready()
        # Wait until all processes have imported TensorFlow, which can be slow, so that timeouts start only then.
        hvd.allgather_object(None, name="compute_worker.ready")
        if hvd.rank() == 0:
            key = make_key()
            service = ends.enter_context(ComputeService(dispatchers, size // dispatchers, key, nics or None))
            places = service.addresses()
            config = TfDataServiceConfig(dispatchers, size // dispatchers, dispatcher_side, places, key, timeout)
            config.write(configfile)
            ends.callback(config.remove, configfile)
        # After this broadcast, no process can read a configuration file left by an earlier service.
        hvd.broadcast_object(0, name="compute_worker")
        # Read the key from the configuration file. It is not sent between ranks, because some of their messages are
        # unencrypted.
        config = TfDataServiceConfig.read(configfile, True, timeout)
        client = ends.enter_context(config.compute_client())
        begin_dispatcher(config, client, hvd.rank(), ends)
        worker.run()
        if service is not None:  # Do not wait after an error: the job ends when this process exits.
            service.wait_for_shutdown()
    if begun_here:
        hvd.shutdown()


class DataWorker:
    """Data worker that runs in a child process. The child exits when this process exits.

    The data worker runs the user's preprocessing. If it is killed, for example because it uses too much memory, this
    class restarts it and training continues.
    """

    def __init__(self, configfile: str, index: int) -> None:
        """Start the child process, which waits until ``run`` is called. ``index`` is the worker's index."""
        self._index = index
        words = [sys.executable, *boot.arguments("horovod.common.contract.boot")]
        self._arguments = [*words, "horovod.tensorflow.data.data_worker", configfile, str(index)]
        self._start()

    def __enter__(self) -> "DataWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def wait_until_ready(self) -> None:
        """Wait until the child has imported TensorFlow, or has exited."""
        with contextlib.suppress(ConnectionError):
            self._pair.recv(1)

    def run(self) -> None:
        """Run the child until training ends, restarting it if it is killed.

        Raises:
            DataWorkerFailed: If the child exits with an error, or is killed too often.
        """
        for _ in range(RESTARTS):
            if self._has_worked():
                return
            self._start()
            self.wait_until_ready()
        if not self._has_worked():
            code = -self._child.returncode
            raise DataWorkerFailed(
                f"data worker {self._index} was ended by signals {1 + RESTARTS} times, the last was {code}", 128 + code
            )

    def _has_worked(self) -> bool:
        """Let the child start working, and wait for it to exit. Return False if a signal killed it."""
        with contextlib.suppress(ConnectionError):
            self._pair.sendall(GO)
        try:
            code = self._child.wait()
        finally:
            self._end()
        if code > 0:
            raise DataWorkerFailed(f"data worker {self._index} ended with exit code {code}, its output says why", code)
        if code < 0:
            text = f"horovod: data worker {self._index} (pid {self._child.pid}) was ended by signal {-code}"
            print(text, file=sys.stderr, flush=True)
        return code == 0

    def _start(self) -> None:
        self._pair, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(self._arguments, stdin=theirs)

    def _end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._pair.close()


parser = argparse.ArgumentParser(prog="python -m horovod.tensorflow.data.compute_worker", description=__doc__)
parser.add_argument("configfile", help="where the training finds the service; on a file system that all hosts have")
parser.add_argument("--dispatchers", type=int, default=1, help="how many; default: 1")
parser.add_argument("--dispatcher-side", choices=SIDES, default=SIDES[0], help="where they run; default: compute")
parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for other parts; default: 60")


def __getattr__(name: str) -> argparse.Namespace:
    """Parse the command line when the attribute ``parsed_args`` is read.

    The command line is not parsed on import, because a process that only imports this module can have other arguments.

    Returns:
        The parsed arguments.

    Raises:
        AttributeError: If the arguments are invalid for ``parser``.
    """
    if name != "parsed_args":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            return parser.parse_args()
    except SystemExit:  # Do not exit, because a process that only imports this module can have other arguments.
        raise AttributeError(
            f"parsed_args: the arguments of this process must be those of a process of the compute side, got "
            f"{sys.argv[1:]}: {output.getvalue().strip()!r}"
        ) from None


if __name__ == "__main__":
    parsed_args = parser.parse_args()
    try:
        main(parsed_args.dispatchers, parsed_args.dispatcher_side, parsed_args.configfile, parsed_args.timeout)
    except DataWorkerFailed as error:
        print(f"horovod: {error}", file=sys.stderr, flush=True)
        sys.exit(error.code)
