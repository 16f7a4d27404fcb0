"""torchrun, and who sets the same variables of torch.distributed without it: Kubernetes' PyTorchJob, training services
of clouds."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, integer

_SERVICES = {"AZUREML_RUN_ID": "Azure ML", "CLUSTER_SPEC": "Vertex AI"}
"""By a variable that only they set; who sets none of them is a PyTorchJob, or like one."""


def find(env: Mapping[str, str]) -> Place | None:
    """This process's place, None when the variables of torch.distributed are not all there."""
    numbers = both(env, "RANK", "WORLD_SIZE")
    host, port = env.get("MASTER_ADDR", "").strip(), integer(env, "MASTER_PORT")
    if numbers is None or not host or port is None:
        return None
    run = env.get("TORCHELASTIC_RUN_ID", "")
    local_size = integer(env, "LOCAL_WORLD_SIZE")
    if local_size is None and (host == "localhost" or host.startswith("127.") or host == "::1"):
        local_size = numbers[1]
    if local_size is None and (nodes := integer(env, "AZUREML_NODE_COUNT")) and numbers[1] % nodes == 0:
        local_size = numbers[1] // nodes  # Azure ML starts as many on each
    # torchrun starts all workers again after a failure, with the same variables but for this number.
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
    """Has torchrun itself started this process? It may run under mpirun or srun, one for each host."""
    return "TORCHELASTIC_RUN_ID" in env
