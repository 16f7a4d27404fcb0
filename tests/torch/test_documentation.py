"""The programs for PyTorch in README.md and docs run as they stand there, and train."""

from tests.documents import programs
from tests.torch.recipes import CHECKS

# What the programs leave to the reader.
BEFORE = """
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Numbers(Dataset):
    "Points of a line, and in which order they have been asked for."

    asked = []

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.asked.append(index)
        x = torch.full((1,), index / 30 - 1)
        return x, 3 * x + 1


def loss(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


torch.manual_seed(3 + 7 * RANK)
dataset, batch_size, epochs = Numbers(), 5, 60
model = torch.nn.Linear(1, 1)
"""
TRAINED = """
assert abs(model.weight.item() - 3) < 0.5 and abs(model.bias.item() - 1) < 0.2, list(model.parameters())
"""
SHARDED = """
import os

shards = hvd.allgather_object(dataset.asked)
orders = [dataset.asked[i : i + 30] for i in range(0, 30 * epochs, 30)]
assert len({tuple(order) for order in orders}) == epochs, "the data come in the same order in each epoch"
for epoch in range(epochs):  # everybody's data are all of it, in each epoch
    assert sorted(sum((shard[30 * epoch : 30 * epoch + 30] for shard in shards), [])) == list(range(60))
hvd.check_in_sync(model, optimizer)
assert torch.load("model.pt")["weight"].item() == model.weight.item() if hvd.rank() == 0 else not os.listdir()
"""
CHECK_BEFORE = """
import horovod.torch as hvd

hvd.init()
epoch = 3
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
"""
CLIP_BEFORE = """
import horovod.torch as hvd

hvd.init()
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
loss = model(torch.full((1, 1), 100.0 * (1 + hvd.rank()))).square().sum()
"""
CLIPPED = """
assert sum(p.grad.norm() ** 2 for p in model.parameters()) <= 1.001
hvd.check_in_sync(model, optimizer)
"""
AROUND = {
    "five lines": ("", TRAINED + SHARDED),
    "check_in_sync": (CHECK_BEFORE, ""),
    "clipping": (CLIP_BEFORE, CLIPPED),
}
"""By name: what comes before the program, beside BEFORE, and after it."""


def run(text, folder):
    import os
    import tempfile

    import horovod.torch as hvd

    os.chdir(tempfile.mkdtemp(dir=folder))
    try:
        exec(compile(text, "program", "exec"), {"__name__": "__main__", "RANK": hvd.rank()})
    finally:
        os.chdir("/")


def test_every_program_runs_and_trains(pool, tmp_path):
    found = programs("torch")
    assert set(found) == {*AROUND, "beginning", "from DDP", *CHECKS}
    for name, (before, after) in AROUND.items():
        block = found[name]
        text = block.without("-") if block.language == "diff" else block.text
        pool(2).run(run, BEFORE + before + text + after, str(tmp_path))
    # What the five lines are added to is a program that trains, too.
    exec(BEFORE + found["five lines"].without("+").replace("model.pt", f"{tmp_path}/one.pt") + TRAINED, {"RANK": 0})
    assert (tmp_path / "one.pt").exists()
