"""DataFrames written as Parquet: contents, written once, and errors for unsupported rows."""

import decimal
import os

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")


from horovod.spark.common import prepare
from horovod.spark.common.reader import Batches, open_table
from horovod.spark.common.store import LocalStore, StoreNotWritableError


def write(df, store, names, files=3, sparse=False, **options):
    columns = prepare.columns_of(df, {"feature_cols": names}, False, sparse)
    return prepare.write(df, store, columns, files, **options)


def rows_of(store, written, files):
    import numpy as np

    batches = list(Batches(open_table(store, files, written.columns), 16).epoch(0))
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.fixture
def frame(session):
    """Return 100 rows of all kinds of columns."""
    from pyspark.ml.linalg import Vectors

    rows = [
        (
            number,
            number % 4 == 0,
            decimal.Decimal(number) / 4,
            Vectors.dense([number, -number]),
            Vectors.sparse(5, {number % 5: float(number)}),
            [[number, 1], [2, 3], [4, 5]],
            float(number),
        )
        for number in range(100)
    ]
    schema = "id int, chosen boolean, price decimal(10,2)"
    plain = session.createDataFrame(
        [row[:3] + row[5:] for row in rows], f"{schema}, grid array<array<int>>, `a.b` double"
    )
    vectors = session.createDataFrame([(row[0], row[3], row[4]) for row in rows], ["id", "dense", "sparse"])
    return plain.join(vectors, "id")


def test_each_kind_of_column_is_restored(frame, tmp_path):
    import numpy as np

    store = LocalStore(tmp_path)
    names = ["id", "chosen", "price", "dense", "sparse", "grid", "a.b"]
    for sparse in (False, True):
        written = write(frame, store, names, sparse=sparse)
        assert written.val == ()
        assert len(written.train) == 3
        found = rows_of(store, written, written.train)
        order = np.argsort(found["id"])
        assert found["id"][order].tolist() == list(range(100))
        assert found["id"].tolist() != list(range(100)), "rows that are neighbours go to different files"
        sorted_ = {name: values[order] for name, values in found.items()}
        assert sorted_["chosen"].tolist() == [number % 4 == 0 for number in range(100)]
        assert sorted_["price"][7] == 1.75
        assert sorted_["dense"][9].tolist() == [9, -9]
        assert sorted_["dense"].dtype == np.float32
        assert sorted_["sparse"][7].tolist() == [0, 0, 7, 0, 0]
        assert sorted_["sparse"].shape == (100, 5)
        assert sorted_["grid"][8].tolist() == [[8, 1], [2, 3], [4, 5]]
        assert sorted_["a.b"][8] == 8.0
        prepare.remove(store, written.dataset_idx)
    assert os.listdir(tmp_path) == []


def test_rows_to_validate_with_are_a_column_or_a_fraction(frame, tmp_path):
    store = LocalStore(tmp_path)
    written = write(frame, store, ["id"], validation="chosen", shuffle=False)
    train, val = (rows_of(store, written, files)["id"].tolist() for files in (written.train, written.val))
    assert sorted(val) == list(range(0, 100, 4))
    assert sorted(train + val) == list(range(100))
    parts = []
    for _ in range(2):
        written = write(frame, store, ["id"], validation=0.3, seed=7)
        train, val = (rows_of(store, written, files)["id"].tolist() for files in (written.train, written.val))
        assert sorted(train + val) == list(range(100))
        assert 15 < len(val) < 45
        parts.append(sorted(val))
    assert parts[0] == parts[1], "the same seed chooses the same rows"


def test_a_seed_makes_data_sets_reproducible(frame, tmp_path):
    """Partitions and row order, which affect the order of arrival in a shuffle, do not matter."""
    store = LocalStore(tmp_path)

    def parts_of(frame, seed):
        written = write(frame, store, ["id", "dense", "grid", "a.b"], validation=0.3, seed=seed)
        return [rows_of(store, written, files)["id"].tolist() for files in (written.train, written.val)]

    first = parts_of(frame, 7)
    assert parts_of(frame.repartitionByRange(5, "price"), 7) == first
    assert parts_of(frame.orderBy("id", ascending=False).coalesce(1), 7) == first
    other = parts_of(frame, 8)
    assert other[0] != first[0]
    assert sorted(other[1]) != sorted(first[1])
    # Spark cannot hash a map; such rows are still shuffled.
    shuffled = prepare._shuffled(frame.selectExpr("id", "map(id, id) pairs"), ["pairs"], 3, 7)
    assert [bool(part) for part in shuffled.rdd.glom().collect()] == [True] * 3


def test_transformation_columns_never_drop_rows(session, tmp_path):
    query = """select id, sequence(1, 1 + id % 2) uneven, array(id, -id) even, if(id = 7, null, 1) holes,
        array(cast(id as decimal(5, 2)), 0.5bd) prices from range(50)"""
    frame, store = session.sql(query), LocalStore(tmp_path)
    columns = prepare.columns_of(frame, {"feature_cols": ["id"]}, True, False)
    written = prepare.write(frame, store, columns, 2)
    assert [column.name for column in written.columns] == ["id", "even", "prices"]
    found = rows_of(store, written, written.train)
    order = found["id"].argsort()
    assert found["id"][order].tolist() == list(range(50))
    assert written.rows == 50
    assert found["even"][order][3].tolist() == [3, -3]
    assert found["prices"][order][3].tolist() == [3.0, 0.5]
    assert found["prices"].dtype == "float64"


def test_the_frame_is_computed_once(session, tmp_path):
    from pyspark.sql import functions as F

    seen = session.sparkContext.accumulator(0)
    count = F.udf(lambda number: seen.add(1) or number, "long")
    write(session.range(40).select(count("id").alias("id")), LocalStore(tmp_path), ["id"], validation=0.5)
    assert seen.value == 40


def test_unsupported_rows_are_reported_without_leftovers(session, tmp_path):
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F

    store = LocalStore(tmp_path)
    frames = {
        "column 'x' must not have nulls, got 1 in 3 rows": "select explode(array(1.0, null, 2.0)) x",
        "column 'x' must have arrays .*, got 1 and 2 elements": "select explode(array(array(1), array(1, 2))) x",
        "column 'x' must not have nulls in its arrays, got 1": "select array(1, null) x",
        "no rows to train with": "select 1 x where false",
        r"validation=0.5 leaves no rows|no rows to train with .*validation=0.5": "select 1 x",
    }
    for message, query in frames.items():
        with pytest.raises(ValueError, match=message):
            write(session.sql(query), store, ["x"], validation=0.5 if "validation" in message else None)
    vectors = session.sql("select explode(array(array(1.0, 2.0), null)) x")
    vectors = vectors.select(F.when(F.col("x").isNotNull(), array_to_vector("x")).alias("x"))
    for sparse in (False, True):
        with pytest.raises(ValueError, match="column 'x' must not have nulls, got 1 in 2 rows"):
            write(vectors, store, ["x"], sparse=sparse)
    with pytest.raises(ValueError, match="no rows to train with"):
        write(vectors.filter("false"), store, ["x"])
    with pytest.raises(
        ValueError, match="validation must be a fraction or name a column of the DataFrame, 'x', got 'held'"
    ):
        prepare.check_validation(session.sql("select 1 x"), "held")
    with pytest.raises(ValueError, match="validation: column 'x' must have booleans or numbers, got string"):
        prepare.check_validation(session.sql("select 'a' x"), "x")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotWritableError, match="cannot be written"):
        write(session.sql("select 1 x"), LocalStore(tmp_path / "file"), ["x"])
