"""Warnings about wrong training in which no operation fails, and correct programs that look similar."""

import contextlib
import io
import re

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd
from horovod.torch import monitoring


def model(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(dropout), torch.nn.Linear(6, 1)]
    network = torch.nn.Sequential(*layers)
    torch.manual_seed(100 + hvd.rank())
    return network


def rows(count=24, seed=None):
    generator = torch.Generator().manual_seed(hvd.rank() if seed is None else seed)
    return TensorDataset(torch.randn(count, 4, generator=generator), torch.randn(count, 1, generator=generator))


def plain(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


def wrapped(net, **options):
    return hvd.DistributedOptimizer(plain(net), net.named_parameters(), **options)


def step(net, optimizer, batch):
    optimizer.zero_grad()
    (net(batch[0]) - batch[1]).square().mean().backward()
    optimizer.step()


def train(net, optimizer, loader, epochs=2):
    for _ in range(epochs):
        for batch in loader:
            step(net, optimizer, batch)


def loader(data, **options):
    return DataLoader(data, batch_size=4, **options)


def no_wrapper():
    net = model()
    hvd.broadcast_parameters(net.state_dict(), 0)
    train(net, plain(net), loader(rows()))
    hvd.allreduce(torch.ones(1), name="metric")


def no_wrapper_for_long():
    net = model()
    train(net, plain(net), loader(rows(800)), 1)
    hvd.barrier()  # ranks end together, so that rank 0 receives step 100 from all


def no_broadcast():
    net = model(seed=hvd.rank())
    train(net, wrapped(net), loader(rows()))


def parameters_change_on_one_rank():
    net = model()
    optimizer = wrapped(net)
    for number, batch in enumerate(loader(rows(100))):
        step(net, optimizer, batch)
        if number == 7 and hvd.rank() == 1:
            net[3].weight.data.mul_(1.01)


def parameters_change_late():
    net = model()
    optimizer = wrapped(net)
    interval, monitoring._INTERVAL = monitoring._INTERVAL, 150
    for number, batch in enumerate(loader(rows(1212))):
        step(net, optimizer, batch)
        if number == 250 and hvd.rank() == 1:
            net[3].weight.data.mul_(1.01)
    monitoring._INTERVAL = interval


def one_of_two_wrapped():
    one, other = model(1), model(2)
    optimizers = wrapped(one), plain(other)
    for batch in loader(rows(404)):
        step(one, optimizers[0], batch)
        step(other, optimizers[1], batch)


def no_sampler():
    net = model(dropout=0.5)
    train(net, wrapped(net), loader(rows(seed=1)))


def no_sampler_shuffled():
    data, net = rows(seed=1), model(dropout=0.5)
    torch.manual_seed(7)
    train(net, wrapped(net), loader(data, shuffle=True))


def no_sampler_by_hand():
    data, net = rows(seed=1).tensors, model()
    optimizer = wrapped(net)
    for start in range(0, 24, 4):
        step(net, optimizer, [t[start : start + 4] for t in data])
    hvd.barrier()  # ranks end together, so that rank 0 receives what rank 1 has computed


def uneven_epochs():
    net = model()
    train(net, wrapped(net), loader(rows(40 if hvd.rank() == 0 else 36)), 9 if hvd.rank() == 0 else 10)


def right():
    data, net = rows(seed=1), model(seed=hvd.rank(), dropout=0.5)
    sampler = DistributedSampler(data, hvd.size(), hvd.rank())
    optimizer = wrapped(net)
    hvd.broadcast_parameters(net.state_dict(), 0)
    check = rows(seed=2)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        train(net, optimizer, loader(data, sampler=sampler), 1)
        with torch.no_grad():
            for batch in loader(check):  # the same data on all ranks
                net(batch[0])


def adversaries():
    one, other = model(1), model(2)
    optimizers = wrapped(one), wrapped(other)
    for _ in range(2):
        for number, batch in enumerate(loader(rows())):
            step(one, optimizers[0], batch)
            if number % 2:
                step(other, optimizers[1], batch)


def accumulation():
    net = model()
    optimizer = wrapped(net, backward_passes_per_step=2)
    for number, batch in enumerate(loader(rows(100))):
        (net(batch[0]) - batch[1]).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def in_a_set():
    some = hvd.add_process_set([0, 1])
    net = model(seed=hvd.rank() // 2)
    train(net, wrapped(net, process_set=some), loader(rows()))  # rank 2 trains alone, with its own steps
    hvd.barrier()


def averages_by_hand():
    net = model()
    optimizer = plain(net)
    for _ in range(20):
        for batch in loader(rows()):
            optimizer.zero_grad()
            (net(batch[0]) - batch[1]).square().mean().backward()
            for p in net.parameters():
                p.grad = hvd.allreduce(p.grad)
            optimizer.step()


def one_of_two_averaged_manually():
    one, other = model(1), model(2)
    optimizers = wrapped(one), plain(other)

    def average(*_):
        for p in other.parameters():
            hvd.allreduce_(p.grad)

    optimizers[1].register_step_pre_hook(average)
    for batch in loader(rows(404)):
        step(one, optimizers[0], batch)
        step(other, optimizers[1], batch)


def averages_parameters():
    net = model()
    for _ in range(4):
        train(net, plain(net), loader(rows()), 1)
        for p in net.parameters():
            hvd.allreduce_(p.data)


def uneven_with_join():
    net = model()
    optimizer = wrapped(net)
    for _ in range(3):
        train(net, optimizer, loader(rows(24 + 4 * hvd.rank())), 1)
        hvd.join()
        hvd.broadcast_parameters(net.state_dict(), hvd.size() - 1)


def local_steps():
    net = model()
    optimizer = wrapped(net, backward_passes_per_step=1000)
    for batch in loader(rows(100)):
        optimizer.zero_grad()
        (net(batch[0]) - batch[1]).square().mean().backward()
        with optimizer.skip_synchronize():
            optimizer.step()


def one_rank_alone():
    if hvd.rank() == 0:
        net = model()
        train(net, plain(net), loader(rows(400)), 1)
    net = model()
    train(net, wrapped(net), loader(rows()))


def adasum():
    net = model()
    train(net, wrapped(net, op=hvd.Adasum), loader(rows(100)))


MISTAKES = {
    no_wrapper: r"^no gradient was averaged in this job, though rank 0 has taken 12 steps .*DistributedOptimizer",
    no_broadcast: r"^after step 2 parameter '0.weight' differs between rank 0 and rank 1: .*broadcast_parameters",
    parameters_change_on_one_rank: r"^after step 20 parameter '3.weight' differs between rank 0 and rank 1",
    parameters_change_late: r"^after step 300 parameter '3.weight' differs between rank 0 and rank 1",
    one_of_two_wrapped: r"^an optimizer \(SGD\) is not distributed, .* step 100 parameter '0 of \(6, 4\)' differs",
    no_sampler: r"^the data loaders of ranks 0-1 gave the same first batches: .*its SequentialSampler.*Distributed",
    no_sampler_shuffled: r"^(the data loaders of )?ranks 0-1 .* the same samples\?.*DistributedSampler",
    no_sampler_by_hand: r"^ranks 0-1 computed the same gradients in the first step: ",
    uneven_epochs: r"^rank 1 finished epoch 1 after 9 batches, and rank 0 has more: .*hvd.join\(\)",
}
RIGHT = (right, adversaries, accumulation, averages_by_hand, averages_parameters)
RIGHT += (uneven_with_join, local_steps, one_rank_alone, adasum, one_of_two_averaged_manually)


def in_a_job(program):
    """Run a program in a new job; return the rank's stderr."""
    monitoring.batches.__init__()  # as in a new process
    with contextlib.redirect_stderr(io.StringIO()) as output:
        hvd.init()
        program()
        hvd.shutdown()
    return output.getvalue()


def warnings(pool, program, ranks=2, **environment):
    output, *_ = pool(ranks, initialized=False, **environment).run(in_a_job, program)
    return re.findall(r"\[horovod, rank 0\] WARNING: (.*)", output)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda program: program.__name__)
def test_a_mistake_is_reported_once(pool, mistake):
    (output,) = warnings(pool, mistake)
    assert re.search(MISTAKES[mistake], output)
    assert output.endswith("(HOROVOD_TRAINING_CHECKS=0 turns such checks off)")


def test_a_long_job_without_a_wrapper_is_reported_early(pool):
    early, late = warnings(pool, no_wrapper_for_long)
    assert re.search(r"^after step 100 no gradient has been averaged in this job, and parameter '0 of \(6, 4\)'", early)
    assert late.startswith("no gradient was averaged in this job")


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_correct_programs_cause_no_warning(pool, program):
    assert warnings(pool, program) == []


def test_ranks_outside_of_the_process_set_train_on_their_own(pool):
    assert warnings(pool, in_a_set, 3, HOROVOD_DYNAMIC_PROCESS_SETS="1") == []


def test_the_checks_can_be_turned_off(pool):
    assert warnings(pool, no_broadcast, HOROVOD_TRAINING_CHECKS="0") == []


def test_samples_that_a_device_still_copies_are_sent_later(monkeypatch):
    class Event:
        done = False

        def query(self):
            return self.done

    sent, event, copies = [], Event(), []
    monkeypatch.setattr(monitoring, "_copies", copies)
    copies += [([event], lambda: sent.append(1)), ([], lambda: sent.append(2))]
    monitoring._send_copied()
    assert sent == []
    event.done = True
    monitoring._send_copied()
    assert (sent, copies) == ([1, 2], [])


def test_comparisons_rotate_through_all_parameters():
    tensors = {str(number): torch.ones(3) for number in range(40)}
    turns = [[name for name, _ in monitoring._choose(tensors, turn)] for turn in range(3)]
    assert sorted([name for names in turns for name in names], key=int) == list(tensors)
    assert max(map(len, turns)) <= monitoring._TENSORS
    tensors["0"]._fsdp_flattened = True
    assert "0" not in dict(monitoring._choose(tensors))
