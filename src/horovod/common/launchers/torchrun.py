"""torchrun, and launchers that set the same torch.distributed variables.

These are the PyTorchJob of Kubernetes and cloud services.
"""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, integer

_SERVICES = {"AZUREML_RUN_ID": "Azure ML", "CLUSTER_SPEC": "Vertex AI"}
"""Name of the service, by a variable that only it sets.

Without any of them, the launcher is or resembles PyTorchJob.
"""


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place; None unless all variables of torch.distributed are set."""
    numbers = both(env, "RANK", "WORLD_SIZE")
    host, port = env.get("MASTER_ADDR", "").strip(), integer(env, "MASTER_PORT")
    if numbers is None or not host or port is None:
        return None
    run = env.get("TORCHELASTIC_RUN_ID", "")
    local_size = integer(env, "LOCAL_WORLD_SIZE")
    if local_size is None and (host == "localhost" or host.startswith("127.") or host == "::1"):
        local_size = numbers[1]
    if local_size is None and (nodes := integer(env, "AZUREML_NODE_COUNT")) and numbers[1] % nodes == 0:
        local_size = numbers[1] // nodes  # Azure ML starts equally many processes on each node
    # After a failure, torchrun restarts all workers with the same variables except this number.
    again = env.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Place(
        "torchrun" if run else next((name for key, name in _SERVICES.items() if env.get(key)), "PyTorchJob"),
        *numbers,
        local_rank=integer(env, "LOCAL_RANK"),
        local_size=local_size,
        job=f"{host}:{port}/{run}/{again}",
        leads=(host,),
        port=port,
        tells="RANK",
    )


def is_inside(env: Mapping[str, str]) -> bool:
    """Return True if torchrun itself started this process. torchrun may run under mpirun or srun, once per host."""
    return "TORCHELASTIC_RUN_ID" in env
