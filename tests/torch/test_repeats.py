"""Repeated calls take a shorter path (ops/repeats.py); changed calls must not take it."""

import copy
import os
import weakref

import pytest
import torch

import horovod.torch as hvd
from horovod.common import frontends as job
from horovod.common.basics import HorovodBasics
from horovod.torch.ops import repeats
from tests.ranks import on_ranks

FORMS = {
    "allreduce_": copy.copy(hvd.allreduce_),  # by name, like a Python function
    "allreduce": hvd.allreduce,
    "async": lambda *a, **k: hvd.synchronize(hvd.allreduce_async(*a, **k)),
    "async_": lambda *a, **k: hvd.synchronize(hvd.allreduce_async_(*a, **k)),
    "grouped": lambda t, **k: hvd.grouped_allreduce([t, copy.deepcopy(t)], **k)[1],
    "grouped_": lambda t, **k: hvd.grouped_allreduce_([t, copy.deepcopy(t)], **k)[0],
}


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype) * (hvd.rank() + 1)


def total():
    return hvd.size() * (hvd.size() + 1) / 2


@on_ranks(2)
def test_changed_calls_are_not_treated_as_repeats():
    # Each change comes after enough equal steps for a schedule, twice, and is then reverted.
    changes = [
        (lambda: ones(4), {}, total()),
        (lambda: ones(2, 2), {}, total()),
        (lambda: ones(40000), {}, total()),
        (lambda: ones(4, dtype=torch.float64), {}, total()),
        (lambda: ones(4, dtype=torch.int32), {}, total()),
        (lambda: ones(4), {"op": hvd.Max}, hvd.size()),
        (lambda: ones(4), {"op": None}, total() / hvd.size()),
        (lambda: ones(4), {"prescale_factor": 2.0}, 2 * total()),
        (lambda: ones(4), {"postscale_factor": 0.5}, total() / 2),
        (lambda: ones(()), {}, total()),
        (lambda: ones(0), {}, total()),
    ]
    for name in ("x", None):
        for form, call in FORMS.items():
            for make, arguments, expected in [*changes, *reversed(changes)]:
                for step in range(6):
                    value = make()
                    result = call(value, name=name, **{"op": hvd.Sum, **arguments})
                    case = (form, name, arguments, value.shape, value.dtype, step)
                    assert (result.shape, result.dtype) == (value.shape, value.dtype), case
                    assert bool((result == expected).all()), (case, result)
                    assert (result is value) == form.endswith("_"), case


@on_ranks(3, HOROVOD_DYNAMIC_PROCESS_SETS="1", fresh=True)
def test_process_sets():
    pair, rest = hvd.add_process_set([0, 1]), hvd.add_process_set([2])
    own = pair if hvd.rank() < 2 else rest
    for members, expected in ((own, 3.0), (hvd.global_process_set, 6.0)):
        for _ in range(8):
            assert hvd.allreduce_(ones(3), name="s", op=hvd.Sum, process_set=members).tolist() == [expected] * 3
    assert hvd.remove_process_set(pair)
    with pytest.raises(ValueError, match="must be registered with add_process_set"):
        hvd.allreduce_(ones(3), name="s", op=hvd.Sum, process_set=pair)
    again = hvd.add_process_set([1, 2])  # reuses the first set's id
    if hvd.rank() > 0:
        assert hvd.allreduce_(ones(3), name="s", op=hvd.Sum, process_set=again).tolist() == [5.0] * 3
    if hvd.rank() < 2:
        with pytest.raises(ValueError, match="must be registered with add_process_set"):
            hvd.allreduce_(ones(3), name="s", op=hvd.Sum, process_set=pair)


@on_ranks(2, fresh=True)
def test_another_engine_and_a_forked_child():
    for _ in range(2):
        for _ in range(6):
            assert hvd.allreduce_(ones(2), name="x", op=hvd.Sum).tolist() == [3.0] * 2
        assert repeats.idle
        hvd.shutdown()
        for frontend in tuple(job.state.frontends):  # the engine ends with the last frontend
            HorovodBasics(frontend).shutdown()
        assert not repeats.idle
        with pytest.raises(hvd.HorovodInternalError, match="has been shut down"):
            hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum)
        hvd.init()
    if (child := os.fork()) == 0:
        try:
            hvd.allreduce_(torch.ones(2), name="x", op=hvd.Sum)
        except hvd.HorovodInternalError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_a_lazy_negation_is_refused_after_equal_calls(single):
    numbers = torch.tensor([1 + 2j, 3 + 4j])
    tensor = torch.view_as_real(numbers).flatten()[1:3]
    for _ in range(3):
        hvd.allreduce_(tensor, name="x")
    tensor.data = numbers.conj().imag.as_strided((2,), (1,))  # the same object and address
    with pytest.raises(ValueError, match="resolve_neg"):
        hvd.allreduce_(tensor, name="x")


def test_dropped_tensors_are_released(single):
    class Tensor(torch.Tensor):
        pass

    tensor = torch.ones(3).as_subclass(Tensor)
    for _ in range(6):
        hvd.synchronize(hvd.allreduce_async_(tensor, name="x"))
    alive = weakref.ref(tensor)
    del tensor
    assert alive() is None
    assert repeats.idle["x"].engine is job.state.engine


def test_blocking_allreduce_without_a_gradient_bypasses_autograd(single):
    weight = torch.ones(3, requires_grad=True)
    assert hvd.allreduce(weight).requires_grad
    assert not hvd.allreduce(weight.detach()).requires_grad
    with torch.no_grad():
        assert not hvd.allreduce(weight).requires_grad
    hvd.allreduce(2 * weight, op=hvd.Sum).sum().backward()
    assert weight.grad.tolist() == [2.0] * 3
