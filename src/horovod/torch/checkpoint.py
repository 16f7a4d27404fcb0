"""Sampler and checkpoints that let a job resume on any number of ranks."""

import contextlib
import functools
import io
import os
import secrets
from collections.abc import Sized
from typing import IO, Any

import torch

from horovod.common.contract.log import warner
from horovod.common.contract.settings import Settings
from horovod.common.elastic.checkpoint import Checkpoint, Loaded, check_at_least
from horovod.common.elastic.checkpoint_files import TornCheckpointError
from horovod.common.objects import rank0_first
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.functions import allgather_object, broadcast_object
from horovod.torch.mpi_ops import rank

_ID, _STATES = "horovod checkpoint: id", "states"


class Sampler(ElasticSampler):
    """Sampler that resumes from a checkpoint with any number of ranks.

    Each sample is visited exactly once per epoch. A checkpoint stores the epoch and the total number of samples
    recorded by all ranks. The sample counts of any two ranks differ by at most one, so their batch counts can differ
    too. ``hvd.sync`` gives all ranks the same number of iterations.

    Example::

        sampler = hvd.Sampler(dataset, seed=1)
        loader = DataLoader(dataset, batch_size, sampler=sampler)
        step = hvd.load_checkpoint("checkpoints", model=model, optimizer=optimizer, sampler=sampler) or 0
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for index, (data, target) in enumerate(hvd.sync(loader)):
                ...
                optimizer.step()
                sampler.record_batch(index, batch_size)

    Args:
        dataset (Sized): Any object with a length.
        seed (int): Random seed of the order. Default: 0.
        shuffle (bool): Use a new order in each epoch, the same on all ranks. Default: True.
    """

    def __init__(self, dataset: Sized, seed: int = 0, shuffle: bool = True) -> None:
        super().__init__(dataset, shuffle, seed, filled=False)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, or continue the current epoch with its unrecorded samples.

        Args:
            epoch (int): Number of the epoch.
        """
        if epoch == self.epoch:
            self.reset()
        else:
            super().set_epoch(epoch)


def save_checkpoint(path: str | os.PathLike[str], *, step: int, keep: int = 3, **objects: Any) -> None:
    """Write a checkpoint that ``load_checkpoint`` can load on any number of ranks.

    All ranks must call this function. Rank 0 writes the file, and all ranks return once it is complete on disk. If a
    process is killed or the disk is full, earlier checkpoints stay valid. ``state_dict()`` of each object is called on
    all ranks, so an object can be a ``ShardedOptimizer``.

    Args:
        path (str): Directory for the checkpoints of this job only, or a URL such as ``s3://bucket/name``.
        step (int): Step of the checkpoint, 0 or more; later checkpoints have larger steps.
        keep (int): Number of latest checkpoints to keep. Default: 3.
        **objects: Model, optimizer, sampler, scheduler and other objects with ``state_dict`` and ``load_state_dict``,
            by name. Their states must consist of tensors, numbers, strings and containers of these.

    Raises:
        ValueError: If an object has no ``state_dict``, or ``step`` or ``keep`` is invalid.
        OSError: If rank 0 cannot write the file. Rank 0 also raises other errors of the storage or of pickling.
        RuntimeError: If rank 0 has raised an error; raised on the other ranks.
        HorovodInternalError: If a rank was lost.
    """
    check_at_least("step", step, 0)
    check_at_least("keep", keep, 1)
    _check_stateful(objects)
    states = {name: one.state_dict() for name, one in objects.items()}
    with rank0_first(f"writing the checkpoint of step {step} in {path}"):
        if rank() == 0:
            _check_loadable(states)
            checkpoint = _open(path, os.getcwd())
            checkpoint.keep = keep
            checkpoint.write(step, {_ID: secrets.token_hex(16), _STATES: states})


def load_checkpoint(path: str | os.PathLike[str], *, step: int | None = None, **objects: Any) -> int | None:
    """Load the newest complete checkpoint written by ``save_checkpoint`` into the given objects.

    All ranks must call this function. Rank 0 chooses the file and every rank reads it. Ranks that cannot read the file
    receive its content from rank 0. Incomplete and damaged files are skipped with a warning.

    Args:
        path (str): Directory or URL, as in ``save_checkpoint``.
        step (int, optional): Load only the checkpoint of this step.
        **objects: Objects with ``load_state_dict``, by the names with which they were saved. A part of them suffices.

    Returns:
        int: Step of the checkpoint; None if there is no checkpoint.

    Raises:
        ValueError: If the checkpoint has no state for a name. On rank 0 also if all checkpoints, or that of ``step``,
            are damaged (``TornCheckpointError``) or may be another user's (``UntrustedCheckpointError``).
        FileNotFoundError: If ``step`` has no checkpoint; raised on rank 0.
        RuntimeError: If rank 0 has raised an error; raised on the other ranks.
        HorovodInternalError: If a rank was lost.
    """
    _check_stateful(objects)
    found: Loaded | None = None
    with rank0_first(f"reading a checkpoint in {path}"):
        if rank() == 0:
            found = _newest(_open(path, os.getcwd()), step)
    chosen = broadcast_object(found and (found.step, found.value[_ID]), 0, "load_checkpoint")
    if chosen is None:
        return None
    states = found.value[_STATES] if found else None
    if found is None:
        # If this rank cannot read the file, it receives the content from rank 0.
        with contextlib.suppress(Exception):
            value = _open(path, os.getcwd()).load(chosen[0]).value  # type: ignore[union-attr]
            states = value[_STATES] if value[_ID] == chosen[1] else None
    if not all(allgather_object(states is not None, "load_checkpoint")):
        received = broadcast_object(states, 0, "load_checkpoint")
        states = received if states is None else states
    if missing := [name for name in objects if name not in states]:
        raise ValueError(
            f"the checkpoint of step {chosen[0]} in {path} must have a state for each object, got states for "
            f"{', '.join(states)}, but not for {', '.join(missing)}"
        )
    for name, one in objects.items():
        one.load_state_dict(states[name])
    return int(chosen[0])


# Reuse the existing checkpoint object, because it tracks the files written by this job.
@functools.cache
def _open(path: str | os.PathLike[str], cwd: str) -> Checkpoint:
    return Checkpoint(path, dump=torch.save, load=_load)


def _load(file: IO[bytes]) -> Any:
    return torch.load(file, map_location="cpu", weights_only=True)


def _newest(checkpoint: Checkpoint, step: int | None) -> Loaded | None:
    found = checkpoint.load(step)
    if checkpoint.torn and found is None:
        raise TornCheckpointError("; ".join(checkpoint.torn))
    if checkpoint.torn:
        warner(0, Settings.from_environ())("damaged checkpoints are skipped: " + "; ".join(checkpoint.torn))
    if found is not None and not (isinstance(found.value, dict) and _ID in found.value):
        raise ValueError(
            f"{checkpoint.directory} must have checkpoints of hvd.save_checkpoint, got others; load them as they were "
            "saved, for example with hvd.elastic.Checkpoint"
        )
    return found


def _check_stateful(objects: dict[str, Any]) -> None:
    for name, one in objects.items():
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise ValueError(f"{name} must have state_dict() and load_state_dict(), got a {type(one).__name__}")


def _check_loadable(states: dict[str, Any]) -> None:
    """Raise an error if the state contains values that ``torch.load(weights_only=True)`` rejects."""
    for name, one in states.items():
        buffer = io.BytesIO()
        try:
            torch.save(_without_tensors(one), buffer)
            buffer.seek(0)
            _load(buffer)
        except Exception as error:
            raise ValueError(
                f"the state of {name} must consist of tensors, numbers, strings and containers of these, got others: "
                f"{error}"
            ) from error


def _without_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_tensors(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_without_tensors(one) for one in value]
    return None if isinstance(value, torch.Tensor) else value
