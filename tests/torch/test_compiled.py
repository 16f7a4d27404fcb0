"""torch.compile with collectives, SyncBatchNorm and whole steps: values of eager code, one graph break per call."""

import pytest
import torch

import horovod.torch as hvd

CALLS = {
    "allreduce": lambda x: hvd.allreduce((x * 2).sum(), name="c.allreduce", op=hvd.Sum) + 1,
    "unnamed": lambda x: hvd.allreduce(x.sin()) * 2,
    "grouped_allreduce": lambda x: sum(t.sum() for t in hvd.grouped_allreduce([x * 3, x.sum()], name="c.grouped")),
    "allgather": lambda x: (hvd.allgather(x * 2, name="c.allgather") ** 2).sum(),
    "broadcast": lambda x: hvd.broadcast(x * 3, 0, name="c.broadcast") + 1,
    "reducescatter": lambda x: hvd.reducescatter(x * 3, name="c.scatter", op=hvd.Sum) + 1,
    "alltoall": lambda x: hvd.alltoall(x * 3, name="c.alltoall") + 1,
}
STEPS = 3  # from the second step on, operations take the path for repeated calls


def in_place(x):
    y = x * 3
    hvd.allreduce_(y, name="c.in_place", op=hvd.Sum)
    return y + 1


def asynchronous(x):
    handle = hvd.allreduce_async(x * 3, name="c.asynchronous", op=hvd.Sum)
    return x.cos() + hvd.synchronize(handle)


class Normalised(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = hvd.SyncBatchNorm(3).double()

    def forward(self, x):
        return (self.norm(x * 2) ** 3).sum()


def compare(name, plain, traced, backend, grad=True, breaks=2):
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(traced, backend=backend)
    for step in range(STEPS):
        a, b = ((torch.arange(6.0).double().view(2, 3) + hvd.rank() + step).requires_grad_(grad) for _ in range(2))
        want, got = plain(a), compiled(b)
        torch.testing.assert_close(got, want, msg=lambda text: f"{name}: {text}")
        if grad:
            want.sum().backward(), got.sum().backward()
            torch.testing.assert_close(b.grad, a.grad, msg=lambda text: f"{name}: {text}")
    # One break for each call, and possibly one more when a compiled part is generalized.
    assert sum(counters["graph_break"].values()) <= breaks, (name, counters["graph_break"])
    assert counters["frames"]["total"] <= 8, (name, counters["frames"])


def functions(backend):
    for name, call in CALLS.items():
        compare(name, call, call, backend)
    compare("in place", in_place, in_place, backend, grad=False)
    compare("asynchronous", asynchronous, asynchronous, backend, grad=False, breaks=4)
    compare("SyncBatchNorm", Normalised(), Normalised(), backend)


def steps(backend):
    torch._dynamo.reset()
    nets = [torch.nn.Linear(3, 2).double() for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    result = []
    for i, net in enumerate(nets):
        plain = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(plain, net.named_parameters(f"net{i}"))

        def step(x, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (net(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        result.append(step)
    compiled = torch.compile(result[1], backend=backend)
    for number in range(STEPS):
        x = torch.arange(6.0).double().view(2, 3) * (hvd.rank() + 1) / (number + 1)
        torch.testing.assert_close(compiled(x), result[0](x))
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()))


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.heavy)])
def test_values_and_gradients_of_eager_code(pool, backend):
    pool(2).run(functions, backend)
    pool(2).run(steps, backend)
