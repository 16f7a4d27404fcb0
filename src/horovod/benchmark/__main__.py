"""Command line `python -m horovod.benchmark`, which runs as one rank inside a job, and otherwise starts a job."""

from __future__ import annotations

import os
import sys

from horovod.benchmark import options
from horovod.common import launchers


def _in_job() -> bool:
    """Return True if this process is one rank of the benchmark.

    A scheduler job with one process does not count, because it cannot be distinguished from an allocation in which no
    job was started.
    """
    if "HOROVOD_SIZE" in os.environ:
        return True
    place = launchers.find(os.environ)
    return place is not None and (place.size > 1 or os.environ.get("HOROVOD_CONTROLLER") == "mpi")


def main() -> int:
    """Run the benchmark. Return its exit code: 0, 1 after an error message, or 2 for invalid arguments."""
    chosen, np = options.parse(sys.argv[1:])
    if not _in_job():
        from horovod.runner import launch

        return launch.main(["-np", str(np or 2), "--benchmark", "--", *sys.argv[1:]])

    from horovod.benchmark import session

    try:
        session.run(chosen)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
