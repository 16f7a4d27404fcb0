"""Validators for param values. They do not need pyspark.

A validator takes the param's name and a value. It returns the value, or raises a ValueError that describes the valid
values.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Check = Callable[[str, Any], Any]


def refuse(name: str, value: Any, accepted: str) -> ValueError:
    return ValueError(f"{name} must be {accepted}, got {value!r}")


def anything(name: str, value: Any) -> Any:
    return value


class Count:
    """Validator that accepts integers from ``least`` to ``most``. If ``most`` is None, there is no upper limit."""

    def __init__(self, least: int, most: int | None = None) -> None:
        self.least, self.most = least, most

    def __call__(self, name: str, value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < self.least
            or (self.most is not None and value > self.most)
        ):
            bounds = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
            raise refuse(name, value, f"an integer {bounds}")
        return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, value, "True or False")
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(name, value, "a string that is not empty")
    return value


class OneOf:
    """Validator that accepts any of the given strings."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, name: str, value: Any) -> str:
        if value not in self.choices:
            raise refuse(name, value, "one of " + ", ".join(map(repr, self.choices)))
        return str(value)


def names(name: str, value: Any) -> list[str]:
    """Return the value if it is a list of distinct column names. Raises ValueError if it is not."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(one, str) for one in value):
        raise refuse(name, value, "a list of column names")
    if len(set(value)) < len(value):
        raise refuse(name, value, "a list of column names without duplicates")
    return list(value)


def shapes(name: str, value: Any) -> list[list[int]]:
    """Return the value if it is a list of shapes. A -1 in a shape stands for the number of rows."""
    good = isinstance(value, Sequence) and not isinstance(value, str)
    good = good and all(
        isinstance(shape, Sequence) and all(isinstance(size, int) and size >= -1 for size in shape) for shape in value
    )
    if not good:
        raise refuse(name, value, "a list of shapes, such as [[-1, 28, 28]]")
    return [list(shape) for shape in value]


def weights(name: str, value: Any) -> list[float]:
    good = isinstance(value, Sequence) and not isinstance(value, str)
    if not good or not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in value):
        raise refuse(name, value, "a list of numbers")
    return [float(one) for one in value]


def validation(name: str, value: Any) -> float | str:
    """Validate the value, which is a fraction or the name of the column that marks validation rows, and return it."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    raise refuse(name, value, "a fraction of at least 0 and below 1, or the name of a column")


def mapping(name: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise refuse(name, value, "a dict")
    return dict(value)


def listed(name: str, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise refuse(name, value, "a list")
    return list(value)


def function(name: str, value: Any) -> Any:
    if not callable(value):
        raise refuse(name, value, "a function")
    return value
