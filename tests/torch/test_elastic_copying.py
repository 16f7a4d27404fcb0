"""Commits that are copied while the next step runs."""

import ctypes
import os
import threading
import time
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from horovod.torch.elastic import copying


@pytest.fixture
def slow(monkeypatch):
    """Copies wait while this event is cleared."""
    go = threading.Event()
    go.set()
    move = ctypes.memmove

    def late(*arguments):
        assert go.wait(30)
        time.sleep(0.01)
        move(*arguments)

    monkeypatch.setattr(copying.ctypes, "memmove", late)
    yield go
    go.set()


def create():
    model = torch.nn.Sequential(torch.nn.Linear(700, 700), torch.nn.BatchNorm1d(700))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)  # creates the momentum
    state = hvd.elastic.TorchState(model, optimizer, step=0)
    state.save()
    state._copies.wait()
    return model, optimizer, state


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(4, 700)).square().sum().backward()
    optimizer.step()


def values(model, optimizer):
    moments = [entry["momentum_buffer"] for entry in optimizer.state.values()]
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers(), *moments)]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_training_does_not_change_a_commit(slow):
    model, optimizer, state = create()
    step(model, optimizer)
    slow.clear()
    committed = values(model, optimizer)
    state.save()
    assert state._copies._batch.is_alive(), "it has not waited"
    model(torch.randn(4, 700)).square().sum().backward()  # changes only the moving statistics
    threading.Timer(0.05, slow.set).start()
    optimizer.step()  # waits for the copy
    assert state._copies._batch is None
    assert not same(values(model, optimizer), committed)
    for _ in range(2):
        state.restore()
        assert same(values(model, optimizer), committed)
        step(model, optimizer)


def test_changes_by_the_program_are_copied_consistently(slow):
    model, _, state = create()
    slow.clear()
    state.save()
    with torch.no_grad():
        model[0].weight.clamp_(-0.01, 0.01)
    changed = model[0].weight.detach().clone()
    slow.set()
    with pytest.warns(UserWarning, match=r"^1 tensors of an elastic state were changed while a commit copied them"):
        state.restore()
    assert torch.equal(model[0].weight, changed)


def test_unchanged_frozen_parameters_are_copied_in_the_background():
    model = torch.nn.Linear(700, 700).requires_grad_(False)
    state = hvd.elastic.TorchState(model)
    state.save()
    assert state._copies._batch is not None
    state.wait()
    for number in (1, 2, 3):
        with torch.no_grad():
            model.weight.fill_(number)  # an average of other parameters
        state.save()
        assert state._copies._batch is None
    assert (state._handlers["model"]._saved["weight"] == 3).all()


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_large_states_keep_their_initial_values():
    model = torch.nn.Linear(4096, 4096)  # 64 MiB
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model.weight.detach().clone()
    before = resident()
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    assert resident() - before < 1 << 24
    model(torch.ones(1, 4096)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, first)
    state.restore()
    assert torch.equal(model.weight, first)
    state.restore()
    assert torch.equal(model.weight, first)
