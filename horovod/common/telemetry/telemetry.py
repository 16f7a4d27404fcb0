"""All that observes this process's job, from ``init`` to ``shutdown``."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from horovod.common.contract import reports
from horovod.common.contract.log import make_sink
from horovod.common.contract.settings import BY_NAME, LOG_LEVELS
from horovod.common.job import Job
from horovod.common.telemetry.door import Door
from horovod.common.telemetry.hang import Hangs
from horovod.common.telemetry.post import Post
from horovod.common.telemetry.witness import Witness

if TYPE_CHECKING:
    from horovod._core import Engine


class Telemetry:
    """Of one job. Made when the engine runs, closed before it is shut down; left alone in a forked child."""

    def __init__(self, job: Job, engine: "Engine") -> None:
        self._engine = engine
        self.post = Post(engine, job.rank)
        self.witness = Witness(self.post, engine, job.rank)
        self.hangs = Hangs(self.post, engine, job, self.witness, _warn(job.rank))
        self._door = Door(self.hangs.asked) if job.rank == 0 else None
        self.post.start()
        if job.local_rank == 0 and engine.report_dir:
            reports.prune(engine.report_dir)

    def dump(self, directory: "str | os.PathLike[str] | None") -> str:
        """What the flight recorder has, in a file; its path. Raises OSError naming it and what is wrong, ValueError
        when the recorder is off."""
        return self._engine.dump(os.path.abspath(os.fspath(directory)) if directory is not None else "")

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
        self.witness.close()
        self.post.close()

    def leave_in_child(self) -> None:
        """In a forked child, where its threads do not exist."""
        if self._door is not None:
            self._door.leave_in_child()


def _warn(rank: int) -> Callable[[str], None]:
    """Tells the user, as the engine does."""
    warning = LOG_LEVELS.index("warning")
    least = BY_NAME["HOROVOD_LOG_LEVEL"].parse(os.environ.get("HOROVOD_LOG_LEVEL", ""))
    sink = make_sink(rank, bool(BY_NAME["HOROVOD_LOG_HIDE_TIME"].parse(os.environ.get("HOROVOD_LOG_HIDE_TIME", ""))))
    shown = LOG_LEVELS.index(str(least)) <= warning
    return lambda text: sink(warning, text) if shown else None
