"""Arguments that DistributedOptimizer accepts, and its behaviour on a single rank."""

import pytest
import torch

import horovod.torch as hvd


@pytest.mark.usefixtures("single")
class TestArguments:
    def make(self, **options):
        net = torch.nn.Linear(2, 2)
        return net, lambda **more: hvd.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), lr=0.1), **{**options, **more}
        )

    def test_named_parameters(self):
        net, make = self.make()
        w, b = net.weight, net.bias
        for bad, text in (
            ([w, b], "pairs"),
            ([("w", w, 1), ("b", b)], "pairs"),
            ([("w", w), (1, b)], "pairs"),
            ([("w", w), ("b", 3)], "int"),
            ([("same", w), ("same", b)], "same"),
            ([("w", w)], "but 1 are missing"),
        ):
            with pytest.raises(ValueError, match=text):
                make(named_parameters=bad)
        make(named_parameters=[("w", w), ("b", b), ("of another optimizer", torch.ones(1))])

    def test_groups(self):
        net, make = self.make()
        for bad, text in (
            (-1, "-1"),
            ("ab", "str"),
            (True, "groups must be .*, got True"),
            (1.5, "float"),
            ([net.weight], r"got a Parameter as groups\[0\]"),
            ([["weight"]], r"got a str in groups\[0\]"),
            ([[net.weight], [net.weight]], "at most once"),
        ):
            with pytest.raises(ValueError, match=text):
                make(groups=bad)
        with pytest.warns(DeprecationWarning, match="num_groups"):
            make(num_groups=1)
        with pytest.raises(ValueError, match=r"num_groups must be .*, got -2"):
            make(num_groups=-2)

    def test_numbers_and_operations(self):
        _, make = self.make()
        for bad in (0, -1, 1.5, True):
            with pytest.raises(ValueError, match="backward_passes_per_step"):
                make(backward_passes_per_step=bad)
        with pytest.raises(ValueError, match="backward_passes_per_step"):
            make().set_backward_passes_per_step(0)
        with pytest.raises(ValueError, match="gradient_predivide_factor"):
            make(gradient_predivide_factor=2.0, op=hvd.Sum)
        with pytest.raises(ValueError, match=r"op must be .*, got 8"):
            make(op=8)
        with pytest.raises(ValueError, match="Linear"):
            hvd.DistributedOptimizer(torch.nn.Linear(1, 1))

    def test_a_single_process_uses_the_plain_optimizer(self):
        net, make = self.make()
        optimizer = make()
        for _ in range(2):  # without counting passes or detecting a race
            net(torch.ones(1, 2)).sum().backward()
        optimizer.zero_grad(set_to_none=False)
        net(torch.ones(1, 2)).sum().backward()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
