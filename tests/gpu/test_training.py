"""Training on a GPU: ranks have equal bits, and compute what one process would with all their data."""

import copy

import pytest
import torch

import horovod.torch as hvd
from tests.gpu.device import DEVICE
from tests.torch import test_sync_batch_norm
from tests.torch.test_amp import scaled

SIZES = [1, 2, 4]
ROWS = 8  # of a rank's batch


def network(seed=1, dtype=torch.float32):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)
    ).to(DEVICE, dtype)


def batch(step, rank, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(ROWS, 20, generator=generator).to(DEVICE, dtype)


def side_by_side(pair, optimizers, loss, steps, passes=1):
    """Train the first model on this rank's batches, and its copy in this process on those of all ranks."""
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for number in range(step * passes, step * passes + passes):
            loss(pair[0], number, hvd.rank()).backward()
            for rank in range(hvd.size()):
                (loss(pair[1], number, rank) / hvd.size()).backward()
        for optimizer in optimizers:
            optimizer.step()
    hvd.check_in_sync(pair[0])


def loss_of(model, number, rank):
    return model(batch(number, rank)).square().mean()


def trained(options, steps=6, passes=1):
    """Return a model after some steps, and one that a single process trained on all data."""
    model = network(seed=1 + hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone = network(seed=1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        model.named_parameters(),
        backward_passes_per_step=passes,
        **options,
    )
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9)
    side_by_side((model, alone), (optimizer, plain), loss_of, steps, passes)
    # With Adasum each rank's optimizer has its own state.
    hvd.check_in_sync(model, *([] if options.get("op") is hvd.Adasum else [optimizer]))
    return model, alone


def equal_to_one_process(options, passes, tolerance):
    model, alone = trained(options, passes=passes)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


OPTIONS = {
    "plain": ({}, 1, 1e-4),
    "passes": ({}, 3, 1e-3),
    "groups": ({"groups": 2}, 1, 1e-4),
    "views": ({"gradient_as_bucket_view": True}, 1, 1e-4),
    "single": ({"gradient_as_bucket_view": False}, 1, 1e-4),
    "predivided": ({"gradient_predivide_factor": 2.0}, 1, 1e-4),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", OPTIONS)
def test_equal_to_one_process(computing, size, case):
    computing(size).run(equal_to_one_process, *OPTIONS[case])


WAITS = {
    f"cu{da}{kind}Synchronize" for da in ("", "da") for kind in ("Stream", "Event", "Device", "Ctx")
}  # functions by which a program waits for the GPU


def waits_in_steps():
    """Return the number of steps seen by PyTorch's profiler, whether it saw CUDA calls, and the calls that wait."""
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    batches = [batch(number, hvd.rank()) for number in range(10)]

    def step(x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for x in batches[:6]:
        step(x)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for x in batches[6:]:
            with torch.profiler.record_function("a step"):
                step(x)
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CPU]
    steps = [e.time_range for e in events if e.name == "a step"]
    within = [e.name for e in events if any(s.start <= e.time_range.start <= s.end for s in steps)]
    return len(steps), "cudaLaunchKernel" in within, sorted(WAITS & set(within))


@pytest.mark.parametrize("size", [1, 2])
def test_a_step_does_not_wait_for_the_gpu(cuda, size):
    for steps, called, waits in cuda(size).run(waits_in_steps):
        assert steps == 4
        assert called, "the profiler sees no calls of CUDA"
        assert not waits


def on_a_side_stream():
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        equal_to_one_process({}, 1, 1e-4)
    side.synchronize()


@pytest.mark.parametrize("size", [1, 2])
def test_training_on_a_side_stream(cuda, size):
    cuda(size).run(on_a_side_stream)


def gradients_of_several_streams():
    """Layers whose gradients are computed on different streams share a bucket."""
    model, alone = network(), network()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), gradient_as_bucket_view=True
    )
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(20):
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        plain.zero_grad()
        x, here = batch(step, hvd.rank()), torch.cuda.current_stream()
        for number, layer in enumerate(model):
            side = streams[number % 2]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                torch.cuda._sleep(1_000_000)  # about half a millisecond
                x.record_stream(side)
                x = layer(x)
            here = side
        torch.cuda.current_stream().wait_stream(here)
        x.square().mean().backward()
        for rank in range(hvd.size()):
            (alone(batch(step, rank)).square().mean() / hvd.size()).backward()
        optimizer.step()
        plain.step()
    hvd.check_in_sync(model)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_of_several_streams(cuda, size):
    cuda(size).run(gradients_of_several_streams)


