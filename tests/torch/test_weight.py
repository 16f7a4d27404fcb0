"""Averages of gradients that are weighted by each rank's number of samples, compared with one process."""

import contextlib

import pytest
import torch

import horovod.torch as hvd
from horovod.common.training_loop import weights
from tests import weighted
from tests.ranks import on_ranks
from tests.torch.programs import assert_all_equal, assert_close, batch, network, wrap
from tests.torch.programs import train as plain_train

STEPS = 4


def rows_of(step, rank):
    """Return a number of rows that differs between ranks and steps; rank 0 has none in step 2."""
    return 0 if (step, rank) == (2, 0) else 1 + 2 * rank + step


def language_model(dtype):
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Embedding(11, 6), torch.nn.Linear(6, 11)).to(dtype)


def tokens_of(step, micro, rank):
    """Return a padded batch of tokens. -1 marks the padding, whose amount differs between ranks."""
    generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    tokens = torch.randint(0, 11, (3, 7), generator=generator)
    lengths = torch.randint(0, 8, (3, 1), generator=generator) if rank else torch.tensor([[1], [2], [0]])
    return tokens, torch.where(torch.arange(7) < lengths, tokens.roll(1, 1), -1)


def loss_sum(net, tokens, labels):
    logits = net(tokens).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, labels.flatten(), ignore_index=-1, reduction="sum")


def train_language_model(dtype, tolerance, steps):
    net, twin = language_model(dtype), language_model(dtype)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(net.parameters()), net.named_parameters(), backward_passes_per_step=2
    )
    plain = torch.optim.Adam(twin.parameters())
    for step in range(steps):
        own = [tokens_of(step, micro, hvd.rank()) for micro in range(2)]
        count = sum(int((labels >= 0).sum()) for _, labels in own)
        optimizer.zero_grad()
        with hvd.weight(count):
            for tokens, labels in own:
                (loss_sum(net, tokens, labels) / max(count, 1)).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()

        batches = [tokens_of(step, micro, rank) for micro in range(2) for rank in range(hvd.size())]
        plain.zero_grad()
        total = sum(int((labels >= 0).sum()) for _, labels in batches)
        (sum(loss_sum(twin, *one) for one in batches) / total).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        plain.step()
        assert_close(net, twin, rtol=tolerance, atol=tolerance / 100)
    assert_all_equal(net)


def train(method, compression=None, dtype=torch.float64, tolerance=1e-9, **options):
    """Train with batches of different sizes, and compare each step with one process."""
    net, twin = network(dtype=dtype), network(dtype=dtype)
    if method == "callable":
        options["weight"] = lambda: rows_of(step, hvd.rank())
    if compression is not None:
        options["compression"] = getattr(hvd.Compression, compression)
    optimizer, plain = wrap(net, **options), torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(STEPS):
        own = batch(step, rows=rows_of(step, hvd.rank())).to(dtype)
        optimizer.zero_grad()
        with hvd.weight(len(own)) if method == "block" else contextlib.nullcontext():
            net(own).square().mean().backward()  # NaN without rows
        optimizer.step()
        rows = torch.cat([batch(step, r, rows_of(step, r)) for r in range(hvd.size())]).to(dtype)
        plain.zero_grad()
        twin(rows).square().mean().backward()
        plain.step()
        assert_close(net, twin, rtol=tolerance, atol=tolerance)
    assert_all_equal(net)


def skip_without_samples():
    net = network()
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = wrap(net)
    for _ in range(2):
        with hvd.weight(0):
            net(batch(0)).square().mean().backward()
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    with hvd.weight(hvd.rank()):
        if hvd.rank():  # a rank without a backward pass takes part with weight 0
            net(batch(0)).square().mean().backward()
    optimizer.step()
    assert not any(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))


def left_over_gradients_do_not_count():
    net = network()
    optimizer = wrap(net)
    with hvd.weight(2):
        net(batch(0)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    expected = torch.autograd.grad(net(batch(0, 1)).square().mean(), list(net.parameters()))
    if hvd.rank():
        with hvd.weight(3):
            net(batch(0, 1)).square().mean().backward()
    optimizer.synchronize()
    torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))
    with optimizer.skip_synchronize():
        optimizer.step()


def failures_reach_all_ranks():
    net, numbers = network(), iter([-1, 2] if hvd.rank() == 0 else [1, 2])
    optimizer = wrap(net, weight=lambda: next(numbers))
    error, text = (hvd.HorovodInternalError, r"backward\(\) failed on rank 0")
    if hvd.rank() == 0:
        error, text = ValueError, "got -1"
    with pytest.raises(error, match=text):
        net(batch(0)).square().mean().backward()
    plain_train(net, optimizer, [0])
    assert_all_equal(net)
    optimizer = wrap(net)
    block = hvd.weight(1) if hvd.rank() else contextlib.nullcontext()
    with pytest.raises(hvd.HorovodInternalError, match=r"all must use hvd.weight\(\) or weight=, or none"), block:
        net(batch(0)).square().mean().backward()
    optimizer.zero_grad()


def large_counts_in_half_precision():
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([p], lr=1.0))
    with hvd.weight(10.0**9 * (1 + hvd.rank())):
        (p * (6e4 if hvd.rank() else -6e4)).sum().backward()
    ranks = range(hvd.size())
    expected = sum((6e4 if r else -6e4) * (1 + r) for r in ranks) / sum(1 + r for r in ranks)
    torch.testing.assert_close(p.grad, torch.full((3,), expected, dtype=torch.float16), rtol=2e-3, atol=0)
    optimizer.step()


