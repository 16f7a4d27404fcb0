"""Limit of open files for large jobs."""

import os
import resource


def make_room(count: int, at_least: int | None = None) -> None:
    """Raise this process's soft limit of open files if ``count`` more would not fit.

    It is raised only as far as needed, because ``select`` cannot handle descriptors of 1024 and above.

    Args:
        count: Number of descriptors to make room for.
        at_least: If given, settle for any number from this one up when the hard limit is too low.

    Raises:
        ValueError: If the hard limit is too low; names the limit and the number needed.
    """
    used = len(os.listdir("/proc/self/fd"))
    needed = used + count
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if at_least is not None and hard != resource.RLIM_INFINITY:
        needed = max(soft, min(needed, hard), used + at_least)
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(
            f"this process may have {hard} files open, but in this job it needs {needed}; raise the limit on this host "
            "(ulimit -Hn, or LimitNOFILE of the service that starts it)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
