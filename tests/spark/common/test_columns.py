"""Supported columns of a DataFrame, and errors for others."""

import pytest

from horovod.spark.common.columns import Column, ColumnStatistics, check_shapes, chosen, fits, settled

VECTOR = {"type": "udt", "class": "org.apache.spark.ml.linalg.VectorUDT"}


def array(inner):
    return {"type": "array", "elementType": inner, "containsNull": True}


FIELDS = {
    "age": "integer",
    "price": "decimal(10,2)",
    "features": VECTOR,
    "pixels": array(array("float")),
    "name": "string",
    "label": "long",
    "person": {"type": "struct", "fields": []},
}


def test_each_column_once_with_its_numpy_dtype():
    params = {"feature_cols": ["age", "price", "features", "pixels"], "label_cols": ["label", "age"]}
    assert chosen(FIELDS, params, False, False) == [
        Column("age", "number", "int32"),
        Column("price", "number", "float64"),
        Column("features", "vector", "float32", 1),
        Column("pixels", "list", "float32", 2),
        Column("label", "number", "int64"),
    ]
    assert chosen(FIELDS, {"feature_cols": ["features"]}, False, True)[0].kind == "sparse"


@pytest.mark.parametrize(
    ("argument", "name", "message"),
    [
        ("feature_cols", "size", "feature_cols must name columns of the DataFrame, 'age', 'price'.*, got 'size'"),
        ("label_cols", "lable", "label_cols must name columns .*, got 'lable'"),
        ("feature_cols", "name", "feature_cols: column 'name' must have numbers, booleans, .*, got string"),
        ("feature_cols", "person", "'person' must have .*, got struct"),
    ],
)
def test_unsupported_columns_are_named(argument, name, message):
    with pytest.raises(ValueError, match=message):
        chosen(FIELDS, {argument: [name]}, False, False)


def test_transformations_may_use_texts_and_add_columns():
    columns = chosen(FIELDS, {"feature_cols": ["name", "length"], "sample_weight_col": []}, True, False)
    assert columns[0] == Column("name", "other")
    with pytest.raises(ValueError, match=r"sample_weight_col must name columns .*, got 'weight'"):
        chosen(FIELDS, {"sample_weight_col": ["weight"]}, True, False)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            ColumnStatistics(10, nulls=3),
            r"column 'x' must not have nulls, got 3 in 10 rows; df.na.drop\(subset=\['x'\]\)",
        ),
        (ColumnStatistics(10, inner_nulls=2), "column 'x' must not have nulls in its arrays, got 2"),
        (
            ColumnStatistics(10, least=[4, 3], most=[4, 5]),
            "column 'x' must have arrays of one size in all rows, got 3 and 5 elements",
        ),
        (ColumnStatistics(10, least=[0, 0], most=[0, 0]), "column 'x' must have arrays with at least 1 element"),
    ],
)
def test_different_rows_are_reported(found, message):
    with pytest.raises(ValueError, match=message):
        settled(Column("x", "list", "float32", 2), found)


def test_statistics_of_parts_are_merged():
    found = ColumnStatistics()
    for part in (ColumnStatistics(0), ColumnStatistics(3, 1, 0, [2], [2]), ColumnStatistics(4, 0, 1, [2], [3])):
        found.add(part)
    assert found == ColumnStatistics(7, 1, 1, [2], [3])
    assert settled(Column("x", "vector", "float32", 1), ColumnStatistics(5, least=[8], most=[8])).shape == (8,)


@pytest.mark.parametrize(
    ("shape", "expected", "fit"),
    [
        ((64,), (-1, 1, 8, 8), True),
        ((64,), (8, 8), True),
        ((64,), (-1, 64), True),
        ((64,), (-1, 1, 8, 9), False),
        ((), (1,), True),
        ((), (-1, 1), True),
        ((10,), (2, -1), True),
        ((10,), (3, -1), False),
    ],
)
def test_shapes_of_rows(shape, expected, fit):
    assert fits(shape, expected) is fit


def test_labels_of_another_shape_are_named():
    label = Column("label", "vector", "float32", 1, (10,))
    check_shapes("label", [label], [[2, 5]], "label_shapes")
    with pytest.raises(ValueError, match=r"the shape of label 'label' must fit its rows of shape \[10\], got \[3\]"):
        check_shapes("label", [label], [[3]], "label_shapes")
    with pytest.raises(ValueError, match="label_shapes must have one shape for each of 1 label_cols, got 2"):
        check_shapes("label", [label], [[10], [10]], "label_shapes")