def joined_ranks_do_not_count():
    net, twin = network(), network()
    optimizer = wrap(net)
    for step in range(3):
        if hvd.rank() == 0 and step == 1:
            break
        optimizer.zero_grad()
        with hvd.weight(3):
            net(batch(step)).square().mean().backward()
        if step:
            twin.zero_grad()
            twin.load_state_dict(net.state_dict())
            expected = torch.autograd.grad(twin(batch(step)).square().mean(), list(twin.parameters()))
            torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))
        optimizer.step()
    hvd.join()


def sparse_gradients():
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0))
    with hvd.weight(1 + 2 * hvd.rank()):
        embedding(torch.tensor([hvd.rank(), 5])).sum().backward()
    expected = torch.zeros(6, 2)
    expected[5] = 1
    for rank in range(hvd.size()):
        expected[rank] = (1 + 2 * rank) / sum(1 + 2 * r for r in range(hvd.size()))
    torch.testing.assert_close(embedding.weight.grad.to_dense(), expected)
    optimizer.step()


def refusals():
    net = network()
    with pytest.raises(ValueError, match="weight requires op=Average"):
        wrap(net, op=hvd.Adasum, weight=2)
    for wrong in (-1, float("nan"), "3"):
        with pytest.raises(ValueError, match="weight must be a finite number of 0 or more"):
            hvd.weight(wrong)
    optimizer = wrap(net, backward_passes_per_step=2)
    with hvd.weight(1):
        net(batch(0)).square().mean().backward()
    with pytest.raises(RuntimeError, match=r"same hvd.weight\(\) block.*got 1, then 1"), hvd.weight(1):
        net(batch(1)).square().mean().backward()
    optimizer.zero_grad()
    for op in (hvd.Sum, hvd.Adasum):
        other = network()
        optimizer = wrap(other, op=op)
        other(batch(0)).square().mean().backward()  # works outside of a block
        optimizer.step()
        optimizer.zero_grad()
        with pytest.raises(ValueError, match="weight requires op=Average"), hvd.weight(1):
            other(batch(0)).square().mean().backward()
        with contextlib.suppress(hvd.HorovodInternalError):
            optimizer.zero_grad()
    net = network()
    optimizer = hvd.ShardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1))
    with (
        pytest.raises(ValueError, match=r"hvd.weight\(\) and hvd.sync\(\) must not be used with hvd.Sh"),
        hvd.weight(1),
    ):
        net(batch(0)).square().mean().backward()


def scaled_losses():
    """GradScaler: an infinite gradient counts on all ranks, unless its rank has weight 0."""
    net, twin = network(dtype=torch.float32), network(dtype=torch.float32)
    optimizer, plain = wrap(net), torch.optim.SGD(twin.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        infinite, counts = step in (1, 2), step != 2
        own = batch(step, rows=rows_of(step + 3, hvd.rank())).float()
        optimizer.zero_grad()
        with hvd.weight(len(own) if hvd.rank() or counts else 0):
            loss = net(own).square().mean()
            scaler.scale(loss * torch.inf if infinite and hvd.rank() == 0 else loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        if step != 1:
            counted = [r for r in range(hvd.size()) if r or counts]
            plain.zero_grad()
            twin(torch.cat([batch(step, r, rows_of(step + 3, r)) for r in counted]).float()).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.05)
            plain.step()
            assert_close(net, twin, rtol=1e-5, atol=1e-6)
    assert scaler.get_scale() == 2.0**9


@on_ranks(3, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_weighted_gradients_in_a_process_set():
    pair = hvd.add_process_set([1, 2])
    if hvd.rank() in (1, 2):
        net = network()
        optimizer = wrap(net, process_set=pair)
        with hvd.weight(hvd.rank()):
            net(batch(0)).square().mean().backward()
        losses = [net(batch(0, rank)).square().mean() * rank / 3 for rank in (1, 2)]
        expected = torch.autograd.grad(sum(losses), list(net.parameters()))
        torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))
        optimizer.step()
    hvd.barrier()
    hvd.remove_process_set(pair)


@on_ranks(2)
def test_weighted_gradients_match_one_process():
    train_language_model(torch.float64, 1e-9, STEPS)
    train_language_model(torch.float32, 1e-5, 1)
    train("block")
    weights.current.used = False
    train("callable")
    train("callable", gradient_as_bucket_view=True, dtype=torch.float32, tolerance=1e-5)
    train("block", compression="fp16", tolerance=5e-3)
    train("block", compression="wire_bf16", dtype=torch.float32, tolerance=5e-2)
    train("block", compression="wire_int8", dtype=torch.float32, tolerance=5e-2)
    scaled_losses()
    skip_without_samples()
    left_over_gradients_do_not_count()
    failures_reach_all_ranks()
    large_counts_in_half_precision()
    sparse_gradients()
    joined_ranks_do_not_count()
    refusals()


@on_ranks(2, HOROVOD_DYNAMIC_PROCESS_SETS="1")
def test_weighted_averages_of_tensors():
    weighted.check(hvd, lambda array, dtype: torch.tensor(array).to(getattr(torch, dtype)), hvd.add_process_set)
    own, n = torch.ones(2, requires_grad=True), 1.0 + 2 * hvd.rank()
    (hvd.allreduce(own, weight=n, name="differentiable") * torch.arange(2.0)).sum().backward()
    torch.testing.assert_close(own.grad, 2 * n / 4 * torch.arange(2.0))
