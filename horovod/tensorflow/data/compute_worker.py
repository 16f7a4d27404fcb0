"""A process of the compute side of a data service:

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker compute.json

Rank 0 also has the service by which all find one another, and writes the file, which it removes at the end.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys

import horovod.tensorflow as hvd
from horovod.common.compute import ComputeService
from horovod.common.contract import boot
from horovod.common.contract.worker_env import make_key
from horovod.tensorflow.data.compute_service import begin_dispatcher
from horovod.tensorflow.data.config import SIDES, TfDataServiceConfig

RESTARTS = 10


class DataWorkerFailed(RuntimeError):
    """``code``: what this process ends with, the data worker's exit code; 128 and the signal's number, as shells do,
    for one that is killed again and again."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: float) -> None:
    """Returns when the training has ended the service. Raises ValueError when the number of processes is no multiple of
    ``dispatchers``, DataWorkerFailed when the data worker cannot go on."""
    hvd.init()
    service = None
    size, names = hvd.size(), os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")
    nics = {name.strip() for name in names if name.strip()}
    if dispatchers < 1 or size % dispatchers:
        raise ValueError(
            f"dispatchers is {dispatchers}, accepted is a divisor of the number of processes, {size} "
            f"(rank {hvd.rank()})"
        )
    with contextlib.ExitStack() as ends:
        if hvd.rank() == 0:
            key = make_key()
            service = ends.enter_context(ComputeService(dispatchers, size // dispatchers, key, nics or None))
            places = service.addresses()
            config = TfDataServiceConfig(dispatchers, size // dispatchers, dispatcher_side, places, key, timeout)
            config.write(configfile)
            ends.callback(config.remove, configfile)
        hvd.broadcast_object(0, name="compute_worker")  # so that nobody reads what an earlier service has left
        # The key goes by the file: what ranks say to each other is not encrypted everywhere.
        config = TfDataServiceConfig.read(configfile, True, timeout)
        client = ends.enter_context(config.compute_client())
        begin_dispatcher(config, client, hvd.rank(), ends)
        _keep_worker(configfile, hvd.rank())
        if service is not None:  # after an error there is nothing to wait for: this process ends, and with it the job
            service.wait_for_shutdown()
    hvd.shutdown()


def _keep_worker(configfile: str, index: int) -> None:
    """The data worker is a process of its own, since the user's preprocessing runs there: one that is killed, for its
    memory say, is started again, and training goes on. Raises DataWorkerFailed when it fails by itself, or is killed
    too often."""
    words = [sys.executable, *boot.words("horovod.tensorflow.data.data_worker"), configfile, str(index)]
    for _ in range(1 + RESTARTS):
        child = subprocess.Popen(words, stdin=subprocess.PIPE)  # its end is that of this process
        try:
            code = child.wait()
        finally:
            child.kill()
            child.communicate()
        if code == 0:
            return
        if code > 0:
            raise DataWorkerFailed(f"data worker {index} ended with exit code {code}, its output says why", code)
        print(
            f"horovod: data worker {index} (pid {child.pid}) was ended by signal {-code}", file=sys.stderr, flush=True
        )
    raise DataWorkerFailed(
        f"data worker {index} was ended by signals {1 + RESTARTS} times, the last was {-code}", 128 - code
    )


parser = argparse.ArgumentParser(prog="python -m horovod.tensorflow.data.compute_worker", description=__doc__)
parser.add_argument("configfile", help="where the training finds the service; on a file system that all hosts have")
parser.add_argument("--dispatchers", type=int, default=1, help="how many; default: 1")
parser.add_argument("--dispatcher-side", choices=SIDES, default=SIDES[0], help="where they run; default: compute")
parser.add_argument("--timeout", type=float, default=60, help="seconds to wait for other parts; default: 60")


def __getattr__(name: str) -> argparse.Namespace:
    """``parsed_args``: what ``parser`` makes of this process's words (``sys.argv``), read when it is asked for, since a
    process that imports this may have words of its own. Raises AttributeError for words that do not fit."""
    if name != "parsed_args":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return parser.parse_args()
    except SystemExit:  # so that whoever looks for it does not end by that
        raise AttributeError(
            f"parsed_args: this process has the words {sys.argv[1:]}; accepted are those of a process of the compute "
            f"side, as {said.getvalue().strip()!r} tells"
        ) from None


if __name__ == "__main__":
    parsed_args = parser.parse_args()
    try:
        main(parsed_args.dispatchers, parsed_args.dispatcher_side, parsed_args.configfile, parsed_args.timeout)
    except DataWorkerFailed as error:
        print(f"horovod: {error}", file=sys.stderr, flush=True)
        sys.exit(error.code)
