"""Estimator backends, which start the ranks that train a model."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.spark.common.checks import Count

Function = Callable[..., Any]


def default_num_proc() -> int:
    """Return Spark's default parallelism.

    Raises:
        RuntimeError: If there is no active SparkContext.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError(
            "num_proc must be given if there is no active SparkContext, whose parallelism is the default"
        )
    return int(context.defaultParallelism)


class Backend:
    """Base class of backends, which start the ranks that train for an estimator.

    Users can define their own subclasses.
    """

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Start a job and call ``fn(*args, **kwargs)`` on all its ranks. ``fn`` can call ``hvd.init()``.

        Args:
            fn: Function to call on each rank.
            args: Positional arguments of the function.
            kwargs: Keyword arguments of the function.
            env: Environment variables to set on the ranks, in addition to the backend's own.

        Returns:
            Results of the function by rank.
        """
        raise NotImplementedError(f"{type(self).__name__} must define run")

    def check(self) -> None:
        """Raise ValueError if the job can never run, for example because of too few task slots. Default: no check."""

    def num_processes(self) -> int:
        """Return the number of ranks that ``run`` starts."""
        raise NotImplementedError(f"{type(self).__name__} must define num_processes")


class _Numbered(Backend):
    def __init__(self, num_proc: int | None) -> None:
        self._num_proc = None if num_proc is None else Count(1)("num_proc", num_proc)

    def num_processes(self) -> int:
        return default_num_proc() if self._num_proc is None else self._num_proc


class SparkBackend(_Numbered):
    """Backend that uses ``horovod.spark.run`` to start ranks as Spark tasks."""

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """Create a backend that starts Spark tasks.

        Args:
            num_proc: Number of ranks. Default: Spark's default parallelism.
            env: Environment variables of the ranks.
            **kwargs: Additional arguments of ``horovod.spark.run``, such as ``start_timeout``, ``verbose``, ``stdout``.
        """
        super().__init__(num_proc)
        self._env, self._kwargs = dict(env or {}), kwargs

    def check(self) -> None:
        """Raise ValueError if the Spark application can never run this many ranks at the same time."""
        from horovod.spark.application import Application

        Application().check(self.num_processes(), "num_proc")

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn`` on all ranks, as described in ``Backend.run``.

        Raises the same exceptions as ``horovod.spark.run``.

        Returns:
            Results by rank.
        """
        from horovod.spark.job import run

        options = {"num_proc": self.num_processes(), "env": {**self._env, **(env or {})}, **self._kwargs}
        return list(run(fn, args=tuple(args), kwargs=dict(kwargs or {}), **options))


_PLACES = ("hosts", "hostfile", "host_discovery_script")
_ELASTIC = ("min_num_proc", "min_np")


class LocalBackend(_Numbered):
    """Backend that uses ``horovod.run`` to start ranks as processes on the driver's host or on other hosts.

    Use it for Spark on one host, for tests, and for hosts outside Spark that can access the store.
    """

    def __init__(self, num_proc: int, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """Create a backend that calls ``horovod.run``.

        Args:
            num_proc: Number of ranks.
            env: Environment variables of the ranks.
            **kwargs: Additional arguments of ``horovod.run``, such as ``hosts``.
        """
        super().__init__(num_proc)
        self._env, self._kwargs = dict(env or {}), kwargs

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call ``fn`` on all ranks, as described in ``Backend.run``. Raises the same exceptions as ``horovod.run``."""
        import horovod

        call, size, options = _InEnvironment(fn, {**self._env, **(env or {})}), self.num_processes(), dict(self._kwargs)
        if all(options.get(name) is None for name in (*_PLACES, *_ELASTIC)):
            # Run on this host only. Without `hosts`, horovod.run would use the machines that SageMaker or Vertex AI
            # assigned.
            options["hosts"] = f"localhost:{size}"
        return list(horovod.run(call, args=args, kwargs=kwargs, num_proc=size, **options))


class _InEnvironment:
    """Picklable function that sets environment variables and then calls another function."""

    def __init__(self, fn: Function, env: Mapping[str, str]) -> None:
        self._fn, self._env = fn, dict(env)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.update(self._env)
        return self._fn(*args, **kwargs)
