"""When backward() returns, gradients are reduced."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import horovod.torch as hvd
from tests.torch.reference import bits


def network(seed=3, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).to(dtype)


def wrap(net, make=None, **options):
    plain = (make or (lambda p: torch.optim.SGD(p, lr=0.1)))(net.parameters())
    return hvd.DistributedOptimizer(plain, net.named_parameters(), **options)


def batch(number, rank=None, rows=4):
    generator = torch.Generator().manual_seed(1000 * number + (hvd.rank() if rank is None else rank))
    return torch.randn(rows, 5, generator=generator, dtype=torch.float64)


def loss_of(net, x):
    return net(x).square().mean()


def everybody(net, number, loss=loss_of):
    """The mean over the ranks of the loss, in one process."""
    return sum(loss(net, batch(number, r)) for r in range(hvd.size())) / hvd.size()


def assert_close(net, reference, **tolerance):
    for (name, p), q in zip(net.named_parameters(), reference.named_parameters(), strict=True):
        for a, b in ((p, q[1]), (p.grad, q[1].grad)):
            assert (a is None) == (b is None), name
            if a is not None:
                torch.testing.assert_close(a, b, **{"rtol": 1e-9, "atol": 1e-12, **tolerance})


def assert_all_equal(net):
    mine = [bits(p).tolist() for p in net.parameters()]
    assert hvd.allgather_object(mine) == [mine] * hvd.size()


def votes(optimizer):
    """Counts the rounds from now on."""
    reducer = optimizer._hvd.reducer
    seen, plain = [], reducer._on_the_way.vote
    reducer._on_the_way.vote = lambda *a: (seen.append(a), plain(*a))[1]
    return seen


def clipped():
    net, reference = network(), network()
    optimizer = wrap(net, lambda p: torch.optim.Adam(p, lr=0.01))
    plain = torch.optim.Adam(reference.parameters(), lr=0.01)
    rounds = votes(optimizer)
    for number in range(300):
        for o, n, loss in ((optimizer, net, None), (plain, reference, everybody)):
            o.zero_grad(set_to_none=number % 2 == 0)
            (loss_of(n, batch(number)) if loss is None else loss(n, number)).backward()
            norm = torch.nn.utils.clip_grad_norm_(n.parameters(), 0.05)
            o.step()
        assert norm > 0.05 or number > 5
    assert len(rounds) == 300  # step and zero_grad cost nothing
    assert_all_equal(net)
    assert_close(net, reference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [2, 3])
def test_clipping_after_backward(pool, size):
    pool(size).run(clipped)


ACCUMULATED = {
    "average": (hvd.Average, True),
    "sum": (hvd.Sum, True),
    "sum apart": (hvd.Sum, False),
    "max": (hvd.Max, True),
    "min": (hvd.Min, False),
}


def several_backward_calls(op, buckets, groups):
    # Two losses over parts of the model, then both again without zero_grad: each call adds the reduction of its own.
    net = network()
    optimizer = wrap(net, op=op, gradient_as_bucket_view=buckets, groups=groups)
    halves = [lambda x: net(x).square().mean(), lambda x: net[2](x.repeat(1, 2)[:, :8]).sum()]
    for number in range(5):
        expected = [None] * 6
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        if number % 2:
            expected = [torch.zeros_like(p) for p in net.parameters()]
        for i in range(4):
            parameters = list(net.parameters())
            local = torch.autograd.grad(halves[i % 2](batch(10 * number + i)), parameters, allow_unused=True)
            for k, grad in enumerate(local):
                if grad is not None:
                    reduced = hvd.allreduce(grad, op=op)
                    expected[k] = reduced if expected[k] is None else expected[k] + reduced
            halves[i % 2](batch(10 * number + i)).backward()
            for p, want in zip(parameters, expected, strict=True):
                assert (p.grad is None) == (want is None)
                if want is not None:
                    torch.testing.assert_close(p.grad, want, rtol=1e-9, atol=1e-12)
        optimizer.step()
    assert_all_equal(net)


@pytest.mark.parametrize("kind", ACCUMULATED)
@pytest.mark.parametrize("groups", [None, 2])
def test_several_backward_calls_in_a_step(pool, kind, groups):
    op, buckets = ACCUMULATED[kind]
    pool(3).run(several_backward_calls, op, buckets, groups)


def sparse_accumulated(op):
    table = torch.nn.Embedding(6, 2, sparse=True)
    with torch.no_grad():
        table.weight.zero_()
    optimizer = wrap(table, op=op)
    n = hvd.size()
    for _ in range(2):
        optimizer.zero_grad()
        for _ in range(3):
            table(torch.tensor([hvd.rank(), 5])).sum().backward()
        want = torch.zeros(6, 2)
        want[:n] += 3
        want[5] += 3 * n
        torch.testing.assert_close(table.weight.grad.to_dense(), want / (n if op == hvd.Average else 1))
        optimizer.step()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_sparse_gradients_accumulate(pool, op):
    pool(2).run(sparse_accumulated, op)


def adversaries():
    nets, references = [network(1), network(2)], [network(1), network(2)]
    optimizers = [wrap(net) for net in nets]
    plain = [torch.optim.SGD(net.parameters(), lr=0.1) for net in references]
    for number in range(4):
        for (g, d), (opt_g, opt_d), loss in ((nets, optimizers, False), (references, plain, True)):

            def of(f, loss=loss, number=number):
                return sum(f(batch(number, r)) for r in range(hvd.size())) / hvd.size() if loss else f(batch(number))

            opt_d.zero_grad()
            of(lambda x, d=d, g=g: (d(x) - d(x + g(x).detach())).tanh().mean()).backward()
            opt_d.step()
            opt_g.zero_grad()
            of(lambda x, d=d, g=g: d(x + g(x)).tanh().mean()).backward()  # leaves gradients in the discriminator
            opt_g.step()
        for net, reference in zip(nets, references, strict=True):
            assert_close(net, reference)
    for net in nets:
        assert_all_equal(net)


def test_generator_and_discriminator(pool):
    pool(2).run(adversaries)


def one_backward_for_several_optimizers():
    # In one backward pass ranks come to optimizers in different orders, and one of two ranks to more of them.
    nets = [network(i) for i in range(3)]
    optimizers = [wrap(net) for net in nets]
    two = hvd.size() == 2
    for number in range(12):
        for optimizer in optimizers:
            optimizer.zero_grad()
        mine = [0, 1, 2] if hvd.rank() else [2, 1, 0]
        if two and hvd.rank() == number // 2 % 2:
            mine = mine[: number % 3]
        if mine:
            sum(loss_of(nets[i], batch(number)) for i in mine).backward()
        for optimizer in optimizers if number % 2 else reversed(optimizers):
            optimizer.step()
    for net in nets:
        assert_all_equal(net)


@pytest.mark.parametrize("size", [2, 3])
def test_one_pass_for_several_optimizers(pool, size):
    pool(size).run(one_backward_for_several_optimizers)


def no_backward():
    # Ranks without a backward pass in a step meet those with several of them.
    net = network()
    optimizer = wrap(net, op=hvd.Sum)
    rounds = votes(optimizer)
    for number in range(16):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        before = [p.detach().clone() for p in net.parameters()]
        busy = [r for r in range(hvd.size()) if (number + r) % 3 or number == 6]
        calls = 2 if number == 6 or number in (8, 11, 12) else 1
        want = [torch.zeros_like(p) for p in net.parameters()]
        for r in busy:
            for i in range(calls):
                grads = torch.autograd.grad(loss_of(net, batch(10 * number + i, r)), list(net.parameters()))
                want = [w + g for w, g in zip(want, grads, strict=True)]
        rounds.clear()
        if hvd.rank() in busy:
            for i in range(calls):
                loss_of(net, batch(10 * number + i)).backward()
        optimizer.step()
        for p, w, b in zip(net.parameters(), want, before, strict=True):
            torch.testing.assert_close(p.detach(), b - 0.1 * w, rtol=1e-9, atol=1e-12)
        # Since a step has had two rounds, those without a backward pass have to hear that there is none to come.
        told = number > 6 and calls == 1 and len(busy) < hvd.size()
        assert len(rounds) == calls + told, number
    assert_all_equal(net)


def test_ranks_without_a_backward_pass(pool):
    pool(2).run(no_backward)
    pool(3).run(no_backward)


def different_numbers():
    net = network()
    optimizer = wrap(net)

    def steps():
        for number in range(3):
            optimizer.zero_grad()
            for _ in range(1 + (hvd.rank() == 1 and number == 1)):
                loss_of(net, batch(number)).backward()
            optimizer.step()

    with pytest.raises(hvd.HorovodInternalError, match=r"different numbers of backward passes.*some 0, others 1"):
        steps()
    hvd.broadcast_parameters(net.state_dict(), 0)
    optimizer.zero_grad()
    loss_of(net, batch(9)).backward()
    optimizer.step()
    assert_all_equal(net)


def test_different_numbers_of_backward_passes(pool):
    pool(3).run(different_numbers)


def passes():
    # More passes than agreed, and a last step with fewer.
    net, reference = network(), network()
    optimizer, plain = wrap(net, backward_passes_per_step=2), torch.optim.SGD(reference.parameters(), lr=0.1)
    rounds = votes(optimizer)
    for number, calls in enumerate((2, 2, 4, 3, 1, 2)):
        optimizer.zero_grad()
        plain.zero_grad()
        rounds.clear()
        for i in range(calls):
            loss_of(net, batch(10 * number + i)).backward()
            everybody(reference, 10 * number + i).backward()
        if calls % 2 == 0:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        optimizer.step()
        plain.step()
        assert len(rounds) == (calls + 1) // 2
        assert_close(net, reference)
    assert_all_equal(net)


def test_backward_passes_per_step(pool):
    pool(2).run(passes)


def kinds_of_graphs():
    net, reference = network(), network()
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), lr=0.1)

    def penalty(net, x):  # a gradient within the loss
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
        return net(x).square().mean() + (slope.norm(dim=1) - 1).square().mean()

    def recomputed(net, x):
        x = x.clone().requires_grad_()
        for layer in net:
            x = checkpoint(layer, x, use_reentrant=True)
        return x.square().mean()

    def recomputed_in_part(net, x):
        return net[2:](checkpoint(net[:2], x, use_reentrant=False)).square().mean()

    def nested(net, x):
        def outer(x):
            return net[2:](checkpoint(net[:2], x, use_reentrant=True))

        return checkpoint(outer, x.clone().requires_grad_(), use_reentrant=True).square().mean()

    def shared(net, x):  # a layer that is recomputed twice: its gradient is made twice in one pass
        x = net[0](x)
        for _ in range(2):
            x = checkpoint(net[2], x, use_reentrant=True)
        return net[4](x).square().mean()

    def inner(net, x):  # a gradient in the forward pass
        hidden = net[:2](x)
        step = torch.autograd.grad(net[2:](hidden).sum(), hidden)[0]
        return net[2:](hidden - step).square().mean()

    rounds = votes(optimizer)
    number = 0
    for loss in (shared, loss_of, penalty, recomputed, recomputed_in_part, nested, shared, inner, recomputed):
        for _ in range(2):
            number += 1
            rounds.clear()
            optimizer.zero_grad()
            plain.zero_grad()
            loss(net, batch(number)).backward()
            everybody(reference, number, loss).backward()
            assert len(rounds) == 1, loss
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
            optimizer.step()
            plain.step()
            assert_close(net, reference)
    # The same graph twice, and a graph of the gradients.
    for create_graph in (False, True):
        for n, o, value in ((net, optimizer, loss_of(net, batch(50))), (reference, plain, everybody(reference, 50))):
            o.zero_grad()
            value.backward(retain_graph=True, create_graph=create_graph)
            value.backward(retain_graph=True)
            for p in n.parameters():
                p.grad = p.grad.detach()
        assert_close(net, reference)
    assert_all_equal(net)


@pytest.mark.filterwarnings("ignore")
def test_checkpoints_and_gradients_of_gradients(pool):
    pool(2).run(kinds_of_graphs)


def compiled(autograd):
    net, reference = network(), network()
    model = torch.compile(net, backend="aot_eager")
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in range(4):
        optimizer.zero_grad()
        plain.zero_grad()
        if autograd:
            from torch._dynamo import compiled_autograd

            with compiled_autograd._enable(torch.compile(backend="eager")):
                loss_of(model, batch(number)).backward()
            optimizer.synchronize()  # the end of such a backward pass is not seen
        else:
            loss_of(model, batch(number)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        everybody(reference, number).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
        assert_close(net, reference)
    assert_all_equal(net)


@pytest.mark.parametrize("autograd", [False, True])
def test_compiled_models(pool, autograd):
    pool(2).run(compiled, autograd)


def frozen_midway():
    net, reference = network(), network()
    optimizer, plain = wrap(net), torch.optim.SGD(reference.parameters(), lr=0.1)
    for number in range(9):
        for n in (net, reference):
            n[2].requires_grad_(not 3 <= number < 6)
        optimizer.zero_grad()
        plain.zero_grad()
        loss_of(net, batch(number)).backward()
        everybody(reference, number).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.1)
        optimizer.step()
        plain.step()
        assert_close(net, reference)
        if number == 7:
            optimizer.load_state_dict(optimizer.state_dict())
    assert_all_equal(net)


def test_parameters_that_are_frozen_midway(pool):
    pool(2).run(frozen_midway)
