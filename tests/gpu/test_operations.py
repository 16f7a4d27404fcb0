"""Every operation on GPU tensors gives the same bits as on CPU tensors, in place and not."""

import ctypes
import os
import threading

import pytest
import torch

import horovod.torch as hvd
from tests.gpu.device import DEVICE, SIMULATED, gpu, same_bits, values

SIZES = [1, 2, 4]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int32, torch.int64]
SHAPES = [(), (1,), (7,), (0,), (3, 5), (2, 0), (1023,), (4, 257)]


def filled(shape, dtype, seed=0):
    """Return values that differ between ranks; sums of integers do not overflow."""
    generator = torch.Generator(device="cpu").manual_seed(1000 * seed + hvd.rank())
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator, device="cpu").bool()
    return torch.randint(0, 20, shape, generator=generator, device="cpu").to(dtype)


def both(call, name, *tensors, **options):
    """Call with tensors on the CPU and on the GPU, and compare the results."""
    expected = call(*tensors, name=f"{name}.cpu", **options)
    got = call(*map(gpu, tensors), name=f"{name}.gpu", **options)
    assert same_bits(values(got), expected), (name, values(got), expected)


def every_dtype(dtypes, shapes=SHAPES):
    for dtype in dtypes:
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            if op is hvd.Average and not dtype.is_floating_point:
                continue
            for number, shape in enumerate(shapes):
                name = f"{dtype}.{op}.{number}"
                source = filled(shape, dtype, number)
                both(hvd.allreduce, name, source, op=op)
                expected = hvd.allreduce(source, op=op, name=f"{name}.cpu")
                on_gpu = gpu(source)
                assert hvd.allreduce_(on_gpu, op=op, name=f"{name}.in_place") is on_gpu
                assert same_bits(values(on_gpu), expected), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtypes", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_every_dtype(ranks, size, dtypes):
    ranks(size).run(every_dtype, dtypes)


def large():
    for dtype in (torch.float32, torch.bfloat16):
        for count in ((1 << 20) - 1, 1 << 20, (5 << 20) + 3):  # around the size of a 4 MiB piece, and several pieces
            source = torch.arange(count, device="cpu").remainder(251).to(dtype) + hvd.rank()
            both(hvd.allreduce, f"large.{dtype}.{count}", source, op=hvd.Average)
    both(hvd.broadcast, "large.b", torch.full((3 << 20,), float(hvd.rank()), device="cpu"), root_rank=hvd.size() - 1)


@pytest.mark.parametrize("size", SIZES)
def test_large(ranks, size):
    ranks(size).run(large)


def scaled():
    for dtype in FLOATS:
        source = filled((33,), dtype)
        both(hvd.allreduce, f"scaled.{dtype}", source, op=hvd.Sum, prescale_factor=1 / 3, postscale_factor=0.7)


def gathers_and_scatters(dtypes=(*FLOATS, *INTEGERS, torch.bool)):
    n, me = hvd.size(), hvd.rank()
    for dtype in dtypes:
        both(hvd.allgather, f"gather.{dtype}", filled((me, 3), dtype))  # rank 0 has no row
        both(hvd.allgather, f"gather2.{dtype}", filled((2,), dtype))
        both(hvd.broadcast, f"broadcast.{dtype}", filled((5,), dtype), root_rank=n - 1)
        on_gpu = gpu(filled((4, 2), dtype))
        assert hvd.broadcast_(on_gpu, 0, name=f"b_.{dtype}") is on_gpu
        assert same_bits(values(on_gpu), hvd.broadcast(filled((4, 2), dtype), 0, name=f"b.{dtype}"))
        splits = [(me + r) % 3 for r in range(n)]
        source = filled((sum(splits), 2), dtype)
        expected, counts = hvd.alltoall(source, splits=splits, name=f"a.cpu.{dtype}")
        got, on_gpu = hvd.alltoall(gpu(source), splits=splits, name=f"a.gpu.{dtype}")
        assert same_bits(values(got), expected)
        assert on_gpu.tolist() == counts.tolist()
        if dtype is not torch.bool:
            for op in (hvd.Sum, hvd.Average) if dtype.is_floating_point else (hvd.Sum,):
                both(hvd.reducescatter, f"scatter.{dtype}.{op}", filled((2 * n + 1, 3), dtype), op=op)


