"""The actor that a rank is."""

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
from horovod.runner.resident import seat as seats
from horovod.runner.resident.seat import Resident, Seat


class BaseHorovodWorker:
    """A rank's process; made an actor by ``ray.remote``. What the executable is, and what is executed, is the user's.

    executable: the object that ``start_executable`` has made, None before.
    """

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        """What is foreseen; the rank that counts comes with the seat (``sit``)."""
        if not 0 <= world_rank < world_size:
            raise ValueError(f"world_rank is {world_rank}, accepted is 0 to {world_size - 1} (world_size {world_size})")
        self.world_rank = world_rank
        self.world_size = world_size

    def node_id(self) -> str:
        """Of Ray's node."""
        return described()[1]

    def hostname(self) -> str:
        """Of the host."""
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray has given to this actor, as CUDA_VISIBLE_DEVICES names them."""
        return described()[2]

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Variables of this process; values become text."""
        os.environ.update({str(name): str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The variables of this process."""
        return dict(os.environ)

    def set_queue(self, queue: Any) -> None:
        """Where ``ray_logger.log`` puts what it is given."""
        ray_logger.configure(queue)

    def start_executable(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the executable; without a class there is none."""
        if executable_cls is not None:
            self.executable = self._do(lambda: executable_cls(*(executable_args or ()), **(executable_kwargs or {})))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """``func(executable)``. When it raises, this rank leaves the job, so that the others do not wait for it."""
        return self._do(lambda: func(self.executable))

    @staticmethod
    def _do(call: Callable[[], Any]) -> Any:
        try:
            value = call()
            if inspect.isgenerator(value):  # of which Ray would send the first value alone
                raise TypeError("the function has returned a generator, which cannot be sent: return a list")
            return value
        except BaseException as error:
            basics.leave(error)
            raise

    def describe(self) -> tuple[Resident, str, list[str]]:
        """Who this is, on which of Ray's nodes, with which GPUs."""
        return described()

    def sit(self, seat: Seat) -> None:
        """Becomes a rank: from now on ``hvd.init()`` here finds the others."""
        seats.sit(seat, raylet())

    def leave(self) -> None:
        """Leaves the job that ``hvd.init()`` has joined, if any; the seat stays."""
        basics.leave()


class ElasticWorker(BaseHorovodWorker):
    """A worker for one run."""

    def work(self, func: Callable[[Any], Any]) -> Any:
        """Runs the function, and leaves the job when it has returned, as the end of a process would."""
        value = self._do(lambda: func(self))
        self.leave()
        return value


def described() -> tuple[Resident, str, list[str]]:
    """Of this process, a worker of Ray's: who it is, on which node, and the GPUs that it was given."""
    return seats.describe(), str(ray.get_runtime_context().get_node_id()), [str(one) for one in ray.get_gpu_ids()]


def raylet() -> dict[int, str]:
    """The process of Ray's that looks after this one, if it is its parent. Ray itself leaves a worker alone that
    computes when that process is killed, for as long as it computes."""
    pid = os.getppid()
    try:
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return {}
    return {pid: "the raylet of its node"} if name == "raylet" else {}
