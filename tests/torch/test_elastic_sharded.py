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
victims, ranks, read = sys.argv[1].split(","), int(sys.argv[2]), model if sys.argv[1] in ("1,3", "") else None
optimizer = hvd.ShardedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters(), overlap=read)
plain = torch.optim.Adam(twin.parameters(), lr=0.01)
@hvd.elastic.run
def train(state):
    while state.step < 12 or hvd.size() != ranks:
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
            print("step", state.step, flush=True)
            time.sleep(0.1)
        if state.step % 3 == 0:
            state.commit()
def halve():
    for one in (optimizer, plain):
        one.param_groups[0]["lr"] *= 0.5
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, twin=twin, plain=plain, step=0)
state.register_reset_callbacks([halve])
train(state)
full = optimizer.state_dict()["state"]
for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
    assert torch.allclose(p, q, rtol=1e-5, atol=1e-7), name
    for key, value in plain.state[q].items() if hvd.rank() == 0 else ():
        assert torch.allclose(full[name][key], value, rtol=1e-5, atol=1e-7), (name, key)
print("ends", hvd.size(), flush=True)
"""


@pytest.mark.heavy
@pytest.mark.parametrize(("victims", "ranks"), [("1,3", 2), ("2", 4), ("", 3), ("1,2", 2)])
def test_lost_shards(tmp_path: Path, victims: str, ranks: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    cooldown = "1" if ranks == 4 else "600"
    flags = ["-np", "4", "--min-np", "1", "--blacklist-cooldown-range", cooldown, cooldown]
    with elastic_job(tmp_path, "localhost:4", *flags, sys.executable, str(program), victims, str(ranks)) as job:
        if not victims:
            job.until(lambda: "step 13" in job.shown())
            job.hosts("localhost:3")
        code = job.end()
        if victims == "1,2":
            assert code == 1, job.shown()
            assert "the optimizer's state of the former ranks 1 is lost" in job.shown()
        else:
            assert code == 0, job.shown()
            assert job.shown().count("ends") == ranks, job.shown()


@on_ranks(2)
def test_a_commit_is_restored() -> None:
    net = torch.nn.Linear(3, 3)
    optimizer = hvd.ShardedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
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
