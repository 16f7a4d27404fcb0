"""Ray actor classes in which ranks run."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from horovod.common import basics
from horovod.ray import ray_logger
from horovod.runner.external_workers import assignment
from horovod.runner.external_workers.assignment import Assignment, ExternalWorker


class BaseHorovodWorker:
    """Process in which one rank runs. ``ray.remote`` turns this class into an actor class.

    Attributes:
        executable: Object that ``start_executable`` created from the user's class, or None.
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        """Store a provisional rank and size. ``join`` sets the final values."""
        if not 0 <= world_rank < world_size:
            raise ValueError(
                f"world_rank must be from 0 to {world_size - 1} with world_size {world_size}, got {world_rank}"
            )
        self.world_rank = world_rank
        self.world_size = world_size

    def node_id(self) -> str:
        """Return the id of the Ray node on which this process runs."""
        return described()[1]

    def hostname(self) -> str:
        """Return the name of the host on which this process runs."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """Return the GPUs that Ray assigned to this actor, in the format of CUDA_VISIBLE_DEVICES."""
        return described()[2]

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Set environment variables of this process. The values are converted to strings."""
        os.environ.update({str(name): str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """Return the environment variables of this process."""
        return dict(os.environ)

    def set_queue(self, queue: Any) -> None:
        """Set the queue that receives the messages of ``ray_logger.log``, or None to discard them."""
        ray_logger.configure(queue)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Instantiate the user's class with the given arguments. Do nothing if no class is given."""
        if executable_cls is not None:
            self.executable = self._do(lambda: executable_cls(*(executable_args or ()), **(executable_kwargs or {})))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """Call ``func(executable)``.

        After an exception, leave the job, because other ranks must not wait for this rank.

        Returns:
            Result of the function.
        """
        return self._do(lambda: func(self.executable))

    @staticmethod
    def _do(call: Callable[[], Any]) -> Any:
        try:
            value = call()
            if inspect.isgenerator(value):  # Reject generators, because Ray would send only the first value.
                raise TypeError("the function must return a value that can be sent, such as a list, got a generator")
            return value
        except BaseException as error:
            basics.leave(error)
            raise

    def describe(self) -> tuple[ExternalWorker, str, list[str]]:
        """Return the description of this process, the id of its Ray node, and its GPUs."""
        return described()

    def join(self, order: Assignment) -> None:
        """Store the rank assignment that ``hvd.init()`` needs to join the job."""
        assignment.join(order, raylet())

    def leave(self) -> None:
        """Shut down Horovod in this process. The rank assignment is kept, so a later ``hvd.init()`` can use it."""
        basics.leave()


class ElasticWorker(BaseHorovodWorker):
    """Worker for one run of an elastic job."""

    def work(self, func: Callable[[Any], Any]) -> Any:
        """Call ``func(worker)`` and return its result. Then leave the job, as an exiting process would."""
        value = self._do(lambda: func(self))
        self.leave()
        return value


def described() -> tuple[ExternalWorker, str, list[str]]:
    """Return the description of this worker process, the id of its Ray node, and its GPUs."""
    return assignment.describe(), str(ray.get_runtime_context().get_node_id()), [str(one) for one in ray.get_gpu_ids()]


def raylet() -> dict[int, str]:
    """Return the pid and description of this worker's raylet, or an empty dict if it is not the parent process.

    Horovod watches the raylet, because a busy worker would not notice that its raylet was killed.
    """
    pid = os.getppid()
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return {}
    return {pid: "the raylet of its node"} if name == "raylet" else {}
