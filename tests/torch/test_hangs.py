"""Data loaders that make a job hang, and what it says of them."""

import re
import sys

import pytest

from tests.runner.launching import LIMIT, eventually, running

HEAD = """
import time
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
        if self.length == 11 and index == 3:
            time.sleep(1000)
        return torch.ones(2)


"""
STUCK = """
loader = torch.utils.data.DataLoader(Items(10 + (rank == 1)), num_workers=1)
for batch in loader:  # %%%
    hvd.allreduce(batch, name="gradient")
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
        (STUCK, "rank 1 is in DataLoader.__next__ at train.py:{line}"),
        (
            UNEVEN,
            "rank 1 finished its epoch 4 batches earlier: its data loader has 6 batches, that of rank 0 10; give all "
            "ranks equally many, or call hvd.join() after the loop",
        ),
    ],
)
def test_what_is_said(tmp_path, program, sentence):
    path = tmp_path / "train.py"
    path.write_text(HEAD + program)
    line = next((n for n, text in enumerate(path.read_text().splitlines(), 1) if "%%%" in text), 0)
    environment = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "1", "HOROVOD_REPORT_DIR": str(tmp_path / "reports")}
    said = tmp_path / "stderr"
    with (
        said.open("wb") as err,
        running(["-np", "2", sys.executable, str(path)], environment=environment, stderr=err),
    ):
        eventually(lambda: "stacks of all threads" in said.read_text(), LIMIT, "an explanation")
    assert re.search(r"why the job waits: (.*)", said.read_text())[1] == sentence.format(line=line)
