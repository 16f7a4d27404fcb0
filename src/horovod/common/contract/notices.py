"""Warnings about settings that have no effect and about misspelled variables; each job shows them once.

``horovodrun`` shows them for variables and flags before it starts any process. Under other launchers, or without a
launcher, rank 0 shows them in ``init``.
"""

import contextlib
from collections.abc import Iterable, Mapping

from horovod.common.contract.setting import Setting, is_word
from horovod.common.contract.settings import BY_NAME, TABLE

PREFIX = "HOROVOD_"
OTHERS = frozenset(
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

_KNOWN = {setting.name: setting.name for setting in TABLE} | {name: name for name in OTHERS}
# Names of horovodrun's flags in the form of variables.
_FLAGS = {PREFIX + s.flag.lstrip("-").replace("-", "_").upper(): s.name for s in TABLE if s.flag}
_NEAR = 0.8  # minimum similarity (0 to 1) of names without their prefix
_NEAR_PREFIX = 0.85


def misspelt_sentences(names: Iterable[str]) -> list[str]:
    """Return a sentence for each unknown variable that resembles a known one.

    Names that resemble no known variable are ignored, because they may be the user's own. Values are not shown, because
    one may be a key.
    """
    found = {name: near for name in names if (near := nearest_variable(name))}
    return [
        f"{name} is set, but there is no such setting, so it has no effect; did you mean {near}?"
        for name, near in found.items()
    ]


def nearest_variable(name: str) -> str:
    """Return the variable that the user probably meant; empty if the name is known or resembles no known one."""
    if name in _KNOWN or name in OLDER:
        return ""
    upper = name.upper()
    first, _, rest = upper.partition("_")
    if not rest or first[:1] not in ("H", "O"):  # shortcut for most names, which are unrelated
        return ""
    import difflib  # rarely needed, so not imported at the start of every job

    if first + "_" != PREFIX:
        if difflib.SequenceMatcher(None, first + "_", PREFIX).ratio() < _NEAR_PREFIX:
            return ""
        meant = _meant(PREFIX + rest)
        return meant if meant == PREFIX + rest else ""
    return _meant(upper)


def _meant(name: str) -> str:
    import difflib

    known = _KNOWN | _FLAGS
    if name in known:
        return known[name]
    longer = {known[each] for each in known if each.startswith(name + "_")}
    if len(longer) == 1:
        return longer.pop()
    bare = {each.removeprefix(PREFIX): each for each in known}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), bare, 1, _NEAR)
    return known[bare[near[0]]] if near else ""


def of_program(environ: Mapping[str, str]) -> list[str]:
    """Return the variables that the program itself has set, so that its launcher could not check them."""
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

# For each setting without effect: a clause that says what happens instead.
_BY_LAUNCHER = {
    "HOROVOD_GPUS_PER_WORKER": "each process sees all GPUs, or those that its launcher gives it, as srun "
    "--gpus-per-task does; torch.cuda.set_device(hvd.local_rank()) takes one for each",
    "HOROVOD_GPU_AFFINITY": "each process runs on the CPUs that its launcher gives it, as srun --cpu-bind and mpirun "
    "--bind-to do",
}


def notices(given: Mapping[str, str], mpi: bool = True) -> dict[str, str]:
    """Return the settings that do not have the effect that the user asks for, in the table's order.

    Args:
        given: Variables, including those set by flags.
        mpi: True if MPI may carry the job; False if horovodrun starts it without MPI.

    Returns:
        Dict from the setting's name to a clause for the warning that says what happens instead.

    Raises:
        ValueError: If a value is invalid. The message names the variable, its value and the accepted values.
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
    """Return warnings about settings without effect and about misspelled variables of the environment."""
    told = [f"{name} is {environ[name]!r}, but {text}" for name, text in notices(environ, mpi).items()]
    return told + misspelt_sentences(environ)


def unheard(environ: Mapping[str, str]) -> list[str]:
    """Return warnings about variables that only ``horovodrun`` supports, for a job started otherwise.

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
        if value == "nccl":  # such a value has the same effect as no setting
            return ""
        if value != "gloo":
            return "this version does not have that; instead the built-in engine, gloo, carries tensors of GPUs"
    if setting.needless:
        return f"this has no effect and is not needed: {setting.needless}"
    return "what it controls is not part of this version yet" if setting.later else ""
