"""Gradients that are views of buckets: who is in one, and that nothing else changes."""

import copy
import pickle

import pytest
import torch

import horovod.torch as hvd
from tests.torch.reference import bits


def network(dtype=torch.float32, seed=5):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(6, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)]
    return torch.nn.Sequential(*layers).to(dtype)


def backward(net, step, scale=1.0):
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    x = torch.randn(4, 6, generator=generator)
    (net(x.to(net[0].weight.dtype)).square().mean() * scale).backward()


def wrap(net, make=None, **options):
    plain = (make or (lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)))(net.parameters())
    options.setdefault("gradient_as_bucket_view", True)
    return hvd.DistributedOptimizer(plain, net.named_parameters(), **options)


def step(net, optimizer, number):
    optimizer.zero_grad()
    backward(net, number)
    optimizer.step()


def buckets(optimizer):
    return optimizer._hvd.reducer._bucketing.buckets


def in_buckets(optimizer):
    # Without the mark that optimizers get whose parameters have the names of an earlier one's.
    return {slot.name.split("#")[0] for bucket in buckets(optimizer) for slot in bucket.members}


def assert_all_equal(net):
    mine = [bits(p).tolist() for p in net.parameters()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()


def layout(wanted):
    net = network()
    optimizer = wrap(net, gradient_as_bucket_view=wanted)
    step(net, optimizer, 0)
    assert not any(hvd.in_shared_memory(p.grad) for p in net.parameters())
    (bucket,) = buckets(optimizer)
    # The last layer's gradients arrive first.
    came = [slot.name for slot in bucket.members]
    assert [name.split(".")[0] for name in came] == ["4", "4", "2", "2", "0", "0"]
    assert hvd.allgather_object(came) == [came] * hvd.size()
    for number in (1, 2):
        step(net, optimizer, number)
        assert buckets(optimizer) == [bucket]
        end = bucket.flat.data_ptr()
        for slot in bucket.members:
            grad = slot.parameter.grad
            assert hvd.in_shared_memory(grad)
            assert grad.data_ptr() % 64 == 0
            assert grad.data_ptr() >= end
            end = grad.data_ptr() + grad.nbytes
        assert end <= bucket.flat.data_ptr() + bucket.flat.nbytes
    assert_all_equal(net)


@pytest.mark.parametrize("wanted", [True, None])
@pytest.mark.parametrize("size", [2, 4])
def test_gradients_lie_in_a_bucket_in_the_order_they_arrive(pool, size, wanted):
    pool(size).run(layout, wanted)


def large_gradients():
    # By default large ones are reduced where they are; otherwise they have buckets of their own.
    for wanted, expected in ((None, [["0.bias", "1.bias", "1.weight"]]), (True, None), (False, [])):
        net = torch.nn.Sequential(torch.nn.Linear(400, 1000), torch.nn.Linear(1000, 10))
        optimizer = wrap(net, gradient_as_bucket_view=wanted)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 400)).sum().backward()
            optimizer.step()
        names = [sorted(slot.name.split("#")[0] for slot in bucket.members) for bucket in buckets(optimizer)]
        if expected is None:
            assert sorted(name for group in names for name in group) == sorted(
                name for name, _ in net.named_parameters()
            )
            assert ["0.weight"] in names  # by itself
        else:
            assert names == expected
        # No second copy: all gradients together take the memory of the parameters, but for the alignment.
        storages = {p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes() for p in net.parameters()}
        assert sum(storages.values()) < 1.01 * sum(p.nbytes for p in net.parameters())


@pytest.mark.parametrize("environ", [{}, {"HOROVOD_TRANSPORT": "tcp"}, {"HOROVOD_ARENA_BYTES": "0"}])
def test_large_gradients(pool, environ):
    pool(2, **environ).run(large_gradients)


MAKERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def trained(make, wanted, passes=1, clip=False, set_to_none=True, dtype=torch.float32, steps=6, **options):
    net = network(dtype)
    optimizer = wrap(net, make, gradient_as_bucket_view=wanted, backward_passes_per_step=passes, **options)
    for number in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        for i in range(passes):
            backward(net, number * passes + i)
        if clip:
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    assert bool(buckets(optimizer)) == (wanted is not False)
    return [bits(t).tolist() for p in net.parameters() for t in (p, p.grad)]