def compressed(name):
    trained({"compression": getattr(hvd.Compression, name)})


def with_adasum():
    trained({"op": hvd.Adasum})


def sparse_embedding():
    n, me = hvd.size(), hvd.rank()
    torch.manual_seed(3)
    for dense in (True, False):
        table = torch.nn.Embedding(30, 4, sparse=True).to(DEVICE)
        hvd.broadcast_parameters(table.state_dict(), root_rank=0)
        before = table.weight.detach().clone()
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters(), sparse_as_dense=dense
        )
        table(torch.tensor([me, me, 10], device=DEVICE)).sum().backward()
        optimizer.step()
        step = (before - table.weight.detach()).sum(1).cpu() / 4
        assert [round(n * v, 3) for v in step[:n].tolist()] == [2.0] * n
        assert round(step[10].item(), 3) == 1.0
        hvd.check_in_sync(table)


@pytest.mark.parametrize("size", [2, 4])
def test_compression_adasum_and_sparse(computing, size):
    job = computing(size)
    for name in ("fp16", "bf16", "wire_fp16", "wire_bf16", "wire_int8"):
        job.run(compressed, name)
    job.run(with_adasum)
    job.run(sparse_embedding)


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_one_rank_overflows(computing, low):
    assert computing(2).run(scaled, hvd.Average, hvd.Compression.none, True, float("inf"), DEVICE, low) == [4, 4]


class Mixed(torch.nn.Module):
    """An embedding in CPU memory, followed by layers on the GPU."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)
        self.layer = torch.nn.Linear(8, 1).to(DEVICE)

    def forward(self, indices):
        return self.layer(self.table(indices).to(DEVICE))


def mixed_model():
    torch.manual_seed(5 + hvd.rank())
    model = Mixed()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    alone, rows = copy.deepcopy(model), torch.arange(6)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    plain = torch.optim.SGD(alone.parameters(), lr=0.1)
    side_by_side((model, alone), (optimizer, plain), lambda m, step, rank: m(rows + step + rank).square().mean(), 10)
    for p, q in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def states():
    model = network(seed=hvd.rank())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + hvd.rank()))
    if hvd.rank() == 0:
        for step in range(3):
            model(batch(step, 0)).sum().backward()
            optimizer.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.check_in_sync(model, optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert all(s["exp_avg"].device.type == DEVICE for s in optimizer.state.values())


def sparse_tensors():
    n, me = hvd.size(), hvd.rank()
    one = torch.sparse_coo_tensor([[me, 5]], torch.ones(2), (8,)).to(DEVICE)
    dense = hvd.sparse_allreduce_async(one, name="sparse", op=hvd.Sum)().to_dense().cpu()
    assert dense[5].item() == n
    assert dense[:n].tolist() == [1.0] * n


def gradients_of_operations():
    n, me = hvd.size(), hvd.rank()
    x = torch.full((3,), float(me + 1), device=DEVICE, requires_grad=True)
    (hvd.allreduce(x, op=hvd.Sum, name="g") * (me + 1)).sum().backward()
    assert x.grad.tolist() == [float(n * (n + 1) / 2)] * 3


@pytest.mark.parametrize("size", [2, 4])
def test_models_states_and_layers(computing, size):
    job = computing(size)
    for part in (mixed_model, states, sparse_tensors, gradients_of_operations):
        job.run(part)
    job.run(test_sync_batch_norm.compare, (3, 4, 4), torch.float32, {}, DEVICE)


def compiled(backend):
    torch.manual_seed(2)
    model = network()
    fast = torch.compile(model, backend=backend)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(6):
        optimizer.zero_grad()
        fast(batch(step, hvd.rank())).square().mean().backward()
        optimizer.step()
    hvd.check_in_sync(model)
    return next(model.parameters()).abs().sum().item()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(computing, backend):
    sums = computing(2).run(compiled, backend, timeout=150.0)
    assert sums[0] == sums[1]
