import io

import pytest

import horovod.spark
from horovod.spark import job
from tests.later import need


def test_errors_without_a_spark_context(monkeypatch):
    need("pyspark")
    import pyspark

    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)  # left by earlier tests
    with pytest.raises(RuntimeError, match="no active SparkContext"):
        horovod.spark.run(print)
    with pytest.raises(RuntimeError, match="no active SparkContext"):
        horovod.spark.run_elastic(print)


def test_mpi_is_refused():
    with pytest.raises(ValueError, match="use_mpi must be False, got True"):
        horovod.spark.run(print, use_mpi=True)
    with pytest.raises(ValueError, match="extra_mpi_args must be None, got '-x'"):
        horovod.spark.run(print, extra_mpi_args="-x")


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True])
def test_counts(value):
    with pytest.raises(ValueError, match=rf"num_proc must be .* got {value!r}"):
        job.count("num_proc", value, 3)
    assert job.count("num_proc", None, 3) == 3


def test_the_start_timeout(monkeypatch):
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT", raising=False)
    assert job.start_timeout_of(None) == 600
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "7")
    assert job.start_timeout_of(None) == 7
    assert job.start_timeout_of(3) == 3
    for value in (0, -1, float("inf"), float("nan"), 10**400, "3", True):
        with pytest.raises(ValueError, match=rf"start_timeout must be a finite number .*, got {value!r}"):
            job.start_timeout_of(value)
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "soon")
    with pytest.raises(ValueError, match=r"HOROVOD_SPARK_START_TIMEOUT must be .*, got 'soon'"):
        job.start_timeout_of(None)


def options(**changes):
    values = dict.fromkeys(("env", "stdout", "stderr", "nics")) | {"verbose": 1, "timestamp": False, "timeout": 1.0}
    return job.job_options(**{**values, **changes})


def test_streams_and_variables(tmp_path):
    assert options(stdout=io.StringIO(), env={"A": "b"}, nics={"lo", "eth0"}).nics == ["eth0", "lo"]
    assert options(nics="eth0,lo").nics == ["eth0", "lo"]
    with open(tmp_path / "out", "wb") as file, pytest.raises(TypeError, match="stderr must be a text stream"):
        options(stderr=file)
    for name, value, message in (
        ("stdout", "path", "stdout must be a text stream, .*, got 'path'"),
        ("stdout", io.BytesIO(), "stdout must be a text stream.*, got .*BytesIO"),
        ("env", {"A": 1}, "env must map strings to strings, got 'A': 1"),
        ("env", ["A=b"], r"env must be a mapping of strings to strings, got \['A=b'\]"),
    ):
        with pytest.raises(TypeError, match=message):
            options(**{name: value})
    for value in ([1], 5):
        with pytest.raises(ValueError, match="nics must be"):
            options(nics=value)
