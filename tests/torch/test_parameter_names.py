"""Every change of an optimizer's parameters is detected."""

import itertools

import pytest
import torch

from horovod.torch.reducer.parameter_names import Members

SHAPES = [(3,), (1,), (1, 1), (), (0,), (2, 3), (4,)]


def parameter(shape):
    return torch.nn.Parameter(torch.zeros(shape))


def members_of(params):
    optimizer = torch.optim.SGD(params, lr=0.1)
    return optimizer, Members(optimizer, {p: f"p{i}" for i, p in enumerate(params)})


def names_added(members):
    """Return the names of all parameters added so far."""
    members.take_in(None)
    return [name for name in members.names.values() if "noname" in name]


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SHAPES, SHAPES)))
def test_replaced_parameter(old, new):
    """Also for a replacement that compares as equal, or cannot be compared."""
    optimizer, members = members_of([parameter((2,)), parameter(old)])
    optimizer.param_groups[0]["params"][1] = parameter(new)
    assert names_added(members) == ["allreduce.noname.0.1"]
