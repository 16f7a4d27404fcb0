"""Simulated Azure ML jobs: processes with the variables that the service sets, each as if on its own node."""

import os
import socket
import subprocess
from collections.abc import Sequence

from tests.launchers import programs

KEY = "b3" * 32


def common(nodes: int, node: int) -> dict[str, str]:
    """Return the variables of every process of a job, with either distribution."""
    return {
        "AZUREML_RUN_ID": "clever_lake_q7",
        "AZUREML_NODE_COUNT": str(nodes),
        "AZ_BATCH_MASTER_NODE": f"{socket.gethostname()}:6000",
        "AZ_BATCH_HOST_LIST": ",".join(f"node-{number}" for number in range(nodes)),
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": str(node == 0).lower(),
        # Names of the service's predecessor, which programs still use.
        "AZ_BATCHAI_MPI_MASTER_NODE": socket.gethostname(),
        "AZ_BATCHAI_GPU_COUNT_FOUND": "0",
        "AZ_BATCHAI_JOB_MOUNT_ROOT": "/mnt/batch",
    }


def start(nodes: int, each: int, command: Sequence[str], **variables: str) -> list["subprocess.Popen[str]"]:
    """Start the processes, by rank, each with one output stream."""
    port = 23000 + os.getpid() % 800 * 10  # the store uses the first free port of the eight after it
    environments = []
    for rank in range(nodes * each):
        node, local = divmod(rank, each)
        place = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "NODE_RANK": str(node),
            "WORLD_SIZE": str(nodes * each),
            "MASTER_ADDR": socket.gethostname(),
            "MASTER_PORT": str(port),
            "HOROVOD_HOSTNAME": f"node-{node}",  # all of them are on this host
        }
        environments.append(programs.environment(**common(nodes, node), **place, **variables))
    return programs.start_each(command, environments)
