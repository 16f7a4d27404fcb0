"""Which checkpoints of a directory are an elastic job's own, written down beside them.

A rank knows by itself what it has saved. One that comes later, and is rank 0 once all others are gone, learns it here:
else it would take its predecessors' files for another job's, and neither remove them in their time nor go back before
them.
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
    """The same on all workers of an elastic job, and on no worker of another; empty in other jobs, whose members stay
    (and whose key may be one that the user gives to every job). Raises ValueError."""
    env = WorkerEnv.from_environ()
    if env.worker is None:
        return ""
    return hmac.digest(env.job_key(), b"whose checkpoints these are", "sha256")[:_TAG_BYTES].hex()


def recorded(place: Place, job: str) -> set[int]:
    """The steps that workers of this job have noted; none where the note is another job's, or cannot be read."""
    try:
        told = msgspec.json.decode(place.note(), type=_Note)
    except (OSError, ValueError):
        return set()
    return set(told.steps) if told.job == job else set()


def record(place: Place, job: str, steps: Iterable[int]) -> None:
    """Notes that these are the job's. Raises OSError; the note of before is there then."""
    place.write_note(msgspec.json.encode(_Note(job, sorted(steps))))