VARIANTS = {
    "plain": {},
    "sum": {"op": hvd.Sum},
    "predivide": {"gradient_predivide_factor": 2.0},
    "passes": {"passes": 3},
    "zeroed in place": {"set_to_none": False},
    "passes zeroed in place": {"passes": 2, "set_to_none": False},
    "clipped": {"clip": True},
    "float64": {"dtype": torch.float64},
    "bfloat16": {"dtype": torch.bfloat16},
}


def same_bits(kind, variant):
    options = VARIANTS[variant]
    apart, together = (trained(MAKERS[kind], wanted, **options) for wanted in (False, True))
    assert apart == together
    return together


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_bits_are_those_without_buckets(pool, size, kind, variant):
    results = pool(size).run(same_bits, kind, variant)
    assert all(result == results[0] for result in results)


def compressed(kind):
    options = {"compression": getattr(hvd.Compression, kind)}
    apart, together = (trained(MAKERS["adam"], wanted, **options) for wanted in (False, True))
    assert apart == together


@pytest.mark.parametrize("kind", ["fp16", "bf16", "wire_fp16", "wire_bf16"])
def test_compression_by_number_takes_whole_buckets(pool, kind):
    pool(2).run(compressed, kind)


def without_buckets():
    class Whole:  # looks at more than one number at a time
        compress = staticmethod(lambda t: (t / 2, None))
        decompress = staticmethod(lambda t, _: t * 2)

    for options in (
        {"groups": 1},
        {"compression": Whole},
        {"gradient_as_bucket_view": False},
        {"gradient_as_bucket_view": hvd.rank() == 0},  # all have to want them
    ):
        net = network()
        optimizer = wrap(net, **options)
        for number in range(3):
            step(net, optimizer, number)
        assert not buckets(optimizer)
        assert_all_equal(net)
    with pytest.raises(ValueError, match="gradient_as_bucket_view is 3"):
        wrap(network(), gradient_as_bucket_view=3)


def test_who_has_no_buckets(pool):
    pool(2).run(without_buckets)


def kept_gradients(keep, replace):
    # What the program keeps of a gradient over zero_grad keeps its values, as without buckets.
    net, reference = network(), network()
    optimizer, plain = wrap(net), wrap(reference, gradient_as_bucket_view=False)
    kept, expected = [], []
    for number in range(5):
        for n, o, k in ((net, optimizer, kept), (reference, plain, expected)):
            step(n, o, number)
            k.append(keep(n))
            if replace:
                n[2].bias.grad = torch.ones_like(n[2].bias)
    assert in_buckets(optimizer)
    for a, b in zip(kept, expected, strict=True):
        assert torch.equal(a, b)
    del kept, a
    # Nobody keeps any: the memory stays.
    memory = []
    for number in range(5, 8):
        step(net, optimizer, number)
        step(reference, plain, number)
        memory.append([b.flat.data_ptr() for b in buckets(optimizer)])
    assert memory[1] == memory[2]
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), reference.parameters(), strict=True))


KEPT = {
    "a gradient": lambda net: net[0].weight.grad,
    "a part": lambda net: net[2].weight.grad[3:5],
    "a number": lambda net: net[4].bias.grad.view(-1)[1],
}


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("replace", [False, True])
def test_gradients_that_the_program_keeps(pool, kept, replace):
    pool(2).run(kept_gradients, KEPT[kept], replace)


def replaced_gradients():
    net = network()
    optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=1.0))
    for number in range(4):
        optimizer.zero_grad(set_to_none=False)
        backward(net, number)
        optimizer.synchronize()
        before = net[0].weight.detach().clone()
        net[0].weight.grad = torch.full_like(before, 0.5)  # instead of the view
        with optimizer.skip_synchronize():
            optimizer.step()
        assert torch.equal(net[0].weight, before - 0.5)
    # Gradients that no backward pass made.
    for p in net.parameters():
        p.grad = torch.full(p.shape[::-1], float(hvd.rank())).t() if p.dim() == 2 else torch.full_like(p, hvd.rank())
    optimizer.step()
    for p in net.parameters():
        assert torch.equal(p.grad, torch.full_like(p, (hvd.size() - 1) / 2))
        assert hvd.in_shared_memory(p.grad)
    assert_all_equal(net)


def test_gradients_that_the_program_replaces(pool):
    pool(2).run(replaced_gradients)


