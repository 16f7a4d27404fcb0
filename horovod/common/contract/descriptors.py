"""Room for the descriptors that a large job needs."""

import os
import resource


def make_room(count: int, at_least: int | None = None) -> None:
    """Raises this process's soft limit of open files when ``count`` more would not fit, as far as needed only, for
    ``select`` cannot handle numbers of 1024 and more.

    Raises ValueError naming what is needed and what is accepted when the hard limit is lower. With ``at_least`` it does
    so when not even that many more fit, and otherwise takes what there is.
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
