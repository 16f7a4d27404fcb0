"""Checkpoints of states: what a job that is started again goes on from."""

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic.checkpoint import Checkpoint, Dump, Load, Loaded

_SIZE, _STATE = "horovod checkpoint: ranks", "state"


class Stateful(Protocol):
    """A state of any face."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
    def resume_with(self, load: Callable[[], None]) -> None: ...
    def loaded_of(self, other_size: Callable[[], bool]) -> None: ...


class StateCheckpoint(Checkpoint):
    """Of one job, in a directory of its own that rank 0 can write to; the others need not see it.

    In short::

        checkpoint = hvd.elastic.Checkpoint("checkpoints", keep=3)
        checkpoint.resume(state)                # before the elastic function, whose first sync gives it to all
        ...
        checkpoint.save(step, state)            # on all ranks; rank 0 writes, in the background
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        keep: int = 3,
        *,
        rank: Callable[[], int],
        size: Callable[[], int],
        copied: Callable[[Any], Any],
        dump: Dump = pickle.dump,
        load: Load = pickle.load,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """``directory``: a path, or a URL that fsspec knows, as ``s3://bucket/name``, with ``storage_options`` as that
        is told. ``keep``: so many are kept, the latest. ``rank``, ``size``: of the face. ``copied``: makes a
        copy of what ``state_dict`` gives. Raises ValueError for a ``keep`` below 1, and for a directory that is a
        file; ImportError naming the package that a URL needs."""
        self._rank = rank
        self._size = size

        def taken(value: Any) -> Any:
            state = copied(value.state_dict() if hasattr(value, "state_dict") else value)
            return {_SIZE: size(), _STATE: state}

        super().__init__(
            directory,
            keep,
            writes=lambda: rank() == 0,
            dump=dump,
            load=load,
            taken=taken,
            storage_options=storage_options,
        )

    def load(self, step: int | None = None) -> Loaded | None:
        found = super().load(step)
        return found and Loaded(found.step, _parts(found.value)[0])

    def load_into(self, state: Stateful) -> int | None:
        """Gives ``state`` what the newest whole checkpoint has, on rank 0, and returns its step; None without any, and
        on the other ranks. Where another number of ranks has written it, the elastic function calls the state's reset
        callbacks on all ranks, once they have the state. Raises ValueError naming what does not fit."""
        return self._load_into(state) if self._rank() == 0 else None

    def _load_into(self, state: Stateful) -> int | None:
        found = super().load()
        if found is None:
            return None
        value, size = _parts(found.value)
        state.load_state_dict(value)
        state.loaded_of(lambda: size is not None and size != self._size())
        return found.step

    def resume(self, state: Stateful) -> int | None:
        """``load_into`` in a job that was started with ``horovodrun --resume`` (HOROVOD_RESUME=1), and only while it
        begins: a worker that comes later gets the state from the others. In other jobs nothing, but for a warning where
        there is a checkpoint.

        Should rank 0 be lost before the first sync, whoever is rank 0 then loads it in that sync, ValueError where it
        cannot see the directory."""
        settings = Settings.from_environ()
        if settings.flag("HOROVOD_RESUME"):
            found = self.load_into(state)
            if self._rank() != 0:
                state.resume_with(lambda: self._load_late(state))
            return found
        steps = self.steps() if self._rank() == 0 else []
        if steps:
            warner(0, settings)(
                f"{self.directory} has checkpoints, the latest of step {steps[0]}, but the job begins anew; with "
                "horovodrun --resume it goes on from there"
            )
        return None

    def _load_late(self, state: Stateful) -> None:
        if not self._place.is_there():
            raise ValueError(
                f"rank 0, which was to go on from the checkpoints in {self.directory}, is lost, and the new one sees "
                "no such directory; accepted is one that all ranks can read, or to start the job again"
            )
        self._load_into(state)


def _parts(value: Any) -> tuple[Any, int | None]:
    """What was saved, and by how many ranks; None: by a version that did not write that."""
    if isinstance(value, dict) and value.keys() == {_SIZE, _STATE}:
        return value[_STATE], value[_SIZE]
    return value, None
