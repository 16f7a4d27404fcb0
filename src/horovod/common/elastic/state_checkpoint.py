"""Checkpoints of elastic states, from which a restarted job can resume training."""

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic.checkpoint import Checkpoint, Dump, Load, Loaded

_SIZE, _STATE = "horovod checkpoint: ranks", "state"


class Stateful(Protocol):
    """Interface that every frontend's elastic state implements for checkpoints."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
    def resume_with(self, load: Callable[[], None]) -> None: ...
    def loaded_of(self, other_size: Callable[[], bool]) -> None: ...


class StateCheckpoint(Checkpoint):
    """Writer and reader of one job's checkpoints, in a directory that no other job uses.

    Only rank 0 needs access to the directory.

    Example::

        checkpoint = hvd.elastic.Checkpoint("checkpoints", keep=3)
        checkpoint.resume(state)                # call before the training function, whose first sync updates all ranks
        ...
        checkpoint.save(step, state)            # call on all ranks; rank 0 writes in the background
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
        """Prepare to write checkpoints to a directory and to load them.

        Args:
            directory: Path, or URL that fsspec supports, such as ``s3://bucket/name``.
            keep: Number of latest checkpoints to keep.
            rank: Function that returns this process's rank.
            size: Function that returns the number of ranks.
            copied: Function that copies a result of ``state_dict``.
            dump: Function that serializes a value into a file. Default: pickle.
            load: Function that reads a value from a file. Default: pickle.
            storage_options: fsspec options for a URL.

        Raises:
            ValueError: If ``keep`` is below 1 or the directory is a file.
            ImportError: If a package is missing that the URL needs. The message names the package.
        """
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
        """Load a checkpoint as ``Checkpoint.load`` does. The ``value`` of the returned object is the saved state."""
        found = super().load(step)
        return found and Loaded(found.step, _parts(found.value)[0])

    def load_into(self, state: Stateful) -> int | None:
        """Load the newest complete checkpoint into ``state`` on rank 0.

        If the checkpoint was written by a job with a different number of ranks, all ranks run the state's reset
        callbacks after the first sync.

        Returns:
            Step of the checkpoint, or None if there is no checkpoint or this rank is not rank 0.

        Raises:
            ValueError: If the checkpoint does not match the state. The message describes the difference.
        """
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
        """Load the newest checkpoint if the job was started with ``horovodrun --resume`` (HOROVOD_RESUME=1).

        A checkpoint is loaded only when the job begins, with ``load_into``. A worker that joins later gets the state
        from the other workers. In jobs without ``--resume``, the method only warns if there is a checkpoint.

        If rank 0 is lost before the first sync, the new rank 0 loads the checkpoint during that sync.

        Returns:
            Step of the checkpoint, or None if this rank has loaded nothing.

        Raises:
            ValueError: If the checkpoint does not match the state. The first sync also raises it if a new rank 0 cannot
                access the directory.
        """
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
                f"rank 0 was lost before it resumed from the checkpoints in {self.directory}, and the new rank 0 has "
                "no such directory; use a directory that all ranks can read, or restart the job"
            )
        self._load_into(state)


def _parts(value: Any) -> tuple[Any, int | None]:
    """Return the saved value and its number of ranks, or None if an older version wrote the checkpoint."""
    if isinstance(value, dict) and value.keys() == {_SIZE, _STATE}:
        return value[_STATE], value[_SIZE]
    return value, None
