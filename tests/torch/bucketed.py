"""A network whose optimizer keeps gradients in buckets, and helpers that inspect them."""

import torch

import horovod.torch as hvd


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
    # Without the suffix added when parameters have the names of an earlier optimizer's.
    return {slot.name.split("#")[0] for bucket in buckets(optimizer) for slot in bucket.members}
