"""The PyTorch programs in README.md and docs run unchanged, and train."""

import pytest

from tests.documents import programs
from tests.torch.recipes import CHECKS

# Definitions that the programs leave to the reader.
BEFORE = """
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    "Points of a line, and the order of their use."

    visited = []

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.visited.append(index)
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

shards = hvd.allgather_object(dataset.visited)
orders = [dataset.visited[i : i + 30] for i in range(0, 30 * epochs, 30)]
assert len({tuple(order) for order in orders}) == epochs, "the data come in the same order in each epoch"
for epoch in range(epochs):  # the ranks share all data, in each epoch
    assert sorted(sum((shard[30 * epoch : 30 * epoch + 30] for shard in shards), [])) == list(range(60))
hvd.check_in_sync(model, optimizer)
assert torch.load("model.pt")["weight"].item() == model.weight.item() if hvd.rank() == 0 else not os.listdir()
"""
OPTIMIZER = """
import horovod.torch as hvd

hvd.init()
epoch = 3
torch.manual_seed(1)
model = torch.nn.Linear(1, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
loss = model(torch.full((1, 1), 100.0 * (1 + hvd.rank()))).square().sum()
"""
CLIPPED = """
assert sum(p.grad.norm() ** 2 for p in model.parameters()) <= 1.001
hvd.check_in_sync(model, optimizer)
"""
STREAM_BEFORE = """
import os

import pyarrow
from pyarrow import parquet

os.mkdir("train")
x = [row / 30 - 1 for row in range(60)]
table = pyarrow.table({"x": pyarrow.array(x, "float32"), "y": pyarrow.array([3 * one + 1 for one in x], "float32")})
parquet.write_table(table, "train/0.parquet", row_group_size=20)
"""
STREAMED = """
assert data.processed_num == 60
hvd.check_in_sync(model, optimizer)
"""
PROCESSES_BEFORE = """
import io
import tarfile

import horovod.torch as hvd
from horovod.data import StreamingDataset, TarFiles

hvd.init()
with tarfile.open("a.tar", "w") as tar:
    for number in range(20):
        member = tarfile.TarInfo(f"{number}.raw")
        member.size = 3
        tar.addfile(member, io.BytesIO(bytes([number] * 3)))
stream = StreamingDataset(TarFiles("."), 4)
"""
PROCESSED = """
batches = list(loader)
assert [tuple(batch.shape) for batch in batches] == [(4, 3), (4, 3), (2, 3)]
shards = hvd.allgather_object([int(one[0]) for batch in batches for one in batch])
assert sorted(sum(shards, [])) == list(range(20))
"""
COMPLETE = """
assert mean_loss < 0.5, mean_loss
hvd.check_in_sync(model, optimizer)
"""
LIGHTNING = """
import horovod.torch as hvd

assert trainer.world_size == 2
assert abs(module.net.weight.item() - 3) < 0.2 and abs(module.net.bias.item() - 1) < 0.1
hvd.check_in_sync(module)
"""
EVALUATE_BEFORE = """
import horovod.torch as hvd

hvd.init()
torch.manual_seed(1)
images, labels = torch.randn(7, 4), torch.arange(7) % 3
dataset, model = torch.utils.data.TensorDataset(images, labels), torch.nn.Linear(4, 3)
"""
EVALUATED = """
images, labels = dataset.tensors
assert result[0] == (model(images).argmax(1) == labels).sum().item() / 7
assert abs(result[1] - torch.nn.functional.cross_entropy(model(images), labels).item()) < 1e-6
"""
AROUND = {
    "five lines": ("", TRAINED + SHARDED),
    "train.py": ("", "assert mean < 0.05, mean"),
    "a complete script, after": ("", COMPLETE),
    "check_in_sync": (OPTIMIZER, ""),
    "clipping": (OPTIMIZER, CLIPPED),
    "exact evaluation": (EVALUATE_BEFORE, EVALUATED),
    "a stream": (STREAM_BEFORE, TRAINED + STREAMED),
    "a stream in processes": (PROCESSES_BEFORE, PROCESSED),
    "lightning": ("", LIGHTNING),
    "an async loader": ("", "assert squares == [number**2 for number in range(10)]"),
}
"""By name: code to run before the program, after BEFORE, and code to run after it."""


def run(text, folder):
    import os
    import tempfile

    import horovod.torch as hvd

    os.chdir(tempfile.mkdtemp(dir=folder))
    try:
        exec(compile(text, "program", "exec"), {"__name__": "__main__", "RANK": hvd.rank()})
    finally:
        os.chdir("/")


def test_every_program_is_known():
    assert set(programs("torch")) == {*AROUND, "a complete script, before", "beginning", "from DDP", *CHECKS}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.heavy] * (name != "five lines")) for name in AROUND]
)
def test_documented_program_trains(pool, tmp_path, name):
    if name == "lightning":
        pytest.importorskip("lightning.pytorch")
    before, after = AROUND[name]
    block = programs("torch")[name]
    text = block.without("-") if block.language == "diff" else block.text
    pool(2).run(run, BEFORE + before + text + after, str(tmp_path), timeout=120.0)


def test_the_original_documented_program_trains(tmp_path):
    found = programs("torch")
    exec(BEFORE + found["five lines"].without("+").replace("model.pt", f"{tmp_path}/one.pt") + TRAINED, {"RANK": 0})
    assert (tmp_path / "one.pt").exists()


@pytest.mark.heavy
def test_the_complete_script_without_horovod_trains(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    left = {"__name__": "__main__"}
    exec(compile(programs("torch")["a complete script, before"].text, "before.py", "exec"), left)
    assert left["loss"] < 0.5
    assert (tmp_path / "model.pt").exists()
