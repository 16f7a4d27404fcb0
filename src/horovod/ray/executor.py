"""Class ``RayExecutor``, which calls functions on ranks that are Ray actors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horovod.ray import cluster, strategy
from horovod.ray import settings as given
from horovod.ray.calls import Callback
from horovod.ray.cluster import RayHostDiscovery
from horovod.ray.members import ElasticJob
from horovod.ray.settings import Settings
from horovod.ray.worker_group import WorkerGroup
from horovod.runner.base.arguments import ARGUMENTS, integer
from horovod.runner.function import outcome

_NAMES = dataclasses.replace(ARGUMENTS, start="num_workers", least="min_workers", max_np="max_workers")


class RayExecutor:
    """Executor that calls functions on ranks, which are actors on a Ray cluster.

    Call ``start`` first, then ``run`` and similar methods any number of times, and finally ``shutdown``. With
    ``min_workers``, the job is elastic. Each ``run`` then starts new workers, and adds and removes workers while it is
    running.
    """

    def __init__(
        self,
        settings: Settings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int = 1,
        cpus_per_worker: int = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: tuple[float, float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        """Create an executor. Either ``num_workers`` or ``num_hosts`` must be given.

        Args:
            settings: Result of ``create_settings``.
            num_workers: Number of workers, on any nodes. For elastic jobs, it is the initial number, and the default is
                ``min_workers``.
            num_hosts: Number of nodes. Each node gets ``num_workers_per_host`` workers.
            num_workers_per_host: Number of workers per node. It requires ``num_hosts``.
            cpus_per_worker: Number of CPUs of each worker.
            use_gpu: True to give GPUs to workers.
            gpus_per_worker: Number of GPUs of each worker with ``use_gpu``. Default: 1. Workers on a host can access
                each other's GPUs. A worker's own GPU is the one with index ``hvd.local_rank()``.
            use_current_placement_group: True to place workers in the placement group of this program, if there is one.
                For example, a trial of Ray Tune has a placement group.
            min_workers: Minimum number of workers. If it is given, the job is elastic.
            max_workers: Maximum number of workers of an elastic job. Default: as many as fit.
            reset_limit: Maximum number of changes of an elastic job's workers. See ``horovodrun``.
            cooldown_range: Minimum and maximum pause in seconds before a failed host is used again. See ``horovodrun``.
            elastic_timeout: An elastic job ends after this many seconds without enough workers.
            override_discovery: True if an elastic job finds hosts with ``RayHostDiscovery``, False if it uses
                ``settings.discovery``.

        Raises:
            ValueError: If arguments are invalid or contradict each other.
            TypeError: If ``settings`` has the wrong type.
        """
        if not isinstance(settings, Settings):
            raise TypeError(f"settings must come from RayExecutor.create_settings(), got {settings!r}")
        cpus, gpus = given.needs("worker", cpus_per_worker, use_gpu, gpus_per_worker)
        size = _size(num_workers, num_hosts, num_workers_per_host, min_workers)
        self._settings = settings
        self._workers: WorkerGroup | None = None
        self._job: ElasticJob | None = None
        if min_workers is not None:
            # Copy the settings, because other executors may use the same object.
            self._settings = settings = dataclasses.replace(settings)
            settings.names = _NAMES
            settings.min_num_proc = integer("min_workers", min_workers, 1)
            settings.num_proc = size
            settings.max_num_proc = None if max_workers is None else integer("max_workers", max_workers, 1)
            settings.reset_limit, settings.cooldown_range = reset_limit, cooldown_range
            settings.elastic_timeout = elastic_timeout
            if override_discovery:
                settings.discovery = RayHostDiscovery(use_gpu, cpus, gpus or 1)
            self._job = ElasticJob(settings, cpus, gpus)
            return
        for name, value in (
            ("max_workers", max_workers),
            ("reset_limit", reset_limit),
            ("cooldown_range", cooldown_range),
        ):
            if value is not None:
                raise ValueError(f"{name} is for elastic jobs, got {name}={value!r} without min_workers")
        if num_workers is None:
            assert num_hosts is not None
            self._plan = strategy.colocated(num_hosts, num_workers_per_host, cpus, gpus)
        else:
            self._plan = strategy.loose(num_workers, cpus, gpus, settings.strategy)
        self._cpus, self._gpus, self._in_current = cpus, gpus, use_current_placement_group

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Collection[str] | str | None = None,
        strategy: str = "PACK",
    ) -> Settings:
        """Create settings for the executor.

        Args:
            timeout_s: Seconds for workers to start and to reach this program.
            ssh_identity_file: Ignored.
            ssh_str: Ignored.
            placement_group_timeout_s: Seconds for Ray to reserve resources.
            nics: Network interfaces to use. Default: any.
            strategy: Ray's placement strategy, which distributes ``num_workers`` workers over nodes: PACK, SPREAD,
                STRICT_PACK or STRICT_SPREAD.

        Returns:
            The settings.

        Raises:
            ValueError: If an argument is invalid.
        """
        ssh = {"ssh_identity_file": ssh_identity_file, "ssh_str": ssh_str}
        return given.make(timeout_s, placement_group_timeout_s, nics, ssh, strategy)

    @property
    def num_workers(self) -> int:
        """Number of workers; in an elastic job, the initial number."""
        return len(self._plan.places) if self._job is None else self._job.limits.start

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Start the workers. In an elastic job, each ``run`` starts its own workers instead.

        Args:
            executable_cls: Class of an object that each worker creates. ``execute`` passes this object to functions.
            executable_args: Positional arguments of the class.
            executable_kwargs: Keyword arguments of the class.
            extra_env_vars: Environment variables for the workers, in addition to Horovod's and the driver's
                ``HOROVOD_*`` variables.

        Raises:
            RuntimeError: If Ray is not initialized, or a worker does not start.
            ValueError: If the cluster is too small. The message contains the requested and existing resources.
            TimeoutError: If resources are not free in time.
            WorkerError: If a worker cannot create the object.
        """
        cluster.require()
        variables = {str(name): str(value) for name, value in (extra_env_vars or {}).items()}
        executable = executable_cls, executable_args, executable_kwargs
        if self._job is not None:
            self._job.prepare(variables, executable)
            return
        if self._workers is not None:
            raise RuntimeError("start() was called before; call shutdown() first")
        plan, group = self._plan, strategy.current_group(self._in_current)
        if group is not None:
            plan = strategy.within(group.bundle_specs, len(plan.places), self._cpus, self._gpus)
        self._workers = workers = WorkerGroup(self._settings, plan, group, self._cpus, self._gpus)
        try:
            workers.start(variables)
            if executable_cls is not None:
                workers.call("start_executable", *executable)
        except BaseException:
            self._end(workers)  # Do not use `self._workers`, which another thread could have replaced.
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on each rank, and return the results.

        Args:
            fn: Function to call.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
            callbacks: Functions to call with each dict that rank 0 passes to ``ray_logger.log``. They run in this
                thread. They can call ``run_remote`` and ``shutdown``, but methods that wait for workers raise
                RuntimeError.

        Returns:
            Results by rank. For an elastic job, results of the workers at its end.

        Raises:
            WorkerError: If a worker fails. The error contains the rank and host of the first worker that failed. It is
                also an instance of the class of the exception that this worker raised. WorkerError is a RuntimeError.
        """
        return self._call("run", _function(fn, args, kwargs), callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Call ``fn(*args, **kwargs)`` on each rank without waiting.

        Returns:
            Ray object references to the results, in rank order.
        """
        return self._require("run_remote").send("execute", _function(fn, args, kwargs))

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """Call ``fn(executable)`` on each rank, where ``executable`` is the object that ``start`` has created.

        See ``run`` for errors and ``callbacks``.

        Returns:
            Results by rank.
        """
        return self._call("execute", fn, callbacks)

    def _call(self, method: str, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None) -> list[Any]:
        if self._job is not None:
            return self._job.run(fn, callbacks)
        return self._require(method).call("execute", fn, callbacks=callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call ``fn(executable)`` on rank 0 only, and return its result."""
        return self._require("execute_single").call_first("execute", fn)

    def shutdown(self) -> None:
        """Stop the workers. Later calls have no effect, except that a call interrupted by Ctrl-C can be repeated.

        Methods that are waiting in other threads, such as ``start`` and ``run``, raise RuntimeError.
        """
        if (workers := self._workers) is not None:
            self._end(workers)
        if self._job is not None:
            self._job.forget()

    def _end(self, workers: WorkerGroup) -> None:
        workers.shutdown()
        if self._workers is workers:
            self._workers = None

    def _require(self, method: str) -> WorkerGroup:
        if self._job is not None:
            raise NotImplementedError(
                f"{method} needs a fixed set of workers, but this job is elastic (min_workers): use run or execute"
            )
        if self._workers is None:
            raise RuntimeError(
                f"{method} was called without workers: call start() first, and do not call it after shutdown()"
            )
        return self._workers


def _function(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    outcome.check(fn, () if args is None else args, {} if kwargs is None else kwargs, "fn")
    given_args, given_kwargs = list(args or ()), dict(kwargs or {})
    return lambda _: fn(*given_args, **given_kwargs)


def _size(workers: int | None, hosts: int | None, per_host: int, least: int | None) -> int:
    """Return the requested number of workers. Raises ValueError if arguments are missing or contradict each other."""
    if workers is not None and hosts is not None:
        raise ValueError(f"only one of num_workers and num_hosts must be given, got {workers!r} and {hosts!r}")
    if workers is not None:
        return integer("num_workers", workers, 1)
    per_host = integer("num_workers_per_host", per_host, 1)
    if hosts is not None:
        return integer("num_hosts", hosts, 1) * per_host
    if least is not None:
        return integer("min_workers", least, 1)
    raise ValueError("one of num_workers and num_hosts must be given, got neither")
