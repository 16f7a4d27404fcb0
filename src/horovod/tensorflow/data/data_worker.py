"""Data worker process, which ``compute_worker`` starts, and restarts if it is killed."""

import os
import sys
from typing import NoReturn

from horovod.common.contract.boot import wait_for_go
from horovod.tensorflow.data.compute_service import run_worker
from horovod.tensorflow.data.config import TfDataServiceConfig


def main() -> NoReturn:
    """Run the data worker. Command-line arguments: the service's configuration file and the worker's number."""
    wait_for_go()
    config = TfDataServiceConfig.read(sys.argv[1])
    with config.compute_client() as client:
        run_worker(config, client, int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)  # exit without waiting for TensorFlow's threads
