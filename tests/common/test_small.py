"""ops, dtypes, exceptions, util, process sets and objects: parts that need no engine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from horovod.common import compression, dtypes, exceptions, ops, util
from horovod.common.process_sets import ProcessSet

ROOT = Path(dtypes.__file__).parents[3]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_reducescatter_splits_rows_like_numpy(size):
    for rows in range(16):
        expected = [len(part) for part in np.array_split(np.zeros(rows), size)]
        assert [ops.scattered_rows(rows, rank, size) for rank in range(size)] == expected


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ([1, 1, 1], "splits must have 2 entries, .*, got 3"),
        ([3, -1], r"splits must be integers of 0 or more, got \[3, -1\]"),
        ([2, 3], r"the sum of splits must be at most 4, .*, got 5 from \[2, 3\]"),
    ],
)
def test_splits_that_do_not_fit(counts, why):
    ops.check_splits("alltoall.x", [1, 2], 4, 2)
    with pytest.raises(ValueError, match=rf"alltoall\.x: {why}"):
        ops.check_splits("alltoall.x", counts, 4, 2)


def test_average_next_to_op():
    assert ops.resolve_op(None) == ops.Average
    assert ops.resolve_op(ops.Max) == ops.Max
    with pytest.warns(DeprecationWarning, match="average"):
        assert ops.resolve_op(None, True) == ops.Average
    with pytest.warns(DeprecationWarning, match="average"):
        assert ops.resolve_op(None, False) == ops.Sum
    with pytest.raises(ValueError, match="average=True and op=Sum"):
        ops.resolve_op(ops.Sum, True)
    assert type(ops.resolve_op(np.int64(ops.Sum))) is int
    assert ops.check_op(np.int64(ops.Sum), (ops.Average, ops.Sum)) == ops.Sum
    for bad in (6, -1, "sum", 1.0, True, np.int64(6), np.bool_(True)):
        with pytest.raises(ValueError, match="op must be"):
            ops.resolve_op(bad)
    with pytest.raises(ValueError, match="op must be one of Average, Sum, got Min"):
        ops.check_op(ops.Min, (ops.Average, ops.Sum))


def test_wire_formats_are_for_sums_of_float32():
    wire = compression.WireInt8Compressor
    for op in (ops.Average, ops.Sum):
        assert compression.check_wire(wire, np.zeros(1, np.float32), op, "x") == wire.wire_format
    with pytest.raises(ValueError, match="x: op must be Average or Sum with compression=WireInt8Compressor, got Max"):
        compression.check_wire(wire, np.zeros(1, np.float32), ops.Max, "x")
    with pytest.raises(ValueError, match="the dtype must be float32 with compression=WireInt8Compressor, got float64"):
        compression.check_wire(wire, np.zeros(1), ops.Sum, "x")


def test_reductions_agree_with_the_core():
    assert (ops.Average, ops.Sum, ops.Adasum, ops.Min, ops.Max, ops.Product) == (0, 1, 2, 3, 4, 5)
    assert (ROOT / "core/base/reduce_op_table.h").read_text() == ops.generate_header()
    assert [getattr(ops, name) for name in ops.OP_NAMES] == list(range(len(ops.OP_NAMES)))


def test_dtype_codes_agree_with_the_core():
    assert (ROOT / "core/base/dtype_table.h").read_text() == dtypes.generate_header()
    assert {name: getattr(dtypes, name.upper()) for name in dtypes.NAMES} == dtypes.CODES


def test_exceptions():
    assert issubclass(exceptions.HorovodInternalError, RuntimeError)
    assert exceptions.HostsUpdatedInterrupt(True).skip_sync is True
    error = exceptions.HorovodVersionMismatchError("torch", "2.1", "2.2")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.1", "2.2")
    assert str(error) == exceptions.get_version_mismatch_message("torch", "2.1", "2.2")


def test_process_set_takes_any_sequence_of_ranks():
    for ranks in ([2, 0], range(0, 3, 2), reversed([0, 2]), (0, 2), {0, 2}):
        assert ProcessSet(ranks).ranks == [0, 2]
    numpy = pytest.importorskip("numpy")
    assert ProcessSet(numpy.array([2, 0])).ranks == [0, 2]


@pytest.mark.parametrize("bad", [3, None, "01", [0, 0], [-1], [0.5], [True, False], ["0"]])
def test_process_set_refuses_other_values(bad):
    with pytest.raises(ValueError, match="ProcessSet"):
        ProcessSet(bad)


def test_env_restores_everything(monkeypatch):
    monkeypatch.setenv("HVD_A", "1")
    monkeypatch.delenv("HVD_B", raising=False)

    def fail():
        with util.env(HVD_A=None, HVD_B="2"):
            assert "HVD_A" not in os.environ
            assert os.environ["HVD_B"] == "2"
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert os.environ["HVD_A"] == "1"
    assert "HVD_B" not in os.environ


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_package_imports_alone():
    """``import horovod`` imports no framework, engine or launcher."""
    code = (
        "import sys, horovod; print(horovod.__version__); "
        "print(sorted(m for m in sys.modules if m.startswith(('horovod.', 'torch', 'numpy', 'zmq'))))"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    names = ["horovod._absent", "horovod._version"]
    assert done.stdout.splitlines()[1] == str(names)


def test_capability_queries_start_no_engine():
    code = (
        "from horovod.common.basics import HorovodBasics; import sys; b = HorovodBasics('x'); "
        "print(b.gloo_built(), b.gloo_enabled(), b.mpi_enabled(), b.ddl_built(), b.ccl_built(), b.rocm_built(), "
        "b.is_initialized(), 'horovod._core' in sys.modules); b.mpi_built(), b.nccl_built(), b.cuda_built()"
    )
    done = run_python(code)
    assert done.stdout.split() == ["True", "True", "False", "False", "False", "False", "False", "False"], done.stderr
