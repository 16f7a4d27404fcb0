"""Entry point of a data worker process, which ``compute_worker`` starts and restarts."""

import os
import sys
from typing import NoReturn

from horovod.common.contract.boot import wait_for_go
from horovod.tensorflow.data.compute_service import run_worker
from horovod.tensorflow.data.config import TfDataServiceConfig


def main() -> NoReturn:
    """Run a data worker. The arguments are the service's configuration file and the worker's index."""
    wait_for_go()
    config = TfDataServiceConfig.read(sys.argv[1])
    with config.compute_client() as client:
        run_worker(config, client, int(sys.argv[2]))
    sys.stdout.flush()
    # Exit immediately, without waiting for TensorFlow's threads.
    os._exit(0)
