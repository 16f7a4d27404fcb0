"""Checkpoints of elastic states, from which a restarted job can continue."""

import os
import pickle
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic.checkpoint import Checkpoint, Dump, Load, Loaded

_SIZE, _STATE = "horovod checkpoint: ranks", "state"


class Stateful(Protocol):
    """Interface of an elastic state, for any frontend."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
    def resume_with(self, load: Callable[[], None]) -> None: ...
    def loaded_of(self, other_size: Callable[[], bool]) -> None: ...


class StateCheckpoint(Checkpoint):
    """Checkpoints of one job, in a directory for this job only.

    Only rank 0 needs access to the directory.

    Example::

        checkpoint = hvd.elastic.Checkpoint("checkpoints", keep=3)
        checkpoint.resume(state)                # before the elastic function, whose first sync gives it to all ranks
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
        """Open the directory of the checkpoints.

        Args:
            directory: Path, or URL that fsspec supports, such as ``s3://bucket/name``.
            keep: Number of latest checkpoints to keep.
            rank: ``rank`` of the frontend.
            size: ``size`` of the frontend.
            copied: Copies a result of ``state_dict``.
            dump: Serializes a value; default: pickle.
            load: Deserializes it; default: pickle.
            storage_options: Options for fsspec with a URL.

        Raises:
            ValueError: If ``keep`` is below 1 or the directory is a file.
            ImportError: If a package that the URL needs is missing. The message names the package.
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
        """Load a checkpoint like ``Checkpoint.load``; its value is the saved state."""
        found = super().load(step)
        return found and Loaded(found.step, _parts(found.value)[0])

    def load_into(self, state: Stateful) -> int | None:
        """Load the newest complete checkpoint into ``state`` on rank 0.

        If a different number of ranks has written it, all ranks call the state's reset callbacks after the first sync.

        Returns:
            Step of the checkpoint. None if there is no checkpoint, and on ranks other than 0.

        Raises:
            ValueError: If the checkpoint does not match the state. The message names the difference.
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
        """Call ``load_into`` in a job started with ``horovodrun --resume`` (HOROVOD_RESUME=1).

        It loads only when the job begins; a worker that joins later gets the state from the others. In jobs without
        ``--resume``, it only warns if there is a checkpoint.

        If rank 0 is lost before the first sync, the new rank 0 loads the checkpoint during that sync.

        Returns:
            Step of the checkpoint; None if this rank has loaded nothing.

        Raises:
            ValueError: If the checkpoint does not match the state. During the first sync, also if a new rank 0 cannot
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
    """Return (saved value, number of ranks that saved it); the number is None if an older version has saved it."""
    if isinstance(value, dict) and value.keys() == {_SIZE, _STATE}:
        return value[_STATE], value[_SIZE]
    return value, None
