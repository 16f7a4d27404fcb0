"""The one job of this process: who we are in it and the engine that runs it. Frameworks see it through their face
(``faces``).
"""

from typing import TYPE_CHECKING

from horovod.common.faces import Face
from horovod.common.job import Access, Job

if TYPE_CHECKING:
    from horovod._core import Engine

__all__ = ["Job", "State", "state"]


class State(Access):
    """Access for what belongs to no face. Fields are set by ``basics`` only."""

    __slots__ = ("faces", "left", "members")

    def __init__(self) -> None:
        super().__init__()
        self.members: list[int] | None = None
        """World ranks that form the job, by rank in it; None: all."""
        self.faces: dict[str, Face] = {}
        """Those that are in the job, by name."""
        self.left: set[str] = set()
        """Names of those that were in it and have shut down."""

    def start(self, job: Job, engine: "Engine", members: list[int] | None) -> None:
        self.members = members
        self.open(job, engine, None, None)
        engine.serve_faces(job.rank, job.size, job.local_rank, job.local_size)

    def stop(self) -> None:
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
        if self.engine is not None:
            self.engine.abandon()
            super().leave_in_child()
            for face in self.faces.values():
                face.leave_in_child()


state = State()
