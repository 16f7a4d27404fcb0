"""Detection of misspelled names of environment variables. Pure except for `of_program`."""

import contextlib
from collections.abc import Iterable, Mapping

from horovod.common.contract.settings import TABLE

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
# Flags written as variables.
_FLAGS = {PREFIX + s.flag.lstrip("-").replace("-", "_").upper(): s.name for s in TABLE if s.flag}
_NEAR = 0.8  # minimum similarity of names without the prefix
_NEAR_PREFIX = 0.85


def sentences(names: Iterable[str]) -> list[str]:
    """Return a sentence for each unknown variable that resembles a known one.

    Other names may be the user's own and are ignored. Values are not shown, because one may be a key.
    """
    found = {name: near for name in names if (near := nearest(name))}
    return [
        f"{name} is set, but there is no such setting, so it has no effect; did you mean {near}?"
        for name, near in found.items()
    ]


def nearest(name: str) -> str:
    """Return the variable that was probably meant; empty if the name is known or resembles no other."""
    if name in _KNOWN or name in OLDER:
        return ""
    upper = name.upper()
    first, _, rest = upper.partition("_")
    if not rest or first[:1] not in ("H", "O"):  # true of most names
        return ""
    import difflib  # not imported at the start of every job

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
    """Return the variables that the program itself has set, which its launcher could not check."""
    with contextlib.suppress(OSError):
        with open("/proc/self/environ", "rb") as file:
            inherited = {line.partition(b"=")[0].decode(errors="surrogateescape") for line in file.read().split(b"\0")}
        return [name for name in environ if name not in inherited]
    return []
