"""TorchState: its contents, synchronization and restoring."""

import copy
import pickle

import pytest
import torch

import horovod.torch as hvd
from horovod.common.contract.membership import HostUpdateResult
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch.elastic.state import (
    BeforeForward,
    ModelStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)
from tests.ranks import on_ranks


def model_of(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))


@on_ranks(2)
def test_ranks_are_synchronized():
    me = hvd.rank()
    model = model_of(me)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (me + 1))
    if me == 0:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, epoch=me, extra=[me])
    state.sync()
    assert (state.epoch, state.extra, optimizer.param_groups[0]["lr"]) == (0, [0], 0.1)
    hvd.check_in_sync(model=model, optimizer=optimizer)
    # Saving and restoring repeatedly uses the same memory.
    saved = [p.clone() for p in model.parameters()]
    places = {name: t.data_ptr() for name, t in state._handlers["model"]._saved.items()}
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        state.epoch += 1
        state.restore()
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), saved, strict=True))
        assert state.epoch == 0
    state.commit()
    assert places == {name: t.data_ptr() for name, t in state._handlers["model"]._saved.items()}
    # A replaced model is committed at once.
    other = model_of(7)
    state.model = other
    with torch.no_grad():
        other[0].weight.zero_()
    state.restore()
    assert state.model is other
    assert other[0].weight.abs().sum() > 0
    # All ranks learn of changed hosts when rank 0 does.
    if me == 0:
        state.on_hosts_updated(1.0, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()


def test_objects_that_would_refer_to_a_copy_are_refused():
    class Trainer:
        def __init__(self, model):
            self.model = model

    model = torch.nn.Linear(1, 1)
    for value in (Trainer(model), [model], {"net": model}):
        with pytest.raises(ValueError, match=r"the state's attribute 'trainer' \(\w+\) must not refer to its 'model'"):
            hvd.elastic.TorchState(model, trainer=value)


def own_numbers():
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    state = hvd.elastic.TorchState(
        model=model, numbers=hvd.elastic.RandomNumbers(), mine=hvd.elastic.PerRank(hvd.rank())
    )
    state.sync()
    state.commit()
    assert state.mine.value == hvd.rank()
    number = torch.rand(1).item()
    state.restore()
    assert torch.rand(1).item() == number
    assert sorted(state._own_of) == [0, 1]
    return number


def test_each_rank_has_its_own_random_numbers(pool):
    one, other = pool(2).run(own_numbers)
    assert one != other


def differ():
    more = {"only_here": 1} if hvd.rank() == 1 else {}
    state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), epoch=0, **more)
    try:
        state.sync()
    except ValueError as error:
        return str(error)
    return None


def test_different_attributes_on_some_ranks(pool):
    message = "the states of the ranks have different attributes: rank 1 has only_here, which rank 0 has not"
    assert pool(2).run(differ) == [message] * 2


def test_uncopyable_attributes_are_named():
    model = torch.nn.Linear(1, 1)
    state = hvd.elastic.TorchState(model=model)
    model.state_dict = lambda: {"extra": (x for x in ())}
    with pytest.raises(ValueError, match=r"the state's attribute 'model' \(Linear\) cannot be copied: TypeError"):
        state.commit()
    with pytest.raises(ValueError, match="attribute 'net'"):
        hvd.elastic.TorchState(net=model)


class Counter:
    def __init__(self, value):
        self.value = value


class CounterHandler(StateHandler):
    """A user's handler with an older interface: its sync takes no root."""

    def __init__(self, counter):
        super().__init__(counter)
        self.save()

    def save(self):
        self.saved = self.value.value

    def restore(self):
        self.value.value = self.saved

    def sync(self):
        self.value.value = hvd.broadcast_object(self.value.value, 0)
        self.save()


def counting_state(value, **attributes):
    before = get_handler_registry()
    set_handler_registry([(Counter, CounterHandler), *before])
    try:
        return hvd.elastic.TorchState(counter=Counter(value), model=torch.nn.Linear(1, 1), **attributes)
    finally:
        set_handler_registry(before)


def test_handlers_of_a_program():
    state = counting_state(3)
    state.counter.value = 5
    state.restore()
    assert state.counter.value == 3
    assert isinstance(state._handlers["model"], ModelStateHandler)
    assert state.optimizer is None


def test_states_of_the_frontend():
    assert issubclass(hvd.elastic.ObjectState, hvd.elastic.State)
    state = hvd.elastic.ObjectState(epoch=3)
    state.epoch = 4
    state.restore()
    assert state.epoch == 3
    with pytest.raises(ValueError, match=r"call hvd\.init\(\) first"):
        hvd.elastic.batch(256)


def test_repeated_steps_start_from_the_same_state():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5))
    before = BeforeForward()
    before.watch([model])
    data = torch.randn(5, 4)
    for _ in range(2):
        statistics, random = model[0].running_mean.clone(), torch.get_rng_state()
        first = model(data)
        model(data)  # a second forward pass in the same step
        assert not torch.equal(model[0].running_mean, statistics)
        before.put_back()
        assert torch.equal(model[0].running_mean, statistics)
        assert torch.equal(torch.get_rng_state(), random)
        assert torch.equal(model(data), first)
        before.stepped()
    model.eval()
    model(data)
    before.put_back()
    before.watch([])
    assert not model._forward_pre_hooks
    before.watch([model])
    loaded = pickle.loads(pickle.dumps(model))
    copied = copy.deepcopy(model)
    for other in (loaded, copied):
        other.train()
        other(data)
        assert other[0].num_batches_tracked == model[0].num_batches_tracked + 1
