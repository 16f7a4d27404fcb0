"""Regenerate docs/dashboard.png: `python -m tests.runner.dashboard.screenshot docs/dashboard.png`."""

import sys
import tempfile
import time
from pathlib import Path

from tests.runner.dashboard.browser import job, pages

SECONDS = 30
PROGRAM = """
import time
import torch
import horovod.torch as hvd

class Batches(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            time.sleep(0.004)
            x = torch.randn(32, 128)
            yield x, x[:, :8].sum(1, keepdim=True)

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)
layers = [layer for _ in range(6) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), 1e-3), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for step, (x, y) in enumerate(torch.utils.data.DataLoader(Batches(), batch_size=None)):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    if hvd.rank() == 2:
        time.sleep(0.006)
    optimizer.step()
    hvd.report(loss=loss.item())
    if step % 20 == 0:
        print(f"step {step:5d}  loss {loss.item():.4f}", flush=True)
"""


def write(folder: str) -> Path:
    """Write the program to the directory where it is started."""
    Path(folder, "train.py").write_text(PROGRAM)
    return Path(folder)


def main(path: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        pages() as open_page,
        job("-np", "4", "python", "train.py", cwd=write(folder)) as running,
    ):
        page = open_page(running.address, 1100, 1180)
        page.get_by_text("comes last most often").wait_for()
        time.sleep(SECONDS)
        page.screenshot(path=path)


if __name__ == "__main__":
    main(*sys.argv[1:])
