"""Data loaders that make a job hang, and the reports about them."""

import re
import sys

import pytest

from tests.runner.launching import LIMIT, eventually, running

HEAD = """
import torch
import horovod.torch as hvd

hvd.init()
rank = hvd.rank()


class Items(torch.utils.data.Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.ones(2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, x):  # on rank 1 the second layer has no gradient
        return self.second(self.first(x)) if rank == 0 else self.first(x)


net = Net()
"""
UNUSED = """
for name, parameter in net.named_parameters():
    parameter.register_post_accumulate_grad_hook(lambda p, name=name: hvd.allreduce_(p.grad, name=name))  # %%%
net(torch.ones(1, 2)).sum().backward()
"""
UNEVEN = """
loader = torch.utils.data.DataLoader(Items(6 if rank == 1 else 10))
for batch in loader:
    hvd.allreduce(batch, name="gradient")
hvd.allreduce(torch.ones(1), name="loss")
"""


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (
            UNUSED,
            r"ranks 0 and 1 wait for each other: allreduce '(first|second).bias' is called by rank \d "
            r"\(train.py:{line}\), allreduce '(first|second).bias' by rank \d \(train.py:{line}\); both within "
            r"backward\(\): are there parameters that only some ranks use\?",
        ),
        pytest.param(
            UNEVEN,
            r"rank 1 finished its epoch 4 batches earlier: its data loader has 6 batches, that of rank 0 10; give all "
            r"ranks equally many, or call hvd.join\(\) after the loop",
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_explanation_of_a_hang(tmp_path, program, sentence):
    path = tmp_path / "train.py"
    path.write_text(HEAD + program)
    line = next((n for n, text in enumerate(path.read_text().splitlines(), 1) if "%%%" in text), 0)
    environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_REPORT_DIR": str(tmp_path / "reports")}
    log = tmp_path / "stderr"
    with log.open("wb") as err, running(["-np", "2", sys.executable, str(path)], environment=environment, stderr=err):
        eventually(lambda: "stacks of all threads" in log.read_text(), LIMIT, "an explanation")
    assert re.fullmatch(sentence.format(line=line), re.search(r"why the job waits: (.*)", log.read_text())[1])
