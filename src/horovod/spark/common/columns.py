"""Types, shapes and storage formats of DataFrame columns.

This module needs neither pyspark nor pyarrow. It takes types as Spark's JSON values (``DataType.jsonValue()``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

NUMBERS = {
    "boolean": "bool",
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "float": "float32",
    "double": "float64",
}
"""NumPy dtypes by Spark type."""

VECTOR = "vector"
_ACCEPTED = "numbers, booleans, vectors of Spark ML or arrays of numbers"


@dataclass(frozen=True)
class Column:
    """Column of a DataFrame that is written to a store or read from it.

    Attributes:
        name: Name of the column in the DataFrame.
        kind: "number", "list", "vector", "sparse" or "other". A "sparse" column stores vectors as indices and values.
            An "other" column, such as strings or times, is only for a transformation_fn.
        dtype: Name of the NumPy dtype, or an empty string for kind "other".
        depth: Number of nested list levels.
        shape: Shape of the value in one row, or None if it is unknown or not fixed.
        named: True if an argument of the estimator names the column. Other columns are only read for a
            transformation_fn.
    """

    name: str
    kind: str
    dtype: str = ""
    depth: int = 0
    shape: tuple[int, ...] | None = None
    named: bool = True

    @property
    def size(self) -> int:
        """Number of elements of the array in each row."""
        return math.prod(self.shape or ())


def chosen(
    fields: Mapping[str, Any], requested: Mapping[str, Sequence[str]], transformed: bool, sparse: bool
) -> list[Column]:
    """Return the columns to use, without duplicates.

    Args:
        fields: Types of all columns by name, as returned by ``DataType.jsonValue()``.
        requested: Column names, keyed by the argument that lists them.
        transformed: True if there is a transformation_fn. It can convert other types to numbers, add columns, and use
            any column of the DataFrame.
        sparse: True if vectors are stored as indices and values.

    Raises:
        ValueError: If a column does not exist or has an unsupported type. The message names argument and column.
    """
    found: dict[str, Column] = {}
    for argument, names in requested.items():
        for name in names:
            if name not in fields:
                if transformed and argument in ("feature_cols", "label_cols"):
                    continue
                raise ValueError(
                    f"{argument} must name columns of the DataFrame, {', '.join(map(repr, fields))}, got {name!r}"
                )
            if name not in found:
                found[name] = _column(name, fields[name], argument, transformed, sparse)
    for name in fields if transformed else ():
        if name not in found and not _nested(fields[name]):
            found[name] = replace(_column(name, fields[name], "", True, sparse), named=False)
    return list(found.values())


def _nested(kind: Any) -> bool:
    """Return True if values of this type, such as structs and maps, cannot be converted to arrays."""
    if not isinstance(kind, dict):
        return kind == "void"
    if kind.get("type") == "array":
        return not _number(kind["elementType"]) and _nested(kind["elementType"])
    return not kind.get("class", "").endswith("VectorUDT")


def _column(name: str, kind: Any, argument: str, transformed: bool, sparse: bool) -> Column:
    if isinstance(kind, dict) and kind.get("type") == "udt":
        if kind.get("class", "").endswith("VectorUDT"):
            return Column(name, "sparse" if sparse else VECTOR, "float32", 1)
    elif isinstance(kind, dict) and kind.get("type") == "array":
        depth, inner = 0, kind
        while isinstance(inner, dict) and inner.get("type") == "array":
            depth, inner = depth + 1, inner["elementType"]
        if _number(inner):
            return Column(name, "list", _number(inner), depth)
    elif _number(kind):
        return Column(name, "number", _number(kind))
    if transformed:
        return Column(name, "other")
    words = kind if isinstance(kind, str) else kind.get("class") or kind.get("type")
    raise ValueError(
        f"{argument}: column {name!r} must have {_ACCEPTED}, got {words}; convert it in a transformation_fn"
    )


def _number(kind: Any) -> str:
    if isinstance(kind, str) and kind.startswith("decimal"):
        return "float64"
    return NUMBERS.get(kind, "") if isinstance(kind, str) else ""


@dataclass
class ColumnStatistics:
    """Statistics of a column: row and null counts, and the range of list sizes at each nesting depth."""

    rows: int = 0
    nulls: int = 0
    inner_nulls: int = 0
    least: list[int] | None = None
    most: list[int] | None = None

    @property
    def even(self) -> bool:
        """True if the column has no nulls, and all rows have the same non-empty shape."""
        return not self.nulls and not self.inner_nulls and self.least == self.most and 0 not in (self.least or ())

    def add(self, other: "ColumnStatistics") -> None:
        self.rows += other.rows
        self.nulls += other.nulls
        self.inner_nulls += other.inner_nulls
        if other.least is not None and other.most is not None:
            self.least = other.least if self.least is None else list(map(min, self.least, other.least))
            self.most = other.most if self.most is None else list(map(max, self.most, other.most))


def all_settled(columns: Sequence[Column], found: Mapping[str, ColumnStatistics]) -> tuple[Column, ...]:
    """Return the columns with their shapes filled in from the statistics.

    Columns that have nulls or rows of different shapes are omitted unless an argument of the estimator names them.

    Raises:
        ValueError: If a named column has nulls, or rows of different shapes.
    """
    made = []
    for column in columns:
        try:
            made.append(settled(column, found[column.name]))
        except ValueError:
            if column.named:
                raise
    return tuple(made)


def settled(column: Column, found: ColumnStatistics) -> Column:
    """Return the column with its shape filled in from the statistics.

    Raises:
        ValueError: If the column has nulls, or rows of different shapes.
    """
    where = f"column {column.name!r}"
    if found.nulls:
        raise ValueError(
            f"{where} must not have nulls, got {found.nulls} in {found.rows} rows; "
            f"df.na.drop(subset=[{column.name!r}]) removes such rows, df.na.fill fills them"
        )
    if found.inner_nulls:
        raise ValueError(f"{where} must not have nulls in its arrays, got {found.inner_nulls}")
    if column.kind == "number":
        return replace(column, shape=())
    if column.kind == "other":
        return column
    least, most = found.least or [0] * column.depth, found.most or [0] * column.depth
    if least != most:
        depth = next(number for number, (one, other) in enumerate(zip(least, most, strict=True)) if one != other)
        raise ValueError(
            f"{where} must have {'vectors' if column.kind in (VECTOR, 'sparse') else 'arrays'} of one size in all "
            f"rows, got {least[depth]} and {most[depth]} elements"
        )
    if 0 in least:
        raise ValueError(f"{where} must have arrays with at least 1 element, got empty ones")
    return replace(column, shape=tuple(least))


def check_shapes(what: str, columns: Sequence[Column], shapes: Sequence[Sequence[int]] | None, argument: str) -> None:
    """Check that the columns can be reshaped to `shapes`.

    Args:
        what: "label" or "feature", for the message.
        columns: Columns to check.
        shapes: Shape of each column, or None for no check.
        argument: Name of the argument that contains the shapes, for the message.

    Raises:
        ValueError: If they cannot.
    """
    if shapes is None:
        return
    if len(shapes) != len(columns):
        raise ValueError(f"{argument} must have one shape for each of {len(columns)} {what}_cols, got {len(shapes)}")
    for column, shape in zip(columns, shapes, strict=True):
        if column.shape is not None and not fits(column.shape, shape):
            raise ValueError(
                f"{argument}: the shape of {what} {column.name!r} must fit its rows of shape {list(column.shape)}, got "
                f"{list(shape)}"
            )


def fits(shape: Sequence[int], requested: Sequence[int]) -> bool:
    """Return True if a value of the given shape in one row can be reshaped to `requested`.

    A -1 in `requested` is inferred, as in `numpy.reshape`. A leading -1 can also stand for the batch dimension.
    """
    size = math.prod(shape)
    known = math.prod(one for one in requested if one >= 0)
    if -1 not in requested:
        return known == size
    return known != 0 and size % known == 0 and requested.count(-1) <= 2


def row_shape(requested: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the shape ``requested`` of the value in one row, with -1 replaced so that the shape has ``size`` elements.

    A leading -1 that stands for the batch dimension is omitted.
    """
    inner = list(requested)
    rest = math.prod(one for one in inner[1:] if one >= 0)
    if inner and inner[0] == -1 and -1 not in inner[1:] and rest == size:
        inner = inner[1:]
    if inner and inner[0] == -1 and -1 in inner[1:]:
        inner = inner[1:]
    known = math.prod(one for one in inner if one >= 0)
    return tuple(size // known if one == -1 else one for one in inner)
