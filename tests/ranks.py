"""Tests whose body runs on every rank of a job.

    @on_tensorflow(2)
    def test_sums():
        assert hvd.allreduce(tf.ones(1), op=hvd.Sum) == 2

``@on_tensorflow(2, 3)`` repeats the test with 3 ranks; a size may be a ``pytest.param`` with marks. Parameters and
fixtures of the test, such as ``tmp_path``, are pickled and sent to the ranks. A test that checks the ranks' results
uses the pool directly (tests/pool.py). A Keras backend is part of the test's name, from which tests/lanes.py finds
its lane.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

Decorator = Callable[[Callable[..., Any]], Callable[..., None]]


def of(fixture: str, backend: str = "") -> Callable[..., Decorator]:
    """Return a decorator factory for the pools of a fixture.

    Args:
        backend: argument of ``keras_pool``.
    """

    def on(
        *sizes: Any, initialized: bool = True, timeout: float | None = None, fresh: bool = False, **environ: str
    ) -> Decorator:
        def decorate(function: Callable[..., Any]) -> Callable[..., None]:
            @functools.wraps(function)
            def test(**arguments: Any) -> None:
                make, size = arguments.pop(fixture), arguments.pop("ranks", sizes[0])
                job = (make(arguments.pop("on")) if backend else make)(size, initialized, **environ)
                job.run(function, timeout=timeout, fresh=fresh, **arguments)

            more = [*(["on"] if backend else []), *(["ranks"] if len(sizes) > 1 else [])]
            names = [fixture, *inspect.signature(function).parameters, *more]
            test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
                [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
            )
            if backend:
                test = pytest.mark.parametrize("on", [backend])(test)
            return pytest.mark.parametrize("ranks", sizes)(test) if len(sizes) > 1 else test

        return decorate

    return on


on_ranks = of("pool")
on_gpu_ranks = of("gpu_ranks")
on_tensorflow = of("tf_pool")
on_jax = of("jax_pool")
on_keras3 = of("keras3")
on_smoke_keras3 = of("smoke_keras3")
on_stateful_keras3 = of("stateful")
on_keras_on_tensorflow = of("keras_pool", "tensorflow")
on_keras_on_torch = of("keras_pool", "torch")
on_keras_on_jax = of("keras_pool", "jax")
on_keras2 = of("keras_pool", "legacy")
