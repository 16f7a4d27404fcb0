"""Warnings about misspelled variables and settings without effect, shown once per job.

``horovodrun`` checks variables and flags before it starts any process, and shows the warnings. If a job was started
without ``horovodrun``, rank 0 shows the warnings in ``init``.
"""

import contextlib
from collections.abc import Iterable, Mapping

from horovod.common.contract.setting import Setting, is_word
from horovod.common.contract.settings import BY_NAME, TABLE

PREFIX = "HOROVOD_"
OTHER_VARIABLES = frozenset(
    [
        "HOROVOD_CONTROLLER",
        "HOROVOD_CROSS_RANK",
        "HOROVOD_CROSS_SIZE",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "HOROVOD_HOSTNAME",
        "HOROVOD_JOB_KEY",
        "HOROVOD_KEY_FD",
        "HOROVOD_KEY_FILE",
        "HOROVOD_LOCAL_RANK",
        "HOROVOD_LOCAL_SIZE",
        "HOROVOD_POD_NAME",
        "HOROVOD_POD_NAMESPACE",
        "HOROVOD_POD_NODE",
        "HOROVOD_POD_TOKEN",
        "HOROVOD_RANK",
        "HOROVOD_RANK_PROCESS",
        "HOROVOD_REPORT_PIPE",
        "HOROVOD_RUN_FOLDER",
        "HOROVOD_RUN_FUNCTION_FD",
        "HOROVOD_RUN_RESULT_FD",
        "HOROVOD_SIZE",
        "HOROVOD_SPARK_DEVICES",
        "HOROVOD_SPARK_DRIVER_LOG",
        "HOROVOD_WORKER",
    ]
)
"""Variables of Horovod that are not settings: the identity of a process, and values passed on by launchers."""

OLDER = frozenset(
    [
        "HOROVOD_CUDA_HOME",
        "HOROVOD_CUDA_INCLUDE",
        "HOROVOD_CUDA_LIB",
        "HOROVOD_DEBUG",
        "HOROVOD_NCCL_HOME",
        "HOROVOD_NCCL_INCLUDE",
        "HOROVOD_NCCL_LIB",
        "HOROVOD_NCCL_LINK",
        "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
    ]
)
"""Variables of other versions that resemble a setting and are accepted without effect."""

_RECOGNIZED = {setting.name: setting.name for setting in TABLE} | {name: name for name in OTHER_VARIABLES}
# horovodrun flags, spelled like environment variables.
_FLAGS = {PREFIX + s.flag.lstrip("-").replace("-", "_").upper(): s.name for s in TABLE if s.flag}
# Minimum similarity, from 0 to 1, at which a name is treated as misspelled. Names are compared without the prefix.
_NEAR = 0.8
_NEAR_PREFIX = 0.85


def misspelt_sentences(names: Iterable[str]) -> list[str]:
    """Return a warning for each unknown variable that resembles a known one.

    Variables that resemble no known variable are ignored, because they may be the user's own. Warnings do not contain
    values, which may be secret.
    """
    found = {name: near for name in names if (near := nearest_variable(name))}
    return [
        f"{name} is set, but there is no such setting, so it has no effect; did you mean {near}?"
        for name, near in found.items()
    ]


def nearest_variable(name: str) -> str:
    """Return the variable that the user probably meant, or "" if the name is valid or resembles no known variable."""
    if name in _RECOGNIZED or name in OLDER:
        return ""
    upper = name.upper()
    first, _, rest = upper.partition("_")
    if not rest or first[:1] not in ("H", "O"):  # return early, because most variables are not misspelled settings
        return ""
    import difflib  # imported here, because few jobs need the import

    if first + "_" != PREFIX:
        if difflib.SequenceMatcher(None, first + "_", PREFIX).ratio() < _NEAR_PREFIX:
            return ""
        meant = _closest(PREFIX + rest)
        return meant if meant == PREFIX + rest else ""
    return _closest(upper)


def _closest(name: str) -> str:
    import difflib

    recognized = _RECOGNIZED | _FLAGS
    if name in recognized:
        return recognized[name]
    longer = {recognized[each] for each in recognized if each.startswith(name + "_")}
    if len(longer) == 1:
        return longer.pop()
    bare = {each.removeprefix(PREFIX): each for each in recognized}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, 1, _NEAR)
    return recognized[bare[near[0]]] if near else ""


def of_program(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that the program has set itself, and that the launcher therefore could not check."""
    with contextlib.suppress(OSError):
        with open("/proc/self/environ", "rb") as file:
            inherited = {line.partition(b"=")[0].decode(errors="surrogateescape") for line in file.read().split(b"\0")}
        return [name for name in environ if name not in inherited]
    return []


_OPERATIONS = "HOROVOD_CPU_OPERATIONS"
_GPU_OPERATIONS = (
    "HOROVOD_GPU_OPERATIONS",
    "HOROVOD_GPU_ALLREDUCE",
    "HOROVOD_GPU_ALLGATHER",
    "HOROVOD_GPU_BROADCAST",
    "HOROVOD_GPU_ALLTOALL",
    "HOROVOD_GPU_REDUCESCATTER",
)

# For each setting that only horovodrun supports: a clause saying what happens if another launcher starts the job.
_BY_LAUNCHER = {
    "HOROVOD_GPUS_PER_WORKER": "each process sees all GPUs, or those that its launcher gives it, as srun "
    "--gpus-per-task does; torch.cuda.set_device(hvd.local_rank()) takes one for each",
    "HOROVOD_GPU_AFFINITY": "each process runs on the CPUs that its launcher gives it, as srun --cpu-bind and mpirun "
    "--bind-to do",
}


def notices(environ: Mapping[str, str], mpi: bool = True) -> dict[str, str]:
    """Return the settings that cannot have the requested effect, in the order of the table of settings.

    Args:
        environ: Environment variables, including those set by flags.
        mpi: True if the job can use MPI. False if horovodrun starts it without MPI.

    Returns:
        For each setting's name, a clause that says what happens instead, for use in a warning.

    Raises:
        ValueError: If a value is invalid. The message names the variable, its value and the accepted values.
    """
    effects = {setting.name: _of(setting, environ.get(setting.name, "").strip()) for setting in TABLE}
    operations = environ.get(_OPERATIONS, "").strip().lower()
    instead = "instead the built-in engine, gloo, carries the tensors (shared memory inside a host, TCP between hosts)"
    if operations == "ccl":
        effects[_OPERATIONS] = f"this version does not have that; {instead}"
    elif operations == "mpi" and not mpi:
        effects[_OPERATIONS] = f"that takes a job started by MPI (horovodrun --mpi); {instead}"
    return {name: text for name, text in effects.items() if text}


def sentences(environ: Mapping[str, str], mpi: bool = True) -> list[str]:
    """Return warnings about environment variables that are misspelled or have no effect."""
    warnings = [f"{name} is {environ[name]!r}, but {text}" for name, text in notices(environ, mpi).items()]
    return warnings + misspelt_sentences(environ)


def unheard(environ: Mapping[str, str]) -> list[str]:
    """Return warnings about variables that only ``horovodrun`` supports, for jobs with another launcher.

    Raises:
        ValueError: If a value is invalid. The message names the variable, its value and the accepted values.
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
        if value == "nccl":  # the value "nccl" has the same effect as the default
            return ""
        if value != "gloo":
            return "this version does not have that; instead the built-in engine, gloo, carries tensors of GPUs"
    return setting.ignored