@pytest.mark.parametrize("size", SIZES)
def test_scaled_and_moved_arrays(ranks, size):
    ranks(size).run(scaled)
    ranks(size).run(gathers_and_scatters)


def grouped():
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.int32]
    sources = [filled((4 + i, 3), dtype, i) for i, dtype in enumerate(dtypes)]
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        options = {} if call is hvd.grouped_allgather else {"op": hvd.Sum}
        expected = call(sources, name=f"{call.__name__}.cpu", **options)
        got = call([gpu(t) for t in sources], name=f"{call.__name__}.gpu", **options)
        assert all(same_bits(values(g), e) for g, e in zip(got, expected, strict=True)), call.__name__
    on_gpu = [gpu(t) for t in sources]
    hvd.grouped_allreduce_(on_gpu, name="in_place", op=hvd.Max)
    expected = hvd.grouped_allreduce(sources, name="not_in_place", op=hvd.Max)
    assert all(same_bits(values(t), e) for t, e in zip(on_gpu, expected, strict=True))


def compressed():
    source = filled((300,), torch.float32)
    for name in ("none", "fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"):
        both(hvd.allreduce, name, source, op=hvd.Average, compression=getattr(hvd.Compression, name))


def adasum():
    for dtype in (torch.float32, torch.float64):
        both(hvd.allreduce, f"adasum.{dtype}", filled((50,), dtype), op=hvd.Adasum)


def steps():
    """A schedule forms, breaks and forms again; some tensors are on the CPU."""
    n = hvd.size()
    for step in range(30):
        count = 8 if step < 20 else 5
        handles = [
            hvd.allreduce_async(gpu(torch.full((100 + i,), float(step + i))), op=hvd.Sum, name=f"s{i}")
            for i in range(count)
        ]
        beside = hvd.allreduce_async(torch.full((3,), 1.0), op=hvd.Sum, name="cpu")
        for i, handle in enumerate(handles):
            assert values(hvd.synchronize(handle)).tolist() == [float(n * (step + i))] * (100 + i)
        assert hvd.synchronize(beside).tolist() == [float(n)] * 3
    unnamed = [hvd.allreduce_async(gpu(torch.full((4,), float(i))), op=hvd.Sum) for i in range(30)]
    assert [values(hvd.synchronize(h))[0].item() for h in unnamed] == [float(n * i) for i in range(30)]
    handle = hvd.allreduce_async_(gpu(torch.ones(5)), op=hvd.Sum, name="polled")
    while not hvd.poll(handle):
        pass
    assert values(hvd.synchronize(handle)).tolist() == [float(n)] * 5


@pytest.mark.parametrize("completion", ["1", "0"])
@pytest.mark.parametrize("size", SIZES)
def test_groups_compression_adasum_and_steps(ranks, size, completion):
    job = ranks(size, HOROVOD_ENABLE_ASYNC_COMPLETION=completion)
    for part in (grouped, compressed, adasum, steps):
        job.run(part)


def sets():
    me = hvd.rank()
    odd, even = hvd.add_process_set([1, 3]), hvd.add_process_set([0, 2])
    own = odd if me % 2 else even
    for step in range(5):
        total = hvd.allreduce(gpu(torch.full((6,), float(me))), op=hvd.Sum, name=f"set.{step}", process_set=own)
        assert values(total).tolist() == [4.0 if me % 2 else 2.0] * 6
        summed = hvd.allreduce(gpu(torch.full((6,), float(me))), op=hvd.Sum, name=f"all.{step}")
        assert values(summed).tolist() == [6.0] * 6
    got = hvd.allgather(gpu(torch.tensor([me])), name="set.gather", process_set=own)
    assert values(got).tolist() == ([1, 3] if me % 2 else [0, 2])
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


