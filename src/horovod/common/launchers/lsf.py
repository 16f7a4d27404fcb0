"""jsrun in an LSF job: reads the variables of JSM and of the allocation."""

from collections.abc import Mapping

from horovod.common.launchers.place import Place, both, integer

_FIRST_PORT, _PORTS = 21000, 11000


def find(env: Mapping[str, str]) -> Place | None:
    """Return this process's place; None if jsrun has not started it."""
    numbers = both(env, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE")
    if numbers is None:
        return None
    job = env.get("LSB_JOBID") or env.get("CSM_ALLOCATION_ID") or ""
    digits = "".join(filter(str.isdecimal, job))[-9:]
    return Place(
        "jsrun",
        *numbers,
        local_rank=integer(env, "JSM_NAMESPACE_LOCAL_RANK"),
        local_size=integer(env, "JSM_NAMESPACE_LOCAL_SIZE"),
        job=f"{job}/{env.get('PMIX_NAMESPACE') or env.get('JSM_NAMESPACE_ID', '')}",
        leads=tuple(compute_hosts(env)),
        port=_FIRST_PORT + int(digits or 0) * 8 % _PORTS,
        mpi=True,
        tells="JSM_NAMESPACE_RANK",
    )


def compute_hosts(env: Mapping[str, str]) -> list[str]:
    """Return the hosts of the LSF job on which processes run, in order and without repetitions.

    LSB_MCPU_HOSTS has the form ``launch 1 a 40 b 40``. A host with a single slot before hosts with more runs the batch
    script and is not a compute host. LSB_HOSTS names a host once per slot. Without both, the list is empty.
    """
    words = env.get("LSB_MCPU_HOSTS", "").split()
    if words:
        counts = [int(word) if word.isdecimal() else 0 for word in words[1::2]]
        pairs = list(zip(words[::2], counts, strict=False))
        if len(pairs) > 1 and pairs[0][1] == 1 and pairs[1][1] > 1:
            pairs = pairs[1:]
        return list(dict.fromkeys(name for name, _ in pairs))
    names = env.get("LSB_HOSTS", "").split()
    if len(set(names)) > 1 and names.count(names[0]) == 1 and names.count(names[-1]) > 1:
        names = names[1:]
    return list(dict.fromkeys(names))


def in_job(env: Mapping[str, str]) -> bool:
    """Return True in an LSF job whose hosts jsrun could use."""
    return bool(env.get("LSB_JOBID"))
