"""Observations of the training loop, from which frontends detect silent mistakes.

Examples are a missing optimizer wrapper, broadcast or sampler, and ranks whose epochs have different lengths. Ranks
send observations to rank 0, which compares them and warns (``telemetry/training.py``). No rank waits for these
messages, so they never block a program whose ranks intentionally differ. A frontend reports only the first steps,
occasional samples of later steps, and events that happen once per epoch.

``check_launch`` detects processes that a launcher has started together and that train without joining a job.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.common.contract.log import warn_user
from horovod.common.contract.settings import Settings
from horovod.common.contract.worker_env import WorkerEnv
from horovod.common.ending import find_rank_above
from horovod.common.frontends import state

Say = Callable[[dict[str, Any]], None]


class Training:
    """Observer of training in this process. ``open`` is called when a job begins, and ``close`` when it ends."""

    __slots__ = (
        "_send",
        "_started_at",
        "_traffic",
        "epoch_batches",
        "epochs",
        "plain_bytes",
        "plain_steps",
        "remedy",
        "reported_epochs",
        "steps",
    )

    def __init__(self) -> None:
        self._send: Say | None = None
        self._traffic: Callable[[], int] = int
        self._forget()

    def _forget(self) -> None:
        self.steps = 0
        """Number of optimizer steps with averaged gradients."""
        self.epochs = 0
        """Number of epochs of the data loader that supplied the batches of these steps."""
        self.epoch_batches = 0
        """Number of batches in the last epoch."""
        self.reported_epochs = False
        """True if this rank has reported that ranks are in different epochs."""
        self.plain_steps = 0
        """Number of steps of optimizers that are not distributed."""
        self.plain_bytes = 0
        """Minimum number of bytes for averaging the gradients of such an optimizer once."""
        self.remedy = ""
        # Bytes that were transferred before the first step of an optimizer that is not distributed.
        self._started_at = 0

    def open(self, send: Say, traffic: Callable[[], int]) -> None:
        """Start observing a job of several ranks.

        Args:
            send: Function that sends an observation to rank 0.
            traffic: Function that returns the number of bytes that this rank's operations have transferred so far.
        """
        self._forget()
        self._send, self._traffic = send, traffic

    def close(self) -> None:
        """Stop observing because the job has ended."""
        self._send, self._traffic = None, int

    @property
    def watched(self) -> bool:
        """True while a job is running in which rank 0 compares observations."""
        return self._send is not None

    def tell(self, about: str, of: str, ranks: Sequence[int], step: int = 0, **what: Any) -> None:
        """Send an observation to rank 0, which compares it with those of the other ``ranks``.

        Observations are compared if they have the same ``about``, ``of`` and ``step``.

        Args:
            about: Kind of the observation.
            of: Name of the observed object, for example an optimizer.
            ranks: Ranks that send this observation.
            step: Step of the observation.
            **what: Values to compare.
        """
        if self._send is not None:
            self._send({"about": about, "of": of, "ranks": list(ranks), "step": step, **what})

    def plain_step(self, count_bytes: Callable[[], int], remedy: str) -> int:
        """Count a step of an optimizer that is not distributed, and return the number of such steps so far.

        Args:
            count_bytes: Function that returns the minimum number of bytes needed to average the optimizer's gradients.
            remedy: Advice to include in the warning, worded for the framework in use.
        """
        self.remedy = remedy
        if self.plain_steps == 0:
            self._started_at = self._traffic()
        if self.plain_steps < 2:
            self.plain_bytes = max(self.plain_bytes, count_bytes())
        self.plain_steps += 1
        return self.plain_steps

    def nothing_averaged(self) -> bool:
        """Return True if the program has apparently never averaged gradients.

        In this case, only non-distributed optimizers have taken steps, and all operations since the first step have
        transferred fewer bytes than one set of gradients.
        """
        return self.steps == 0 and self.plain_steps > 1 and self._traffic() - self._started_at < self.plain_bytes

    def progress(self) -> str:
        """Describe training progress, such as " after 9 steps", for messages about this rank's exit."""
        if self.steps == 0:
            return ""
        steps = f" after {self.steps} {'step' if self.steps == 1 else 'steps'}"
        if not self.epochs:
            return steps
        epochs = f"{self.epochs} {'epoch' if self.epochs == 1 else 'epochs'}"
        return f"{steps} ({epochs}, with {self.epoch_batches} batches in the last one)"


training = Training()


OFF = "HOROVOD_TRAINING_CHECKS=0"
"""Setting that disables these checks, for messages."""

_launch_checked = False


def check_launch(remedy: str) -> None:
    """Check that a process training without ``hvd.init()`` was not started as part of a multi-process job.

    Frontends call this at an optimizer step without a job. Only the first call has an effect.

    Args:
        remedy: Advice to include in the error message, worded for the framework in use.

    Raises:
        RuntimeError: If horovodrun or an MPI launcher has started this process together with others. For other
            launchers, rank 0 only warns, because they also start independent processes.
    """
    global _launch_checked
    if _launch_checked or state.opened:
        return
    _launch_checked = True
    try:
        if not Settings.from_environ().flag("HOROVOD_TRAINING_CHECKS"):
            return
        env = WorkerEnv.from_environ()
        if not has_partners(env, os.environ, sys.modules) or find_rank_above(env) is not None:
            return
    except ValueError:  # ignore invalid variables, because hvd.init() reports them
        return
    text = (
        f"{env.place.launcher if env.place else 'horovodrun'} started this process as rank {env.rank} of {env.size}, "
        f"but it trains without hvd.init(): the {env.size} processes train separate models. {remedy}. If separate "
        f"models are intended, set {OFF}"
    )
    if env.place is None or env.place.mpi:
        raise RuntimeError(text)
    if env.rank == 0:
        warn_user(text)


def has_partners(env: WorkerEnv, environ: Mapping[str, str], modules: Mapping[str, Any]) -> bool:
    """Return True if a launcher started several processes that have no other means of training together.

    The check ignores processes of ``horovod.run``, and programs that communicate through mpi4py or torch.distributed.

    Args:
        env: Rank and size of this process, as read from the launcher's variables.
        environ: Environment variables of this process.
        modules: Imported modules by name (``sys.modules``).
    """
    if env.size == 1 or "HOROVOD_RUN_FUNCTION_FD" in environ or "mpi4py.MPI" in modules:
        return False
    distributed = modules.get("torch.distributed")
    return distributed is None or not (distributed.is_available() and distributed.is_initialized())
