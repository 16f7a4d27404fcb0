"""Accepted array types, and the types of results."""

import array
import ctypes

import ml_dtypes
import numpy as np
import pytest

import horovod.numpy as hvd
from tests.numpy.reference import assert_same
from tests.ranks import on_ranks


class Interface:
    """An object with the array interface."""

    def __init__(self, inner):
        self.inner = inner
        self.__array_interface__ = inner.__array_interface__


class DLPack:
    """An object with DLPack only."""

    def __init__(self, inner):
        self.inner = inner

    def __dlpack__(self, **kwargs):
        return self.inner.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.inner.__dlpack_device__()


class Frame:
    """An object that converts to an array, like a column of a table."""

    def __array__(self, dtype=None, copy=None):
        return np.arange(3.0)


def forms():
    """Return {name: (a new object over [0, 1, 2] as float32, its current values)}."""
    floats = [0.0, 1.0, 2.0]
    return {
        "numpy": lambda: np.array(floats, np.float32),
        "interface": lambda: Interface(np.array(floats, np.float32)),
        "dlpack": lambda: DLPack(np.array(floats, np.float32)),
        "array": lambda: array.array("f", floats),
        "memoryview": lambda: memoryview(np.array(floats, np.float32)),
        "ctypes": lambda: (ctypes.c_float * 3)(*floats),
    }


def content(array):
    return np.array(getattr(array, "inner", array)).tolist()


@on_ranks(2)
def test_forms():
    for make in forms().values():
        for handle in (hvd.allreduce_async(make(), op=hvd.Sum), hvd.broadcast_async(make(), 0)):
            assert type(handle.result()) is np.ndarray
        assert_same(hvd.allreduce(make(), op=hvd.Sum), np.array([0, 2, 4], np.float32))
        value = make()
        assert hvd.allreduce_(value, op=hvd.Sum) is value
        assert content(value) == [0, 2, 4]
        (again,) = hvd.grouped_allreduce_([value], op=hvd.Sum)
        assert again is value
        assert content(value) == [0, 4, 8]
        if hvd.rank() == 1:
            value = make()
        assert hvd.broadcast_(value, 1) is value
        assert content(value) == [0, 1, 2]
    data = bytearray(b"\x01\x02")
    assert hvd.allreduce_(data, op=hvd.Sum) is data
    assert data == b"\x02\x04"
    assert hvd.allreduce(b"\x01\x02", op=hvd.Sum).tolist() == [2, 4]
    assert hvd.allreduce(Frame(), op=hvd.Sum).tolist() == [0, 2, 4]
    for number, kind in ((0.5, "float64"), (3, "int64"), (np.float32(2), "float32"), (True, "bool")):
        result = hvd.allreduce(number, op=hvd.Sum)
        assert (result.shape, result.dtype.name) == ((), kind)
        assert result == np.asarray(2 * number).astype(kind)


def frameworks():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0).reshape(2, 3)
    assert hvd.allreduce(tensor, op=hvd.Sum).tolist() == [[0, 2, 4], [6, 8, 10]]
    turned = tensor.T
    assert hvd.allreduce_(turned, op=hvd.Sum) is turned
    assert tensor.tolist() == [[0, 2, 4], [6, 8, 10]]
    with pytest.raises(ValueError, match=r"allreduce\.x on rank \d: .* must be .*, got a torch.*requires? grad"):
        hvd.allreduce(torch.ones(3, requires_grad=True), name="x")


@pytest.mark.heavy
def test_tensors_of_pytorch(pool):
    pytest.importorskip("torch")
    pool(2).run(frameworks)


@on_ranks(2)
def test_view_with_repeated_elements():
    """NumPy makes such a view read-only; test_random_arrays.py covers other layouts."""
    view = np.broadcast_to(np.arange(12.0)[:, None], (12, 3))
    assert_same(hvd.allreduce(view, op=hvd.Sum), 2 * np.array(view, order="C"))
    assert_same(hvd.allgather(view), np.concatenate([view, view]))


REFUSED = {
    "big endian": (
        lambda: np.ones(3, ">f4"),
        r"must have this machine's byte order, got dtype >f4.*astype\('float32'\)",
    ),
    "complex": (lambda: np.ones(3, complex), r"dtype must be one of uint8.*, got complex128"),
    "text": (lambda: np.array(["a"]), r"dtype must be one of .*, got str"),
    "objects": (lambda: np.array([None]), r"dtype must be one of .*, got object"),
    "time": (lambda: np.zeros(2, "M8[s]"), r"dtype must be one of .*, got datetime64\[s\]"),
    "record": (lambda: np.zeros(2, [("a", "f4")]), r"dtype must be one of .*, got void32"),
    "empty record": (lambda: np.zeros(2, []), r"dtype must be one of .*, got void"),
    "float8": (lambda: np.zeros(2, ml_dtypes.float8_e4m3fn), r"dtype must be one of .*, got float8_e4m3fn"),
    "uint32": (lambda: np.zeros(2, np.uint32), r"dtype must be one of .*, got uint32"),
    "masked": (lambda: np.ma.ones(3), "mask would be lost"),
    "list": (lambda: [1.0, 2.0], r"must be a NumPy array, .*, got a list"),
    "str": (lambda: "abc", r"must be a NumPy array, .*, got a str"),
    "none": (lambda: None, r"must be a NumPy array, .*, got a NoneType"),
    "object": (object, r"must be a NumPy array, .*, got a object"),
    "unknown format": (lambda: (ctypes.c_wchar * 2)(), r"got str|must be a NumPy array"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_arguments(single, case):
    make, text = REFUSED[case]
    hvd.allreduce_(np.ones(2), name="x")  # The calls below must not be taken for a repetition of this one.
    for call in (hvd.allreduce, hvd.allreduce_, hvd.allreduce_async, hvd.reducescatter):
        with pytest.raises(ValueError, match=rf"(allreduce|reducescatter)\.x on rank 0: .*{text}"):
            call(make(), name="x")
    with pytest.raises(ValueError, match=rf"grouped_allreduce\.x.* on rank 0: .*{text}"):
        hvd.grouped_allreduce([np.ones(2), make()], name="x")
    assert hvd.allreduce(np.ones(2), name="x").tolist() == [1, 1]


def test_in_place_operations_need_writable_memory(single):
    fixed = np.ones(3)
    fixed.flags.writeable = False
    for value in (fixed, b"ab", 3.0, np.float32(3), memoryview(b"ab"), Frame()):
        for call in (hvd.allreduce_, hvd.allreduce_async_, lambda x, name: hvd.broadcast_(x, 0, name=name)):
            with pytest.raises(ValueError, match=r"\.x on rank 0: .*(changed in place|must be a NumPy array)"):
                call(value, name="x")
    assert fixed.tolist() == [1, 1, 1]
