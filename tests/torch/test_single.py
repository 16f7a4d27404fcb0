"""One process without a launcher: everything works, and collectives return their input unchanged."""

import warnings

import pytest
import torch

import horovod.torch as hvd
from tests.torch.reference import ALL, SHAPES, same_bits

pytestmark = pytest.mark.usefixtures("single")


def odd_values(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Return values that a needless conversion, sum or scaling would change.

    NaN payloads, denormals, signed zeros, extremes.
    """
    generator = torch.Generator().manual_seed(7)
    count = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 256, (count,), generator=generator, dtype=torch.int64).to(torch.uint8)
    if dtype is torch.bool:
        return (raw % 2).bool().view(shape)
    return raw.view(dtype).view(shape)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_collective_is_a_no_op(dtype):
    for shape in SHAPES:
        no_op(odd_values(dtype, shape))


def no_op(t):
    before = t.clone()
    ops = [hvd.Sum, hvd.Min, hvd.Max, hvd.Product] + ([] if t.dtype is torch.bool else [hvd.Average])
    for op in ops:
        assert same_bits(hvd.allreduce(t, op=op), before)
        assert same_bits(hvd.allreduce_(t, op=op, name="x"), before)
        assert all(same_bits(a, before) for a in hvd.grouped_allreduce([t, t.clone()], op=op))
    assert same_bits(hvd.broadcast(t, 0), before)
    assert same_bits(hvd.broadcast_(t, 0), before)
    if t.dim():
        assert same_bits(hvd.allgather(t), before)
        assert same_bits(hvd.grouped_allgather([t])[0], before)
        assert same_bits(hvd.alltoall(t), before)
        output, received = hvd.alltoall(t, splits=[len(t)])
        assert same_bits(output, before)
        assert received.tolist() == [len(t)]
        if t.dtype is not torch.bool:
            for op in (hvd.Sum, hvd.Average):
                assert same_bits(hvd.reducescatter(t, op=op), before)
                assert same_bits(hvd.grouped_reducescatter([t], op=op)[0], before)


def test_handles():
    t = torch.ones(4)
    handle = hvd.allreduce_async(t, name="h")
    assert isinstance(handle, int)
    result = hvd.synchronize(handle)
    assert result.tolist() == [1, 1, 1, 1]
    assert hvd.synchronize(handle) is None
    with pytest.raises(ValueError, match=str(handle)):
        hvd.poll(handle)
    handle = hvd.alltoall_async(t)
    output, received = hvd.synchronize(handle)
    assert output.tolist() == t.tolist()
    assert received.dtype is torch.int32
    handle = hvd.grouped_allreduce_async_([t, t.clone()], op=hvd.Sum)
    while not hvd.poll(handle):
        pass
    assert hvd.poll(handle)
    assert hvd.synchronize(handle)[0] is t


def test_shutdown_forgets_handles_and_init_works_again():
    handle = hvd.allreduce_async_(torch.ones(4), name="h")
    hvd.shutdown()
    assert hvd.synchronize(handle) is None
    with pytest.raises(hvd.HorovodInternalError, match=r"shut ?down|shut down"):
        hvd.allreduce_(torch.ones(2))
    with pytest.raises(ValueError, match="init"):
        hvd.rank()
    hvd.init()
    assert hvd.allreduce_(torch.ones(2)).tolist() == [1, 1]


def test_average_argument():
    t = torch.ones(2)
    with pytest.raises(ValueError, match=r"average.*op"):
        hvd.allreduce(t, average=True, op=hvd.Sum)
    with pytest.warns(DeprecationWarning, match="average"):
        hvd.allreduce(t, average=True)
    with pytest.warns(DeprecationWarning, match="average"):
        hvd.allreduce_(t, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hvd.allreduce(t)


def calls_with(t):
    good = torch.ones(4)
    return [
        lambda: hvd.allreduce(t, op=hvd.Sum),
        lambda: hvd.allreduce_(t, op=hvd.Sum),
        lambda: hvd.allreduce_async(t, op=hvd.Sum),
        # Every member of the group is checked before any is submitted.
        lambda: hvd.grouped_allreduce([good, t], op=hvd.Sum),
        lambda: hvd.grouped_allreduce_([good, t], op=hvd.Sum),
        lambda: hvd.grouped_allgather([good, t]),
        lambda: hvd.grouped_reducescatter([good, t]),
        lambda: hvd.allgather(t),
        lambda: hvd.broadcast(t, 0),
        lambda: hvd.broadcast_(t, 0),
        lambda: hvd.alltoall(t),
        lambda: hvd.reducescatter(t),
    ]


def negated() -> torch.Tensor:
    """Return -2 and 3, stored as 2 and -3: contiguous and real, but read through a lazy negation."""
    view = torch.view_as_real(torch.tensor([1 + 2j, 1 - 3j]))[:, 1].contiguous()
    return torch._neg_view(view)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(4, dtype=torch.complex64), "complex64"),
        (torch.zeros(4, dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (torch.ones(4, 6).t(), "contiguous"),
        (torch.eye(4).to_sparse(), "sparse"),
        (torch.ones(4, device="meta"), "device meta"),
        (negated(), r"resolve_neg\(\)"),
        ([1.0, 2.0], "list"),
    ],
    ids=["complex", "float8", "turned", "sparse", "meta", "negated", "list"],
)
def test_refused_tensors(tensor, text):
    for call in calls_with(tensor):
        with pytest.raises(ValueError, match=text):
            call()


def test_bool_reductions():
    t = torch.tensor([True, False])
    for op, name in ((hvd.Average, "Average"), (None, "Average")):
        with pytest.raises(ValueError, match=f"bool, got op={name}"):
            hvd.allreduce(t, op=op)
    with pytest.raises(ValueError, match=r"Sum.*bool"):
        hvd.allreduce_(t, op=hvd.Sum, prescale_factor=2.0)
    with pytest.raises(ValueError, match="bool"):
        hvd.reducescatter(t, op=hvd.Sum)
    with pytest.raises(ValueError, match=r"bool"):
        hvd.grouped_allreduce([torch.ones(2), t])


def test_wrong_roots_and_scalars():
    with pytest.raises(ValueError, match="scalar"):
        hvd.reducescatter(torch.tensor(1.0))
    with pytest.raises(ValueError, match="root_rank"):
        hvd.broadcast(torch.ones(4), "zero")


def test_splits():
    t = torch.ones(4, 2)
    for splits, text in [
        ([1, 2], "1"),
        ([5], "4"),
        ([-1], "0 or more"),
        (torch.tensor([[4]], dtype=torch.int32), "dimension"),
        (torch.tensor([4], dtype=torch.int16), "int32"),
        (torch.tensor([4.0]), "int32"),
        ([1.5], "integers"),
        ("4", "integers"),
    ]:
        with pytest.raises(ValueError, match=text):
            hvd.alltoall(t, splits=splits)
    output, received = hvd.alltoall(t, splits=torch.tensor([3], dtype=torch.int32))
    assert output.shape == (3, 2)
    assert received.tolist() == [3]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": "Sum"}, "op must be .*, got 'Sum'"),
        ({"op": 2.0}, "op must be .*, got 2.0"),
        ({"op": 1.0}, "op must be .*, got 1.0"),
        ({"op": True}, "op must be .*, got True"),
        ({"prescale_factor": "2"}, "prescale_factor must be .*, got '2'"),
        ({"postscale_factor": None}, "postscale_factor must be .*, got None"),
        ({"prescale_factor": float("nan")}, "prescale_factor must be .*, got nan"),
        ({"name": 5}, "name must be .*, got 5"),
    ],
)
def test_bad_arguments_are_named(arguments, text):
    t = torch.ones(2)
    for call in (
        hvd.allreduce_,
        hvd.allreduce,
        hvd.allreduce_async,
        hvd.allreduce_async_,
        hvd.reducescatter,
        lambda t, **kw: hvd.grouped_allreduce([t], **kw),
        lambda t, **kw: hvd.grouped_reducescatter([t], **kw),
    ):
        with pytest.raises(ValueError, match=text):
            call(t, **arguments)
