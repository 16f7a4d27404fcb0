"""``RayExecutor``: functions on ranks that are actors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from horovod.ray import cluster, strategy
from horovod.ray import settings as given
from horovod.ray.calls import Callback
from horovod.ray.crew import Crew
from horovod.ray.discovery import RayHostDiscovery
from horovod.ray.members import ElasticJob
from horovod.ray.settings import Settings
from horovod.runner.base.arguments import integer
from horovod.runner.base.names import ARGUMENTS
from horovod.runner.function import package

_NAMES = dataclasses.replace(ARGUMENTS, start="num_workers", least="min_workers", most="max_workers")


class RayExecutor:
    """Workers on the nodes of Ray's cluster. ``start`` them, call functions in them as often as you like, and
    ``shutdown``. With ``min_workers`` the job is elastic: each ``run`` has workers of its own, which come and go."""

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
        """``settings``: of ``create_settings``. Either ``num_workers``, wherever Ray has room for them, or
        ``num_hosts`` nodes with ``num_workers_per_host`` workers each. ``gpus_per_worker``: with ``use_gpu``, 1 by
        default; workers of one host see each other's GPUs, and number ``hvd.local_rank()`` is a worker's own. In a
        program that runs within a placement group, a trial of Ray Tune, say, the workers are placed in it, unless
        ``use_current_placement_group`` is False.

        ``min_workers``: an elastic job of at least so many workers, at most ``max_workers`` (None: as many as there is
        room for), which begins with ``num_workers`` (by default the least); ``reset_limit``, ``cooldown_range`` and
        ``elastic_timeout`` (s) as of ``horovodrun``. ``override_discovery`` False: ``settings.discovery`` finds hosts.

        Raises ValueError naming what is wrong or does not fit together, TypeError for ``settings`` of another kind.
        """
        if not isinstance(settings, Settings):
            raise TypeError(f"settings is {settings!r}, accepted is what RayExecutor.create_settings() returns")
        cpus, gpus = given.needs("worker", cpus_per_worker, use_gpu, gpus_per_worker)
        size = _size(num_workers, num_hosts, num_workers_per_host, min_workers)
        self._settings = settings
        self._crew: Crew | None = None
        self._job: ElasticJob | None = None
        if min_workers is not None:
            self._settings = settings = dataclasses.replace(settings)  # which several executors may be made with
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
                raise ValueError(f"{name}={value!r} is for elastic jobs, which min_workers makes")
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
        """``timeout_s``: s for workers to start and to reach this program; ``placement_group_timeout_s``: s for Ray to
        find room; ``nics``: network interfaces to be used, None: any; ``strategy``: of ``num_workers``, as of Ray's
        placement groups: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD. What begins with ``ssh`` has no effect. Raises
        ValueError naming what is wrong."""
        ssh = {"ssh_identity_file": ssh_identity_file, "ssh_str": ssh_str}
        return given.make(timeout_s, placement_group_timeout_s, nics, ssh, strategy)

    @property
    def num_workers(self) -> int:
        """Of a job that is not elastic how many there are, else how many it begins with."""
        return len(self._plan.places) if self._job is None else self._job.limits.start

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the workers, with these variables beside ours and the driver's own ``HOROVOD_*``; then each makes an
        executable, ``executable_cls(*executable_args, **executable_kwargs)``, to which ``execute`` gives functions.

        Raises RuntimeError without Ray, or naming a worker that does not start; ValueError naming what was asked for
        and what the cluster has when it is too small; TimeoutError when it has no room in time; WorkerError for
        exceptions of the executable's.
        """
        cluster.require()
        variables = {str(name): str(value) for name, value in (extra_env_vars or {}).items()}
        made = executable_cls, executable_args, executable_kwargs
        if self._job is not None:
            self._job.prepare(variables, made)
            return
        if self._crew is not None:
            raise RuntimeError("start() was called before; shutdown() comes first")
        plan, group = self._plan, strategy.current_group(self._in_current)
        if group is not None:
            plan = strategy.within(group.bundle_specs, len(plan.places), self._cpus, self._gpus)
        self._crew = crew = Crew(self._settings, plan, group, self._cpus, self._gpus)
        try:
            crew.start(variables)
            if executable_cls is not None:
                crew.call("start_executable", *made)
        except BaseException:
            self._end(crew)  # which may not be this executor's any more
            raise

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> list[Any]:
        """``fn(*args, **kwargs)`` on every rank; the results by rank, of an elastic job those of its last members.
        ``callbacks`` get each dict that rank 0 gives to ``ray_logger.log``, in this thread. They may call
        ``run_remote`` and ``shutdown``; what would wait for workers raises RuntimeError in them.

        Raises WorkerError, a RuntimeError, when a worker fails, naming rank and host of the first; where it raised an
        exception, the error is of that one's class too.
        """
        return self._call("run", _function(fn, args, kwargs), callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """As ``run``, but returns at once, by rank a reference each, for ``ray.get``."""
        return self._require("run_remote").send("execute", _function(fn, args, kwargs))

    def execute(self, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None = None) -> list[Any]:
        """``fn(executable)`` on every rank; otherwise as ``run``."""
        return self._call("execute", fn, callbacks)

    def _call(self, method: str, fn: Callable[[Any], Any], callbacks: Sequence[Callback] | None) -> list[Any]:
        if self._job is not None:
            return self._job.run(fn, callbacks)
        return self._require(method).call("execute", fn, callbacks=callbacks)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0 alone; its result."""
        return self._require("execute_single").call_first("execute", fn)

    def shutdown(self) -> None:
        """Ends the workers, and what other threads wait for: ``start``, ``run`` and the like raise RuntimeError there.
        May be called again, also when an interrupt (Ctrl-C) has ended it early."""
        if (crew := self._crew) is not None:
            self._end(crew)
        if self._job is not None:
            self._job.forget()

    def _end(self, crew: Crew) -> None:
        crew.shutdown()
        if self._crew is crew:
            self._crew = None

    def _require(self, method: str) -> Crew:
        if self._job is not None:
            raise NotImplementedError(
                f"{method} is for workers that stay; those of an elastic job (min_workers) come and go: use run or "
                "execute"
            )
        if self._crew is None:
            raise RuntimeError(
                f"{method} was called without workers: call start() before, and nothing after shutdown()"
            )
        return self._crew


def _function(
    fn: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> Callable[[Any], Any]:
    package.check(fn, () if args is None else args, {} if kwargs is None else kwargs, "fn")
    given_args, given_kwargs = list(args or ()), dict(kwargs or {})
    return lambda _: fn(*given_args, **given_kwargs)


def _size(workers: int | None, hosts: int | None, per_host: int, least: int | None) -> int:
    """How many workers are asked for. Raises ValueError."""
    if workers is not None and hosts is not None:
        raise ValueError(f"num_workers={workers!r} and num_hosts={hosts!r} are both given; accepted is one of them")
    if workers is not None:
        return integer("num_workers", workers, 1)
    per_host = integer("num_workers_per_host", per_host, 1)
    if hosts is not None:
        return integer("num_hosts", hosts, 1) * per_host
    if least is not None:
        return integer("min_workers", least, 1)
    raise ValueError("neither num_workers nor num_hosts is given; accepted is one of them")
