"""Record of which checkpoints in a directory belong to an elastic job, stored beside them.

Each rank knows what it has saved itself. A rank that joins later, and becomes rank 0 once all others are gone, reads
the record. Otherwise it would take its predecessors' files for another job's, and would neither remove old ones nor
replace them after going back to an earlier step.
"""

import hmac
from collections.abc import Iterable

import msgspec

from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.elastic.checkpoint_place import Place

_TAG_BYTES = 16


class _Note(msgspec.Struct):
    job: str
    steps: list[int]


def job_tag() -> str:
    """Return an id of the elastic job, equal on all its workers and different in other jobs; empty for other jobs.

    The ranks of jobs that are not elastic do not change. Also, such a job's key may be one that the user gives to every
    job.

    Raises:
        ValueError: If the job's key cannot be read.
    """
    env = WorkerEnv.from_environ()
    if env.worker is None:
        return ""
    return hmac.digest(env.job_key(), b"whose checkpoints these are", "sha256")[:_TAG_BYTES].hex()


def recorded(place: Place, job: str) -> set[int]:
    """Return the recorded steps of this job; empty if the record is another job's or cannot be read."""
    try:
        told = msgspec.json.decode(place.note(), type=_Note)
    except (OSError, ValueError):
        return set()
    return set(told.steps) if told.job == job else set()


def record(place: Place, job: str, steps: Iterable[int]) -> None:
    """Record that these steps' checkpoints are the job's. If it raises OSError, the previous record stays."""
    place.write_note(msgspec.json.encode(_Note(job, sorted(steps))))
