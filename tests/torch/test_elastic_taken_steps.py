"""Which part of a failed step was completed."""

from types import SimpleNamespace

import pytest
import torch

from horovod.common.exceptions import HorovodInternalError
from horovod.torch.elastic import taken_steps


@pytest.mark.parametrize(("device", "expected"), [("cpu", True), ("meta", False)])
def test_what_is_launched_on_a_device_may_have_spoilt_the_step_before(monkeypatch, device, expected):
    reducer = SimpleNamespace(options=SimpleNamespace(passes=1), reductions=0, in_a_step=False)
    monkeypatch.setattr(taken_steps, "_reducer", lambda _: reducer)
    monkeypatch.setattr(taken_steps, "_within", lambda *_: True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2, device=device))], lr=0.1)
    steps = taken_steps.Steps()
    steps.watch([optimizer])
    assert steps.before_step(HorovodInternalError("rank 1 was lost")) is expected
    assert steps.can_hand_over() is expected


def test_several_optimizers_make_one_step():
    both = [torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1) for _ in "12"]
    steps = taken_steps.Steps()
    steps.watch(both)
    for one in (*both, *both, both[0]):
        one.step()
    assert (steps.taken, steps.rounds) == (5, 2)
