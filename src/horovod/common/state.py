"""Job of this process, with its place in the job and the engine. Frameworks access it through ``frontends``."""

from typing import TYPE_CHECKING

from horovod.common.frontends import Frontend
from horovod.common.job import Access, Job

if TYPE_CHECKING:
    from horovod._core import Engine

__all__ = ["Job", "State", "state"]


class State(Access):
    """The process's job, and access to it for code that belongs to no frontend. Only ``basics`` sets the fields."""

    __slots__ = ("faces", "left", "members")

    def __init__(self) -> None:
        super().__init__()
        self.members: list[int] | None = None
        """World ranks that form the job, by rank of the job; None: all."""
        self.faces: dict[str, Frontend] = {}
        """Frontends in the job, by name."""
        self.left: set[str] = set()
        """Names of frontends that were in the job and have shut down."""

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        """Start the job: open the access, and let native libraries use the engine."""
        self.members = members
        self.open(job, engine, None, None)
        engine.serve_faces(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
        """End the access of this process and of all its frontends."""
        if self.engine is not None:
            from horovod import _core

            _core.serve_no_faces()
        for face in self.faces.values():
            face.leave()
        self.faces.clear()
        self.left.clear()
        self.members = None
        self.close()

    def leave_in_child(self) -> None:
        """Reject the operations of all frontends in a forked child."""
        if self.engine is not None:
            self.engine.abandon()
            super().leave_in_child()
            for face in self.faces.values():
                face.leave_in_child()


state = State()
