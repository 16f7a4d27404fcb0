"""Warnings about settings that are accepted but do not do what they ask for. Pure; each job shows them once.

``horovodrun`` shows them, for variables and flags alike, before it starts anything. Under other launchers, and without
one, rank 0 shows them in ``init``.
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

# By setting: what happens instead.
_BY_LAUNCHER = {
    "HOROVOD_GPUS_PER_WORKER": "each process sees all GPUs, or those that its launcher gives it, as srun "
    "--gpus-per-task does; torch.cuda.set_device(hvd.local_rank()) takes one for each",
    "HOROVOD_GPU_AFFINITY": "each process runs on the CPUs that its launcher gives it, as srun --cpu-bind and mpirun "
    "--bind-to do",
}


def notices(given: Mapping[str, str], mpi: bool = True) -> dict[str, str]:
    """Return the settings that do something other than what they ask for, in the table's order.

    Args:
        given: Variables, including those set by flags.
        mpi: True if MPI may carry the job; False if horovodrun starts it without MPI.

    Returns:
        By name, a clause for a warning that says what happens instead.

    Raises:
        ValueError: If a value is invalid; names variable, value and what is accepted.
    """
    told = {setting.name: _of(setting, given.get(setting.name, "").strip()) for setting in TABLE}
    operations = given.get(_OPERATIONS, "").strip().lower()
    instead = "instead the built-in engine, gloo, carries the tensors (shared memory inside a host, TCP between hosts)"
    if operations == "ccl":
        told[_OPERATIONS] = f"this version does not have that; {instead}"
    elif operations == "mpi" and not mpi:
        told[_OPERATIONS] = f"that takes a job started by MPI (horovodrun --mpi); {instead}"
    return {name: text for name, text in told.items() if text}


def sentences(environ: Mapping[str, str], mpi: bool = True) -> list[str]:
    """Return sentences about these settings and about misspelled variables of the environment."""
    told = [f"{name} is {environ[name]!r}, but {text}" for name, text in notices(environ, mpi).items()]
    return told + misspelt.sentences(environ)


def unheard(environ: Mapping[str, str]) -> list[str]:
    """Return sentences about variables that only ``horovodrun`` handles, for a job that it has not started.

    Raises:
        ValueError: If a value is invalid; names variable, value and what is accepted.
    """
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
        return f"that is not a number and is read as {value:g}; use {setting.accepted()}"
    if value == setting.default:
        return ""
    if setting.name in _GPU_OPERATIONS:
        if value == "nccl":  # the same as without the setting
            return ""
        if value != "gloo":
            return "this version does not have that; instead the built-in engine, gloo, carries tensors of GPUs"
    if setting.needless:
        return f"this has no effect and is not needed: {setting.needless}"
    return "what it controls is not part of this version yet" if setting.later else ""
