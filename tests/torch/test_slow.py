"""Jobs that are slow for a known reason, their metrics, and the explanation at the end."""

import contextlib
import io
import json
import os
import re
import socket
import time
import urllib.request

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import horovod.torch as hvd

STEPS, WAIT = 60, 0.03
NAME = 'läyer "7"\n日本'


class Rows(Dataset):
    def __init__(self, wait):
        self.wait = wait

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(self.wait)
        return torch.ones(64)


def train(wait_for_data=0.0, wait=0.0):
    model = torch.nn.Linear(64, 64)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    for batch in DataLoader(Rows(wait_for_data)):
        time.sleep(wait)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def slow_rank():
    """Return the rank's statistics, and the metrics page of rank 0."""
    hvd.report(loss=0.5, rank=hvd.rank(), **{NAME: 1.5})
    train(wait=WAIT if hvd.rank() == 1 else 0.0)
    if hvd.rank() > 0:
        return hvd.stats(), ""
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['HOROVOD_METRICS_PORT']}/metrics", timeout=20) as page:
        return hvd.stats(), page.read().decode()


def slow_loader():
    train(wait_for_data=WAIT if hvd.rank() == 0 else 0.0)


def in_a_job(program):
    """Run a program in a new job; return its result and the lines at the end of that job."""
    with contextlib.redirect_stderr(io.StringIO()) as output:
        hvd.init()
        result = program()
        hvd.shutdown()
    return result, re.findall(r"\[horovod\] (2 workers.*)", output.getvalue())


def numbers(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return [float(group) for group in found.groups()]


@pytest.mark.heavy
def test_a_slow_rank_is_named(pool, tmp_path):
    path = tmp_path / "stats.jsonl"
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = str(chosen.getsockname()[1])
    job = pool(2, initialized=False, HOROVOD_STATS_FILE=str(path), HOROVOD_METRICS_PORT=port)
    ((first, page), (line,)), ((second, _), _) = job.run(in_a_job, slow_rank)
    share, by = numbers(r"; rank 1 was last in (\d+)% of steps, by (\d+) ms;", line)
    assert share > 60
    assert by > 20
    linear, exposed, step = numbers(
        r"^2 workers, 60 steps, (\d+)% of linear; .*; (\d+) ms of each (\d+) ms step were exposed communication\b", line
    )
    assert 10 < exposed < step  # half of the time that the one rank waits for the other
    assert abs(linear - 100 * (1 - exposed / step)) < 5
    assert "job" not in second
    assert second["made"] == 60
    assert second["steps"] + second["pauses"] == 57
    parts = [second[f"{part}_seconds"] for part in ("data", "compute", "exposed")]
    assert sum(parts) == pytest.approx(second["step_seconds"], rel=0.01)
    assert first["exposed_seconds"] > max(0.02, second["exposed_seconds"])
    assert second["reported"] == {"loss": 0.5, "rank": 1.0, NAME: 1.5}
    assert first["job"]["ranks"][1]["reported"] == second["reported"]
    assert first["job"]["last"]["rank"] == 1
    assert 'horovod_reported{name="loss",rank="0"} 0.5' in page
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert all(one["size"] == 2 for one in lines)
    assert lines[-1]["sentence"] == line
    assert lines[-1]["ranks"][0]["reported"][NAME] == 1.5


def test_a_slow_loader_is_named(pool):
    (_, (line,)), _ = pool(2, initialized=False).run(in_a_job, slow_loader)
    (by,) = numbers(r"rank 0 was last in \d+% of steps, by \d+ ms \(it waited (\d+) ms longer for its data\)", line)
    assert by > 20
    (data,) = numbers(r"; rank 0 waited (\d+) ms of each step for data\b", line)
    assert data >= 30
    assert pool(2, initialized=False, HOROVOD_STATS_SUMMARY="0").run(in_a_job, slow_loader) == [(None, [])] * 2
