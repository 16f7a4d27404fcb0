"""Backends: how an estimator's ranks are started."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horovod.spark.common.checks import Count

Function = Callable[..., Any]


def default_num_proc() -> int:
    """As many ranks as Spark runs tasks side by side by default. Raises RuntimeError without a SparkContext."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        raise RuntimeError("num_proc is not given, and there is no active SparkContext whose parallelism could be it")
    return int(context.defaultParallelism)


class Backend:
    """Where an estimator trains. For backends of your own."""

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Calls ``fn(*args, **kwargs)`` in each rank of a job, in which ``hvd.init()`` finds the others, and returns
        what they return, by rank. ``env``: variables of their environment, beside those that they have."""
        raise NotImplementedError(f"{type(self).__name__} does not say how ranks are started")

    def check(self) -> None:
        """Raises ValueError for what can be known not to run, before anything does. By default nothing is known."""

    def num_processes(self) -> int:
        """How many ranks there will be."""
        raise NotImplementedError(f"{type(self).__name__} does not say how many ranks there are")


class _Numbered(Backend):
    def __init__(self, num_proc: int | None) -> None:
        self._num_proc = None if num_proc is None else Count(1)("num_proc", num_proc)

    def num_processes(self) -> int:
        return default_num_proc() if self._num_proc is None else self._num_proc


class SparkBackend(_Numbered):
    """Ranks are tasks of Spark: ``horovod.spark.run``."""

    def __init__(self, num_proc: int | None = None, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """``num_proc``: ranks; Spark's default parallelism if not given. ``env``: of the ranks. ``kwargs``: further
        arguments of ``horovod.spark.run``, such as ``start_timeout``, ``verbose``, ``stdout``."""
        super().__init__(num_proc)
        self._env, self._kwargs = dict(env or {}), kwargs

    def check(self) -> None:
        """Raises ValueError for more ranks than the application can ever run at a time."""
        from horovod.spark.application import Application

        Application().check(self.num_processes(), "num_proc")

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Raises what ``horovod.spark.run`` raises."""
        from horovod.spark.job import run

        told = {"num_proc": self.num_processes(), "env": {**self._env, **(env or {})}, **self._kwargs}
        return list(run(fn, args=tuple(args), kwargs=dict(kwargs or {}), **told))


_PLACES = ("hosts", "hostfile", "host_discovery_script")
_ELASTIC = ("min_num_proc", "min_np")


class LocalBackend(_Numbered):
    """Ranks are processes of the driver's host, or of ``hosts``, started by ``horovod.run``: for a Spark of one host,
    for trying things, and for hosts outside of Spark that see the store."""

    def __init__(self, num_proc: int, env: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """``num_proc``: ranks. ``env``: of the ranks. ``kwargs``: further arguments of ``horovod.run``, such as
        ``hosts``."""
        super().__init__(num_proc)
        self._env, self._kwargs = dict(env or {}), kwargs

    def run(
        self,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Raises what ``horovod.run`` raises."""
        import horovod

        call, size, told = _InEnvironment(fn, {**self._env, **(env or {})}), self.num_processes(), dict(self._kwargs)
        if all(told.get(name) is None for name in (*_PLACES, *_ELASTIC)):
            told["hosts"] = f"localhost:{size}"  # horovod.run would look for those that a training service has given
        return horovod.run(call, args=args, kwargs=kwargs, num_proc=size, **told)


class _InEnvironment:
    """A function that sets variables first: of a rank whose environment its launcher has made."""

    def __init__(self, fn: Function, env: Mapping[str, str]) -> None:
        self._fn, self._env = fn, dict(env)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.update(self._env)
        return self._fn(*args, **kwargs)
