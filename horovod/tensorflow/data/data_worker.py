"""The data worker that ``compute_worker`` starts, and starts again when it is killed."""

import os
import sys
import threading
from typing import NoReturn

from horovod.tensorflow.data.compute_service import run_worker
from horovod.tensorflow.data.config import TfDataServiceConfig


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> NoReturn:
    """Run the data worker: arguments are the file of the service and the worker's number."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    config = TfDataServiceConfig.read(sys.argv[1])
    with config.compute_client() as client:
        run_worker(config, client, int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # the thread reads on, which the interpreter's end would wait for
