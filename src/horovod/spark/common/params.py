"""EstimatorParams and ModelParams: Spark ML params with getters and setters, created from the tables of params."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

try:
    from pyspark.ml.param import Param, Params
except ImportError as error:
    raise ImportError(
        f"estimators need pyspark, which cannot be imported ({error}); install it with: pip install 'horovod[spark]'"
    ) from error

from horovod.spark.common.param_table import ESTIMATOR, MODEL, Row

P = TypeVar("P", bound=type)


def _checked(row: Row, value: Any) -> Any:
    return row.check(row.name, value)


def _getter(row: Row) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        return self.getOrDefault(row.name)

    get.__name__ = f"get{row.camel}"
    get.__doc__ = f"{row.name}: {row.doc}."
    return get


def _setter(row: Row) -> Callable[[Any, Any], Any]:
    def set_(self: Any, value: Any) -> Any:
        return self._assign({row.name: value})

    set_.__name__ = f"set{row.camel}"
    set_.__doc__ = f"Sets {row.name}: {row.doc}; None: back to its default, {row.default!r}. Returns self."
    return set_


def with_params(*rows: Row) -> Callable[[P], P]:
    """Return a class decorator that adds the params in `rows`, with getters and setters."""

    def add(cls: P) -> P:
        for row in rows:
            setattr(cls, row.name, Param(Params._dummy(), row.name, row.doc, functools.partial(_checked, row)))
            for method in (_getter(row), _setter(row)):
                method.__module__, method.__qualname__ = cls.__module__, f"{cls.__name__}.{method.__name__}"
                setattr(cls, method.__name__, method)
        cls._rows = {**getattr(cls, "_rows", {}), **{row.name: row for row in rows}}  # type: ignore[attr-defined]
        return cls

    return add


def with_signature(order: str) -> Callable[[P], P]:
    """Return a class decorator that documents all params as keyword arguments of the constructor.

    It sets the signature and extends the docstring. The params named in ``order``, separated by spaces, come first.
    """

    def add(cls: P) -> P:
        rows: dict[str, Row] = cls._rows  # type: ignore[attr-defined]
        first = order.split()
        names = [*first, *(name for name in rows if name not in first)]
        words = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=rows[name].shown) for name in names]
        cls.__signature__ = inspect.Signature(words)  # type: ignore[attr-defined]
        lines = "\n".join(f"    ``{name}``: {rows[name].doc}" for name in names)
        cls.__doc__ = (
            f"{inspect.getdoc(cls)}\n\nArguments, all of them keywords, with setters and getters:\n\n{lines}\n"
        )
        return cls

    return add


class _TableParams(Params):  # type: ignore[misc]
    """Spark ML Params that come from a table of rows."""

    _rows: dict[str, Row]

    def __init__(self, **given: Any) -> None:
        """Set the given params and the defaults of the others.

        Args:
            **given: Values by name of the param; None means not given.

        Raises:
            TypeError: If a name is not a param.
            ValueError: If a value is invalid. The message names param, value and what is accepted.
        """
        super().__init__()
        if wrong := [name for name in given if name not in self._rows]:
            raise TypeError(f"{type(self).__name__} has no argument {wrong[0]!r}; there are {', '.join(self._rows)}")
        self._setDefault(**{name: copy.copy(row.default) for name, row in self._rows.items()})
        self._assign(given)

    def _assign(self, given: dict[str, Any]) -> Any:
        for name, value in given.items():
            if value is None:
                self.clear(self.getParam(name))
            else:
                self._set(**{name: value})
        return self


@with_params(*ESTIMATOR)
class EstimatorParams(_TableParams):
    """Params of all estimators."""


@with_params(*MODEL)
class ModelParams(_TableParams):
    """Params that all models have."""
