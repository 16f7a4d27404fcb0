"""What is said of settings that are accepted and do not do what they ask for. Pure; who starts a job says it once.

``horovodrun`` says it, of variables and flags alike, before it starts anything; under other launchers, and without any,
rank 0 says it in ``init``.
"""

from collections.abc import Mapping

from horovod.common.contract import misspelt
from horovod.common.contract.setting import Setting, is_word
from horovod.common.contract.settings import BY_NAME, TABLE

_OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_GPU_OPERATIONS = (
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_GPU_ALLREDUCE",
    "HOROVOD_GPU_ALLGATHER",
    "HOROVOD_GPU_BROADCAST",
    "HOROVOD_GPU_ALLTOALL",
    "HOROVOD_GPU_REDUCESCATTER",
)

# To what is so instead.
_BY_LAUNCHER = {
    "HOROVOD_GPUS_PER_WORKER": "each process sees all GPUs, or those that its launcher gives it, as srun "
    "--gpus-per-task does; torch.cuda.set_device(hvd.local_rank()) takes one for each",
    "HOROVOD_GPU_AFFINITY": "each process runs on the CPUs that its launcher gives it, as srun --cpu-bind and mpirun "
    "--bind-to do",
}


def notices(given: Mapping[str, str], mpi: bool = True) -> dict[str, str]:
    """Of these variables, or what flags make of them, those that do something else than they ask for: name to what, a
    clause for a warning, in the table's order. ``mpi``: may MPI carry the job? Not where horovodrun starts it by
    itself. Raises ValueError naming variable, value and what is accepted."""
    told = {setting.name: _of(setting, given.get(setting.name, "").strip()) for setting in TABLE}
    operations = given.get(_OPERATIONS, "").strip().lower()
    instead = "instead the built-in engine, gloo, carries the tensors (shared memory inside a host, TCP between hosts)"
    if operations == "ccl":
        told[_OPERATIONS] = f"this version does not have that; {instead}"
    elif operations == "mpi" and not mpi:
        told[_OPERATIONS] = f"that takes a job started by MPI (horovodrun --mpi); {instead}"
    return {name: text for name, text in told.items() if text}


def sentences(environ: Mapping[str, str], mpi: bool = True) -> list[str]:
    """The same as sentences about variables of the environment, and about misspelt ones."""
    told = [f"{name} is {environ[name]!r}, but {text}" for name, text in notices(environ, mpi).items()]
    return told + misspelt.sentences(environ)


def unheard(environ: Mapping[str, str]) -> list[str]:
    """Sentences about variables that only ``horovodrun`` acts upon, in a job that it has not started. Raises ValueError
    naming variable, value and what is accepted."""
    given = [BY_NAME[name] for name in _BY_LAUNCHER if environ.get(name, "").strip()]
    return [
        f"{setting.name} is {environ[setting.name]!r}, but only horovodrun acts upon it, and it has not started this "
        f"job: {_BY_LAUNCHER[setting.name]}"
        for setting in given
        if setting.parse(environ[setting.name].strip()) != setting.default
    ]


def _of(setting: Setting, text: str) -> str:
    value = setting.parse(text)
    if setting.kind in ("int", "float") and is_word(text):
        return f"that is no number and is read as {value:g}; accepted is {setting.accepted()}"
    if value == setting.default:
        return ""
    if setting.name in _GPU_OPERATIONS:
        if value == "nccl":  # as without it
            return ""
        if value != "gloo":
            return "this version does not have that; instead the built-in engine, gloo, carries tensors of GPUs"
    if setting.needless:
        return f"this has no effect and is not needed: {setting.needless}"
    return "what it controls is not part of this version yet" if setting.later else ""