def moved_gradients(move, set_to_none):
    # What the program does to p.grad in place takes the view itself out of the bucket.
    net, reference = network(), network()
    optimizer, plain = wrap(net), wrap(reference, gradient_as_bucket_view=False)
    for number in range(3):
        step(net, optimizer, number)
        step(reference, plain, number)
    for number in range(3, 6):
        for n, o in ((net, optimizer), (reference, plain)):
            for i, p in enumerate(n.parameters()):
                move(p, torch.arange(float(p.numel())).view(p.shape) * (hvd.rank() + i))
            o.step()  # with gradients that no backward pass made
            o.zero_grad(set_to_none=set_to_none)
            backward(n, number)
            o.step()
        for p, q in zip(net.parameters(), reference.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad)
            assert torch.equal(p, q)
            assert hvd.in_shared_memory(p.grad)
    assert len(in_buckets(optimizer)) == 6
    assert_all_equal(net)


def assign_data(p, g):
    p.grad.data = g


MOVES = {
    "data": assign_data,
    "set": lambda p, g: p.grad.set_(g),
    "strides": lambda p, g: p.grad.t_().copy_(g.t()) if g.dim() == 2 and g.shape[0] == g.shape[1] else p.grad.set_(g),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_the_program_moves(pool, move, set_to_none):
    pool(2).run(moved_gradients, MOVES[move], set_to_none)


def kept_while_moved():
    # One gradient leaves the bucket, another is kept: the one does not hide the other.
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    kept = net[2].weight.grad.data  # one use of the storage more, and no reference to the gradient
    expected = kept.clone()
    net[0].weight.grad.data = torch.ones_like(net[0].weight)
    for number in range(3, 6):
        step(net, optimizer, number)
    assert torch.equal(kept, expected)


def test_gradients_that_are_kept_while_others_are_moved(pool):
    pool(2).run(kept_while_moved)


def other_dtype(before, after, keep):
    results = []
    for wanted in (False, True):
        net = network(before)
        optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=0.05), gradient_as_bucket_view=wanted)
        for number in range(3):
            step(net, optimizer, number)
        kept = net[2].weight.grad[3:5] if keep and hvd.rank() == 0 else None
        net.to(after)  # and the gradients that are there
        start = [p.detach().clone() for p in net.parameters()]
        for number in range(3, 7):
            step(net, optimizer, number)
            assert all(p.grad.dtype is after for p in net.parameters())
            assert_all_equal(net)
            if number == 3:  # the bucket has been replaced; until then it had the narrower dtype
                with torch.no_grad():
                    for p, value in zip(net.parameters(), start, strict=True):
                        p.copy_(value)
        assert kept is None or kept.dtype is before
        results.append([bits(t).tolist() for p in net.parameters() for t in (p, p.grad)])
    assert results[0] == results[1]
    assert len(in_buckets(optimizer)) == 6
    assert all(bucket.flat.dtype is after for bucket in buckets(optimizer))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    ("before", "after"),
    [(torch.float32, torch.float64), (torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)],
)
def test_parameters_that_get_another_dtype(pool, before, after, keep):
    pool(2).run(other_dtype, before, after, keep)


