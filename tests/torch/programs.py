"""Networks, batches and training loops that tests of this folder share; they run on every rank."""

import torch

import horovod.torch as hvd
from tests.torch.reference import bits

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}
BUCKET_VIEWS = [None, True, False]
"""Values of gradient_as_bucket_view."""


def network(seed=3, dtype=torch.float64):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
    return torch.nn.Sequential(*layers).to(dtype)


def wrap(net, make=OPTIMIZERS["sgd"], **options):
    return hvd.DistributedOptimizer(make(net.parameters()), net.named_parameters(), **options)


def batch(number, rank=None, rows=4):
    """Return the batch of a rank, by default this one, in step ``number``."""
    generator = torch.Generator().manual_seed(1000 * number + (hvd.rank() if rank is None else rank))
    return torch.randn(rows, 5, generator=generator, dtype=torch.float64)


def loss_of(net, x):
    return net(x).square().mean()


def loss_of_all(net, number, loss=loss_of):
    """Return the mean of all ranks' losses, computed in this process."""
    return sum(loss(net, batch(number, r)) for r in range(hvd.size())) / hvd.size()


def train(net, optimizer, numbers):
    """Take a step with each of these batches."""
    for number in numbers:
        optimizer.zero_grad()
        loss_of(net, batch(number)).backward()
        optimizer.step()


class Twins:
    """A network with a wrapped optimizer, and a copy that this process trains on the batches of all ranks."""

    def __init__(self, make=OPTIMIZERS["sgd"], **options):
        self.net, self.twin = network(), network()
        self.optimizer, self.plain = wrap(self.net, make, **options), make(self.twin.parameters())
        self.scale = hvd.size() if options.get("op") == hvd.Sum else 1

    def zero_grad(self, set_to_none=True):
        for optimizer in (self.optimizer, self.plain):
            optimizer.zero_grad(set_to_none=set_to_none)

    def backward(self, number, loss=loss_of):
        loss(self.net, batch(number)).backward()
        self.twin_backward(number, loss)

    def twin_backward(self, number, loss=loss_of):
        (loss_of_all(self.twin, number, loss) * self.scale).backward()

    def clip(self, norm=0.05):
        for net in (self.net, self.twin):
            torch.nn.utils.clip_grad_norm_(net.parameters(), norm)

    def step(self):
        self.optimizer.step()
        self.plain.step()
        self.compare()

    def train(self, numbers, clip=None):
        for number in numbers:
            self.zero_grad()
            self.backward(number)
            if clip is not None:
                self.clip(clip)
            self.step()

    def compare(self, **tolerance):
        assert_close(self.net, self.twin, **tolerance)


def assert_close(net, reference, **tolerance):
    """Assert that parameters and gradients are equal up to rounding."""
    for (name, p), q in zip(net.named_parameters(), reference.parameters(), strict=True):
        for a, b in ((p, q), (p.grad, q.grad)):
            assert (a is None) == (b is None), name
            if a is not None:
                torch.testing.assert_close(a, b, **{"rtol": 1e-9, "atol": 1e-12, **tolerance})


def assert_all_equal(net):
    """Assert that all ranks have the same bits."""
    own = [bits(p).tolist() for p in net.parameters()]
    assert hvd.allgather_object(own) == [own] * hvd.size()


def votes(optimizer):
    """Return a list that grows with each round in which the ranks vote on gradients."""
    reducer = optimizer._hvd.reducer
    seen, plain = [], reducer.in_flight.exchange_readiness
    reducer.in_flight.exchange_readiness = lambda *a: (seen.append(a), plain(*a))[1]
    return seen
