"""A sharded optimizer in an elastic state: its parts are recovered from the next rank, or their loss is reported."""

import sys
from pathlib import Path

import pytest
import torch

import horovod.torch as hvd
from tests.ranks import on_ranks
from tests.runner.elastic.launched import elastic_job

PROGRAM = """
import os, signal, sys, time
import torch
import horovod.torch as hvd

def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))

hvd.init()
model, twin = net(), net()
optimizer = hvd.ShardedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
plain = torch.optim.Adam(twin.parameters(), lr=0.01)
victims, joins = sys.argv[1].split(","), sys.argv[2] == "joins"

@hvd.elastic.run
def train(state):
    while state.step < 12 or joins and hvd.size() < 4:
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(state.step))  # the same on all ranks
        for net, one in ((model, optimizer), (twin, plain)):
            one.zero_grad()
            net(x).square().mean().backward()
        if state.step == 7 and os.environ["HOROVOD_WORKER"] in victims:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        plain.step()
        state.step += 1
        if state.step >= 12:
            time.sleep(0.1)
        if state.step % 3 == 0:
            state.commit()

state = hvd.elastic.TorchState(model=model, optimizer=optimizer, twin=twin, plain=plain, step=0)
train(state)
full = optimizer.state_dict()["state"]
for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
    assert torch.allclose(p, q, rtol=1e-5, atol=1e-7), name
    for key, value in plain.state[q].items() if hvd.rank() == 0 else ():
        assert torch.allclose(full[name][key], value, rtol=1e-5, atol=1e-7), (name, key)
print("ends", hvd.size(), flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(("victims", "joins"), [("1,3", False), ("2", True), ("1,2", False)])
def test_lost_parts(tmp_path: Path, victims: str, joins: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cooldown = "1" if joins else "600"
    flags = ["-np", "4", "--min-np", "1", "--blacklist-cooldown-range", cooldown, cooldown]
    words = [sys.executable, str(program), victims, "joins" if joins else "stays"]
    with elastic_job(tmp_path, "localhost:4", *flags, *words) as job:
        code = job.end()
        if victims == "1,2":
            assert code == 1, job.shown()
            assert "the optimizer's state of the former ranks 1 is lost" in job.shown()
        else:
            assert code == 0, job.shown()
            assert job.shown().count("ends") == (4 if joins else 2), job.shown()


@on_ranks(2)
def test_a_commit_is_restored() -> None:
    net = torch.nn.Linear(3, 3)
    optimizer = hvd.ShardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    state = hvd.elastic.TorchState(net, optimizer)
    state.sync()
    momentum = []
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        momentum.append(sum(entries["momentum_buffer"].sum() for entries in optimizer.state.values() if entries))
        if len(momentum) == 1:
            optimizer.param_groups[0]["lr"] = 0.2
            state.commit()
            optimizer.param_groups[0]["lr"] = 0.4
        else:
            state.restore()
    assert optimizer.param_groups[0]["lr"] == 0.2
    assert momentum[0] != momentum[1] == momentum[2]