def dtype_to_and_fro():
    net = network()
    optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=0.05))
    for number in range(12):
        net.to(torch.float64 if number // 3 % 2 else torch.float32)
        step(net, optimizer, number)
        assert_all_equal(net)
        # A step to notice it, one alone; after the second time for good.
        assert len(in_buckets(optimizer)) == (0 if number == 3 or number >= 6 else 6), number


def test_parameters_whose_dtype_changes_again_and_again_go_alone(pool):
    pool(2).run(dtype_to_and_fro)


def graph_gradients():
    results = []
    for wanted in (False, True):
        net = network()
        optimizer = wrap(net, gradient_as_bucket_view=wanted)
        for number in range(4):
            optimizer.zero_grad()
            x = torch.full((1, 6), 0.1 * (hvd.rank() + number))
            net(x).square().sum().backward(create_graph=True)
            assert net[0].weight.grad.requires_grad
            optimizer.synchronize()
            assert net[0].weight.grad.requires_grad  # the graph is still there
            results.append([bits(p.grad).tolist() for p in net.parameters()])
            with optimizer.skip_synchronize():
                optimizer.step()
        for p in net.parameters():
            p.grad = None  # torch warns of the cycle otherwise
        optimizer.zero_grad()
        step(net, optimizer, 9)
    assert results[:4] == results[4:]


def test_create_graph(pool):
    pool(2).run(graph_gradients)


def kinds_of_parameters():
    torch.manual_seed(1)
    net = torch.nn.ModuleDict(
        {
            "table": torch.nn.Embedding(8, 4, sparse=True),
            "conv": torch.nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last),
            "line": torch.nn.Linear(4, 4),
            "wide": torch.nn.Linear(4, 4).double(),
        }
    )
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer = wrap(net, lambda p: torch.optim.SGD(p, lr=0.1))
    for _ in range(4):
        optimizer.zero_grad()
        x = net["line"](net["table"](torch.tensor([hvd.rank(), 7])))
        image = net["conv"](torch.ones(1, 4, 3, 3).to(memory_format=torch.channels_last))
        (x.sum() + image.sum() + net["wide"](x.double()).sum()).backward()
        optimizer.step()
    assert net["table"].weight.grad.is_sparse
    assert net["conv"].weight.grad.is_contiguous(memory_format=torch.channels_last)
    assert in_buckets(optimizer) == {"conv.bias", "line.weight", "line.bias", "wide.weight", "wide.bias"}
    assert all(len({slot.parameter.dtype for slot in bucket.members}) == 1 for bucket in buckets(optimizer))
    # One that gets sparse later is reduced all the same.
    for p in net.parameters():
        p.grad = None
    p = net["line"].weight
    p.grad = torch.eye(4).mul(hvd.rank()).to_sparse()
    optimizer.step()
    torch.testing.assert_close(p.grad, torch.eye(4) * (hvd.size() - 1) / 2)
    assert_all_equal(net)


def test_kinds_of_parameters(pool):
    pool(2).run(kinds_of_parameters)


def parameters_come_and_go():
    net = network()
    net[2].requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(net[:3].parameters(), lr=0.05), net[:3].named_parameters(), gradient_as_bucket_view=True
    )
    step(net, optimizer, 0)
    assert in_buckets(optimizer) == {"0.weight", "0.bias"}
    net[2].requires_grad_(True)
    optimizer.add_param_group({"params": net[4].parameters()})
    for number in range(1, 4):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    # Frozen again: what is left of the bucket goes alone, and after some steps has a bucket of its own.
    net[2].requires_grad_(False)
    frozen = net[2].weight.detach().clone()
    for number in range(4, 12):
        step(net, optimizer, number)
        assert net[2].weight.grad is None
    assert torch.equal(frozen, net[2].weight)
    assert in_buckets(optimizer) == {"0.weight", "0.bias", *(n for n in in_buckets(optimizer) if "noname" in n)}
    assert len(in_buckets(optimizer)) == 4
    assert_all_equal(net)


def test_parameters_that_are_frozen_thawed_and_added(pool):
    pool(2).run(parameters_come_and_go)


def missing_gradients():
    results = []
    for wanted in (False, True):
        torch.manual_seed(0)
        net = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(5))
        optimizer = wrap(net, gradient_as_bucket_view=wanted)
        generator = torch.Generator().manual_seed(7 + hvd.rank())
        shared = torch.Generator().manual_seed(7)
        for number in range(30):
            optimizer.zero_grad(set_to_none=bool(number % 3))
            everybody = torch.rand(5, generator=shared) < 0.6 if number > 3 else torch.ones(5, dtype=bool)
            mine = everybody & (torch.rand(5, generator=generator) < 0.7) if number > 3 else everybody
            loss = sum(net[i](torch.ones(2, 3) * (number + hvd.rank())).square().mean() for i in range(5) if mine[i])
            if mine.any():
                loss.backward()
            if number % 4 == 3:
                optimizer.synchronize()
                # A second backward pass: what it does not touch must not be reduced again.
                net[number % 5](torch.ones(1, 3)).sum().backward()
            optimizer.step()
            results.append([[p is not None and bits(p).tolist() for p in (q, q.grad)] for q in net.parameters()])
        assert_all_equal(net)
    assert results[:30] == results[30:]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.filterwarnings("ignore:optimizer.step.. called without")
def test_gradients_that_only_some_ranks_have(pool, size):
    pool(size).run(missing_gradients)


