"""Azure ML, played: processes with the variables that the service sets for a job, each believing to be on its node."""

import os
import socket
import subprocess
from collections.abc import Sequence

from tests.launchers import programs

KEY = "b3" * 32


def common(nodes: int, node: int) -> dict[str, str]:
    """What every process of a job finds, with either distribution."""
    return {
        "AZUREML_RUN_ID": "clever_lake_q7",
        "AZUREML_NODE_COUNT": str(nodes),
        "AZ_BATCH_MASTER_NODE": f"{socket.gethostname()}:6000",
        "AZ_BATCH_HOST_LIST": ",".join(f"node-{number}" for number in range(nodes)),
        "AZ_BATCH_IS_CURRENT_NODE_MASTER": str(node == 0).lower(),
        # Names that are left of the service before it, by which programs still go.
        "AZ_BATCHAI_MPI_MASTER_NODE": socket.gethostname(),
        "AZ_BATCHAI_GPU_COUNT_FOUND": "0",
        "AZ_BATCHAI_JOB_MOUNT_ROOT": "/mnt/batch",
    }


def start(nodes: int, each: int, command: Sequence[str], **variables: str) -> list["subprocess.Popen[str]"]:
    """The processes, by rank; their output is one stream each."""
    port = 23000 + os.getpid() % 800 * 10  # the store takes the first of the eight after it that is free
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
