"""Programs that a TorchState lets continue after a failure without restoring the last commit."""

import torch

import horovod.torch as hvd
from horovod.common.contract.membership import HostUpdateResult
from horovod.common.elastic import run_fn
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt


def one_weight(**counters):
    """A weight that grows by 1 with each step."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return hvd.elastic.TorchState(model, optimizer, **counters)


def backward(state, last):
    """Run a backward pass. ``last``: the last of three ranks leaves without notice."""
    if last and hvd.size() == 3 and hvd.rank() == 2:
        hvd.shutdown()
        raise KeyboardInterrupt
    state.optimizer.zero_grad()
    (-state.model(torch.ones(1, 1))).sum().backward()


def moves_parameters(state):
    while state.unit < 6:
        backward(state, False)
        with torch.no_grad():
            state.model.weight.add_(100)
        backward(state, state.unit == 4)
        with torch.no_grad():
            state.model.weight.sub_(100)
        state.optimizer.step()
        state.unit += 1
        state.commit()
    return 6


def usual(state):
    for state.unit in range(state.unit, 6):  # noqa: B020
        backward(state, state.unit == 4)
        state.optimizer.step()
    state.calls.append(state.unit)
    return 6


def with_passes(state):
    """Two backward passes make a step; only steps are counted."""
    state.optimizer.set_backward_passes_per_step(2)
    for state.unit in range(state.unit, 6):  # noqa: B020
        state.optimizer.zero_grad()
        for inner in range(2):
            if state.unit == 4 and inner == 1 and hvd.size() == 3 and hvd.rank() == 2:
                hvd.shutdown()
                raise KeyboardInterrupt
            (-0.5 * state.model(torch.ones(1, 1))).sum().backward()
        state.optimizer.step()
    return 6


def counts_passes(state):
    """Two backward passes make a step; passes are counted."""
    state.optimizer.set_backward_passes_per_step(2)
    while state.unit < 12:
        if state.unit == 9 and hvd.size() == 3 and hvd.rank() == 2:
            hvd.shutdown()
            raise KeyboardInterrupt
        (-0.5 * state.model(torch.ones(1, 1))).sum().backward()
        state.unit += 1
        if state.unit % 2 == 0:
            state.optimizer.step()
            state.optimizer.zero_grad()
            state.commit()
    return 6


def fails_in(programs):
    """Return the weight after each program, its expected value, and the number of restored commits."""
    found = []
    for program, more in programs:
        hvd.init()
        state = one_weight(unit=0, calls=[], **more)
        restored = []
        state.restore = lambda state=state, restored=restored: (restored.append(1), type(state).restore(state))

        def reset():
            hvd.shutdown()
            hvd.init([0, 1])

        try:
            expected = run_fn(program, reset)(state)
        except KeyboardInterrupt:
            continue
        found.append((program.__name__, state.model.weight.item(), expected, len(restored)))
        hvd.shutdown()
    return found


def test_only_programs_that_count_each_step_continue_without_a_commit(pool):
    never = {"always_restore": True}
    programs = [(moves_parameters, {}), (usual, {}), (usual, never), (with_passes, {}), (counts_passes, {})]
    for found in pool(3, initialized=False).run(fails_in, programs)[:2]:
        assert found == [
            ("moves_parameters", 6, 6, 1),
            ("usual", 6, 6, 0),
            ("usual", 6, 6, 1),
            ("with_passes", 6, 6, 0),
            ("counts_passes", 6, 6, 1),
        ]


def accumulates(passes):
    """Two backward passes make a step, counted by the optimizer or by the program."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=passes
    )
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    state.sync()

    def interrupted():
        try:
            state.check_host_updates()
        except HostsUpdatedInterrupt:
            return True
        return False

    found = []
    for batch in range(6):
        if batch == 2 and hvd.rank() == 0:
            state.on_hosts_updated(1.0, HostUpdateResult.added)
        model(torch.ones(2, 4)).sum().backward()
        if batch % 2:
            optimizer.step()
            optimizer.zero_grad()
        state.batch = batch + 1
        found.append(interrupted())
        error = HorovodInternalError("rank 2 was lost, so nobody knows")
        error.handed_over = True
        state.failed(error)
        assert state._whole == (batch % 2 == 1 or (passes == 1 and batch == 0)), (batch, state._whole)
    return found


def test_workers_do_not_join_during_a_step(pool):
    for passes in (2, 1):
        assert pool(2).run(accumulates, passes) == [[False, False, False, True, False, False]] * 2
