"""Arrays of other libraries as arguments: no copies, and results are of the same library."""

import types

import numpy as np
import pytest
import torch

import horovod.torch as hvd
from horovod.torch.ops import devices
from tests.ranks import on_ranks


class Array:
    """An array with DLPack, as the array API standard requires."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __dlpack__(self, **_):
        return self.values.__dlpack__()

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=lambda other: type(self)(np.from_dlpack(other)))


@on_ranks(1, 2)
def test_every_call():
    n, me = hvd.size(), hvd.rank()

    def own(count=4):
        return Array(np.full(count, me + 1.0, dtype=np.float32))

    total = n * (n + 1) / 2
    for _ in range(3):  # repeats the same operations
        x = own()
        y = hvd.allreduce(x, op=hvd.Sum, name="new")
        assert type(y) is Array
        assert y.values.tolist() == [total] * 4
        assert x.values.tolist() == [me + 1.0] * 4
        assert hvd.allreduce_(x, op=hvd.Sum, name="same") is x
        assert x.values.tolist() == [total] * 4
        x = own()
        handle = hvd.allreduce_async_(tensor=x, op=hvd.Sum, name="later")
        assert hvd.synchronize(handle) is x
        assert x.values.tolist() == [total] * 4
        y = hvd.synchronize(hvd.allreduce_async(own(), op=hvd.Sum, name="new later"))
        assert type(y) is Array
        assert y.values.tolist() == [total] * 4
        coded = hvd.allreduce(own(), op=hvd.Sum, name="coded", compression=hvd.Compression.fp16)
        assert coded.values.tolist() == [total] * 4
        arrays, tensors = hvd.grouped_allreduce([own(2), torch.ones(3)], op=hvd.Sum, name="group")
        assert arrays.values.tolist() == [total] * 2
        assert tensors.tolist() == [float(n)] * 3
        first, second = own(), torch.ones(2)
        assert hvd.grouped_allreduce_([first, second], op=hvd.Sum)[0] is first
        assert first.values.tolist() == [total] * 4
        rows = hvd.allgather(own(1), name="rows")
        assert rows.values.tolist() == [r + 1.0 for r in range(n)]
        assert hvd.synchronize(hvd.grouped_allgather_async([own(1)]))[0].values.tolist() == rows.values.tolist()
        assert hvd.broadcast(own(), n - 1, name="b").values.tolist() == [float(n)] * 4
        x = own()
        assert hvd.broadcast_(x, 0, name="b_") is x
        assert x.values.tolist() == [1.0] * 4
        got, splits = hvd.alltoall(own(n), splits=[1] * n, name="a")
        assert got.values.tolist() == [r + 1.0 for r in range(n)]
        assert splits.tolist() == [1] * n
        assert hvd.alltoall(own(n), name="even").values.tolist() == got.values.tolist()
        assert hvd.reducescatter(own(n), op=hvd.Sum, name="part").values.tolist() == [total]


@pytest.mark.usefixtures("single")
def test_jax_arrays():
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(4.0)
    y = hvd.allreduce(x, op=hvd.Sum, postscale_factor=2.0)
    assert isinstance(y, jax.Array)
    assert y.tolist() == [0.0, 2.0, 4.0, 6.0]
    for call in (hvd.allreduce_, hvd.allreduce_async_, lambda a: hvd.broadcast_(a, 0)):
        with pytest.raises(ValueError, match=r"(allreduce|broadcast): a jaxlib\S* cannot be changed in place; use"):
            call(x)
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.usefixtures("single")
def test_mistakes():
    with pytest.raises(ValueError, match=r"allreduce on rank 0: the tensor must be a torch\.Tensor, got ndarray"):
        hvd.allreduce(np.ones(2))
    with pytest.raises(ValueError, match=r"allgather on rank 0: the tensor must be a torch\.Tensor, got list"):
        hvd.allgather([1, 2])
    with pytest.raises(ValueError, match=r"broadcast: cannot convert a \S*Array to a torch\.Tensor: "):
        hvd.broadcast(Array(["a"]), 0)
    with pytest.raises(ValueError, match="must be contiguous"):
        hvd.allreduce(Array(np.ones((2, 3)).T))
    with pytest.raises(TypeError):
        hvd.allgather()


class Stream:
    """A device stream that records in ``waits`` which stream waits for which."""

    def __init__(self, name, waits):
        self.name, self.waits = name, waits

    def wait_stream(self, other):
        self.waits.append((self.name, other.name))


@pytest.fixture
def waits(monkeypatch):
    """Record which streams wait for which; PyTorch's current one is called "current".

    as_tensor treats CPU memory as GPU memory and copies arrays that ``array.elsewhere`` places on another device.
    """
    noted = []
    cuda = types.SimpleNamespace(
        current_stream=lambda device: Stream("current", noted),
        default_stream=lambda device: Stream("default", noted),
        ExternalStream=lambda handle, device: Stream(handle or "any of a pool", noted),
    )
    for name, fake in vars(cuda).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "as_tensor", lambda array, device=None: array.on_device(device))
    return noted


class OnGpu:
    """An array of a library without DLPack; its memory is on the CPU here."""

    def __init__(self, stream, elsewhere="", count=3):
        self.tensor = torch.ones(count)
        self.elsewhere = elsewhere
        address = self.tensor.data_ptr() if count else 0
        self.__cuda_array_interface__ = {"version": 3, "data": (address, False), "stream": stream}

    def on_device(self, device):
        copies = self.elsewhere == "old" or (self.elsewhere == "new" and device is not None)
        return self.tensor.clone() if copies else self.tensor


@pytest.mark.usefixtures("single")
@pytest.mark.parametrize(("stream", "other"), [(None, None), (1, "default"), (77, 77)])
def test_by_cuda_array_interface(waits, stream, other):
    array = OnGpu(stream)
    there_and_back = [] if other is None else [("current", other), (other, "current")]
    assert hvd.allreduce_(array, postscale_factor=3.0) is array
    assert array.tensor.tolist() == [3.0] * 3
    assert waits == there_and_back
    handle = hvd.allreduce_async(array)
    assert waits == there_and_back + there_and_back[:1]
    assert isinstance(hvd.synchronize(handle), torch.Tensor)  # its library offers no way to import one
    assert waits == there_and_back * 2


@pytest.mark.usefixtures("single", "waits")
def test_amd_gpus_are_refused(monkeypatch):
    """PyTorch for ROCm gives its device the name of CUDA's."""
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(devices, "ADAPTERS", {})
    with pytest.raises(ValueError, match=r"must be on cpu \(AMD GPUs are not supported: send tensor.cpu\(\)\)"):
        hvd.allreduce_(OnGpu(None))
    with pytest.raises(ValueError, match=r"must be on cpu \(AMD GPUs are not .*, got device meta"):
        hvd.allreduce(torch.ones(2, device="meta"))


@pytest.mark.usefixtures("single", "waits")
def test_memory_of_another_gpu_is_used_in_place_or_refused():
    array = OnGpu(None, elsewhere="new")
    assert hvd.allreduce_(array, postscale_factor=3.0) is array
    assert array.tensor.tolist() == [3.0] * 3
    for call in (hvd.allreduce_, hvd.allreduce):
        array = OnGpu(None, elsewhere="old")
        with pytest.raises(ValueError, match=r"allreduce: cannot convert a \S*OnGpu .* of the current GPU, cpu"):
            call(array)
        assert array.tensor.tolist() == [1.0] * 3
    assert hvd.allreduce(OnGpu(None, elsewhere="old", count=0)).tolist() == []