def given_up():
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    for _ in range(5):  # one more than it takes to notice; after a step alone they share a bucket again
        optimizer.zero_grad()
        net[4](torch.ones(1, 40)).sum().backward()
        optimizer.step()
    assert in_buckets(optimizer) == {"4.weight", "4.bias"}
    step(net, optimizer, 9)
    assert len(in_buckets(optimizer)) == 6
    assert len(buckets(optimizer)) == 2


def test_a_bucket_that_always_lacks_gradients_is_given_up(pool):
    pool(2).run(given_up)


def copies():
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert type(other) is torch.optim.SGD
    assert len(pickle.dumps(optimizer)) < 3 * sum(p.nbytes for p in net.parameters()) + 10_000
    twin = copy.deepcopy(net)
    twin[0].weight.grad = torch.ones_like(twin[0].weight)
    step(net, optimizer, 3)
    assert torch.equal(twin[0].weight.grad, torch.ones_like(twin[0].weight))


def test_copies_and_pickles(pool):
    pool(2).run(copies)


def forgotten():
    # Loading a state forgets gradients on their way; the buckets stay, also where only one rank does it.
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    had = in_buckets(optimizer)
    optimizer.zero_grad()
    backward(net, 3)
    optimizer.load_state_dict(optimizer.state_dict())
    for number in range(4, 6):
        step(net, optimizer, number)
    if hvd.rank() == 0:
        optimizer.load_state_dict(optimizer.state_dict())
    step(net, optimizer, 6)
    assert in_buckets(optimizer) == had
    assert_all_equal(net)


def test_load_state_dict(pool):
    pool(2).run(forgotten)


def another_job():
    # A rank that is new in a job has no buckets, the others give theirs up.
    hvd.init()
    net = network()
    optimizer = wrap(net)
    for number in range(3):
        step(net, optimizer, number)
    assert in_buckets(optimizer)
    hvd.shutdown()
    hvd.init()
    if hvd.rank() == 1:
        weights = net.state_dict()
        net = network()
        net.load_state_dict(weights)
        optimizer = wrap(net)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for number in range(3, 6):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    assert_all_equal(net)
    hvd.shutdown()


def test_a_new_job(pool):
    pool(2, initialized=False).run(another_job)


def joined():
    # A rank that has run out of data does not learn of buckets made meanwhile, so none are made or given up.
    net = network()
    optimizer = wrap(net)
    hvd.broadcast_parameters(net.state_dict(), 0)
    if hvd.rank():
        for number in range(3):
            step(net, optimizer, number)
        assert not buckets(optimizer)
    hvd.join()
    hvd.broadcast_parameters(net.state_dict(), 1)
    hvd.broadcast_optimizer_state(optimizer, 1)
    for number in range(3, 6):
        step(net, optimizer, number)
    assert len(in_buckets(optimizer)) == 6
    if hvd.rank() == 0:
        for _ in range(5):  # without gradients for the first layers
            optimizer.zero_grad()
            net[4](torch.ones(1, 40)).sum().backward()
            optimizer.step()
        assert len(in_buckets(optimizer)) == 6
    hvd.join()
    hvd.broadcast_parameters(net.state_dict(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    for number in range(11, 14):
        step(net, optimizer, number)
    assert hvd.allgather_object(in_buckets(optimizer)) == [in_buckets(optimizer)] * hvd.size()
    assert_all_equal(net)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_have_joined(pool, size):
    pool(size).run(joined)


def killed_in_the_middle(note):
    import os
    import signal
    import threading
    import time

    net = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(8)])  # 11 MB of gradients
    optimizer = wrap(net)
    x = torch.ones(1, 600)

    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            net(x).sum().backward()
            optimizer.step()

    steps(5)
    assert len(buckets(optimizer)) >= 3

    def end():
        note.write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)

    if hvd.rank() == 1:
        threading.Timer(0.2, end).start()
    with pytest.raises(hvd.HorovodInternalError) as caught:
        steps(1_000_000)
    assert not optimizer._hvd.reducer.busy
    return str(caught.value), time.time()


def test_a_peer_that_is_killed_while_buckets_are_reduced(pool, tmp_path):
    results = pool(3).run(killed_in_the_middle, tmp_path / "end", errors=True)
    assert "SIGKILL" in str(results[1])
    ended = float((tmp_path / "end").read_text())
    for message, noticed in (results[0], results[2]):
        assert "rank 1" in message
        assert noticed - ended < 20  # seconds, less than the timeout of collectives
