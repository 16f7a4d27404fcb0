"""All that observes this process's job, from ``init`` to ``shutdown``."""

from typing import TYPE_CHECKING

from horovod.common.job import Job
from horovod.common.telemetry.post import Post

if TYPE_CHECKING:
    from horovod._core import Engine


class Telemetry:
    """Of one job. Made when the engine runs, closed before it is shut down; left alone in a forked child."""

    def __init__(self, job: Job, engine: "Engine") -> None:
        self.post = Post(engine, job.rank)
        self.post.start()

    def close(self) -> None:
        self.post.close()