def joined():
    for i in range(1 + hvd.rank()):
        total = hvd.allreduce(gpu(torch.ones(9)), op=hvd.Sum, name=f"j{i}")
        assert values(total).tolist() == [float(hvd.size() - i)] * 9
    assert hvd.join() == hvd.size() - 1
    assert values(hvd.allreduce(gpu(torch.ones(2)), op=hvd.Sum)).tolist() == [float(hvd.size())] * 2


def mistakes():
    if DEVICE == "cuda":
        with pytest.raises(hvd.HorovodInternalError, match=r"device of the tensor: CUDA GPU on rank 0.*CPU on rank 1"):
            hvd.allreduce(gpu(torch.ones(2)) if hvd.rank() == 0 else torch.ones(2), name="x")
    shape = (2 + hvd.rank(),)
    with pytest.raises(hvd.HorovodInternalError, match="shape"):
        hvd.allreduce(gpu(torch.ones(shape)), name="y")
    with pytest.raises(ValueError, match=r"the tensor must be on .*, got device meta"):
        hvd.allreduce(torch.ones(2, device="meta"), name="z")
    assert values(hvd.allreduce(gpu(torch.ones(2)), op=hvd.Sum, name="x")).tolist() == [float(hvd.size())] * 2


def test_process_sets_join_and_mistakes(ranks):
    job = ranks(4, HOROVOD_DYNAMIC_PROCESS_SETS="1")
    for part in (sets, joined, mistakes):
        job.run(part)


def views():
    n, me = hvd.size(), hvd.rank()
    whole = torch.arange(60.0, device=DEVICE).reshape(6, 10) + me
    host = torch.arange(60.0).reshape(6, 10) * n + n * (n - 1) / 2
    for name, view in {"rows": lambda t: t[1:4], "odd": lambda t: t.flatten()[1:8]}.items():
        assert torch.equal(hvd.allreduce(view(whole), op=hvd.Sum, name=name).cpu(), view(host)), name
    with pytest.raises(ValueError, match="must be contiguous"):
        hvd.allreduce(whole.t(), name="turned")
    part = whole[2:5]
    hvd.allreduce_(part, op=hvd.Sum, name="in place")
    expected = whole.new_tensor(host[2:5].tolist())
    assert torch.equal(whole[2:5], expected)
    assert whole[0, 0].item() == me


@pytest.mark.parametrize("size", [1, 2])
def test_views(computing, size):
    computing(size).run(views)


def thread_state_is_unchanged():
    """Each call restores the driver's context and capture mode of its thread."""
    driver = ctypes.CDLL(os.environ.get("HOROVOD_CUDA_LIBRARY", "libcuda.so.1"))
    x = gpu(torch.ones(1000))
    failures = []

    def seen():
        context, mode = ctypes.c_void_p(), ctypes.c_int(2)
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0
        found = mode.value
        assert driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)) == 0  # restored
        return context.value, found

    def check(name):
        try:
            for _ in range(20):
                before = seen()
                handle = hvd.allreduce_async_(x, name=name)
                submitted = seen()
                hvd.synchronize(handle)
                assert before == submitted == seen()
        except BaseException as error:
            failures.append(error)

    def in_a_thread():
        torch.cuda.synchronize()  # makes PyTorch set the thread's context
        check("thread")

    check("main")
    if not SIMULATED:
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
    assert not failures, failures
    assert values(x).tolist() == [1.0] * 1000


@pytest.mark.skipif(DEVICE == "cpu", reason="the CPU has no streams")
@pytest.mark.parametrize("size", [1, 2])
def test_thread_settings_are_unchanged(ranks, size):
    ranks(size).run(thread_state_is_unchanged)


def parameters():
    state = {"there": gpu(torch.full((3,), float(hvd.rank()))), "here": torch.full((2,), float(hvd.rank()))}
    hvd.broadcast_parameters(state, root_rank=1)
    assert values(state["there"]).tolist() == [1.0] * 3
    assert state["here"].tolist() == [1.0] * 2
    return hvd.broadcast_object({"a": hvd.rank()}, root_rank=1)


def test_parameters_of_both(ranks):
    assert ranks(2).run(parameters) == [{"a": 1}] * 2
